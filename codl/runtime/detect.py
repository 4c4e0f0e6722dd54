"""Describes this machine as a SoC, and observes on which cores its two sides really run."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, get_native_id

import ncnn
import numpy as np

from codl.errors import DeviceError, UnknownNameError
from codl.ir import Region, parse
from codl.ir.soc import ELEMENTS, MEMORY_TYPES, CpuSide, GpuSide, Soc
from codl.kernels import registry
from codl.kernels.ncnn import CpuVariant
from codl.runtime import drivers, threads
from codl.runtime.ncnn_net import CpuLayer, CpuNet, Home
from codl.runtime.opencl import open_device
from codl.runtime.probe import ProbedDevice, ProbeResult, probe_all

SYSTEM_CPU = Path("/sys/devices/system/cpu")
OBSERVE_S = 0.5
#: Preferred where several devices would do: GPUs first, then in this order.
PREFERRED = ("intel-opencl-rt", "pocl-binary-distribution", "pocl")


def detect(
    name: str,
    *,
    device: str | None = None,
    memory_types: Sequence[str] = (),
    element: str = ELEMENTS[0],
) -> Soc:
    """Describe this machine.

    `device` picks the OpenCL device by driver or device name; otherwise a real GPU is taken before
    a CPU. `memory_types` and `element` are as in `GpuSide`; by default all that the device is good
    at, and float32. Raises `DeviceError` where there is no OpenCL device or only one core for two
    sides, or where the device has no such memory.
    """
    chosen = choose(probe_all(), device)
    return describe(name, chosen, memory_types=memory_types, element=element)


def describe(
    name: str,
    device: ProbedDevice,
    *,
    memory_types: Sequence[str] = (),
    element: str = ELEMENTS[0],
) -> Soc:
    """This machine with `device` as its GPU side; a device that is a CPU gets half of the cores."""
    if element not in ELEMENTS:
        raise UnknownNameError("element type", element, ELEMENTS)
    memory_types = memory_types or _memory_types(device)
    for memory in memory_types:
        if memory not in MEMORY_TYPES:
            raise UnknownNameError("memory type", memory, MEMORY_TYPES)
        if memory not in device.memory_types:
            known = ", ".join(device.memory_types)
            raise DeviceError(f"{device.name!r} has no {memory}; its memory types are {known}.")
    cores = physical_cores()
    cpu_cores: tuple[int, ...]
    gpu_cores: tuple[int, ...]
    if device.type == "gpu":
        cpu_cores, gpu_cores = cores, ()
    elif len(cores) < 2:
        raise DeviceError(
            f"The OpenCL device {device.name!r} is a CPU, and this process may use only core "
            f"{cores[0]}: two processors need two cores, or a GPU."
        )
    else:
        half = (len(cores) + 1) // 2
        cpu_cores, gpu_cores = cores[:half], cores[half:]
    return Soc(
        name=name,
        description=_description(device),
        cpu=CpuSide(cpu_name(), cpu_cores, simd_floats(), l2_cache_bytes()),
        gpu=replace(
            _gpu_side(device, gpu_cores), memory_types=tuple(memory_types), element=element
        ),
    )


def choose(probed: Sequence[ProbeResult], device: str | None) -> ProbedDevice:
    """The OpenCL device to use, of all that answered."""
    found = [d for result in probed for d in result.devices]
    if not found:
        failures = "; ".join(f"{r.icd}: {r.error or 'no device'}" for r in probed)
        tried = f" Drivers that were found failed: {failures}." if failures else ""
        raise DeviceError(f"No OpenCL device was found.{tried} {drivers.INSTALL_HINT}")
    if device is not None:
        matching = [d for d in found if device in (d.icd, d.name)]
        if not matching:
            known = {d.icd for d in found} | {d.name for d in found}
            raise UnknownNameError("OpenCL device", device, known)
        return matching[0]
    rank = {icd: index for index, icd in enumerate(PREFERRED)}
    return min(found, key=lambda d: (d.type != "gpu", rank.get(d.icd, len(rank))))


def observe_cores(soc: Soc) -> dict[str, list[int]]:
    """Work on either side alone and report the cores on which its threads were seen.

    Empty for a side that uses no core of this machine.
    """
    gpu = open_device(soc)
    threads.pin([0], soc.cpu.cores)
    seen = {"gpu": [] if not soc.gpu.is_cpu else _observe_gpu(soc)}
    stop, observer = Event(), threads.CoreObserver(ignore=gpu.worker_threads)

    def watch() -> None:
        observer.ignore(get_native_id())
        while not stop.wait(0.01):
            observer.sample()

    net, watcher = busy_net(soc), Thread(target=watch)
    watcher.start()
    deadline = time.perf_counter() + OBSERVE_S
    while time.perf_counter() < deadline:
        net.run()
    stop.set()
    watcher.join()
    return {"cpu": sorted(observer.cores), **seen}


def _observe_gpu(soc: Soc) -> list[int]:
    """Sample while the device works and this thread sleeps."""
    gpu = open_device(soc)
    busy, event = gpu.busy_kernel(), None
    observer = threads.CoreObserver(ignore=threads.thread_ids() - gpu.worker_threads)
    deadline = time.perf_counter() + OBSERVE_S
    while time.perf_counter() < deadline:
        event = busy.enqueue(gpu.queue)
        gpu.queue.flush()
        time.sleep(0.02)
        observer.sample()
    if event is not None:
        event.wait()
    return sorted(observer.cores)


def busy_net(soc: Soc) -> CpuNet:
    """A convolution of about a millisecond on the CPU side."""
    op = parse("conv2d in=1x64x56x56 oc=64 kernel=3 pad=1")
    variant: CpuVariant = registry.variants(op, "cpu", soc)[0]  # type: ignore[assignment]
    whole, out = Region.whole(op.input), Region.whole(op.output)
    weights = {name: np.ones(shape, np.float32) for name, shape in op.weight_shapes.items()}
    layer = CpuLayer("conv", op, variant, (("x", whole),), "y", out, weights)
    x, y = Home.allocate(op.input, whole), Home.allocate(op.output, out)
    return CpuNet([layer], {"x": x}, {"y": y}, soc)


def physical_cores() -> tuple[int, ...]:
    """The cores that this process may use, one of each group that shares a physical core."""
    firsts: dict[str, int] = {}
    for core in threads.available_cores():
        path = SYSTEM_CPU / f"cpu{core}/topology/thread_siblings_list"
        siblings = path.read_text().strip() if path.exists() else str(core)
        firsts.setdefault(siblings, core)
    return tuple(firsts.values())


def cpu_name() -> str:
    """As the system calls it, else the architecture."""
    for line in _cpuinfo():
        if line.lower().startswith(("model name", "hardware")):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def simd_floats() -> int:
    """Floats in the widest vector that ncnn uses here."""
    flags = next((line for line in _cpuinfo() if line.startswith("flags")), "")
    if " avx512f " in flags:
        return 16
    return 8 if " avx " in flags and ncnn.cpu_support_x86_avx() else 4


def l2_cache_bytes() -> int:
    """Of one core; 512 KiB where the system does not tell."""
    path = SYSTEM_CPU / "cpu0/cache/index2/size"
    if not path.exists():
        return 1 << 19
    text = path.read_text().strip()
    return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _description(device: ProbedDevice) -> str:
    if device.type == "gpu":
        return f"{cpu_name()} beside {device.name}"
    return f"two halves of one CPU: ncnn on some cores, {device.platform} on the others"


def _memory_types(device: ProbedDevice) -> tuple[str, ...]:
    """What tensors lie in unless somebody says otherwise: a CPU only emulates images, slowly."""
    return device.memory_types if device.type == "gpu" else MEMORY_TYPES[:1]


def _gpu_side(device: ProbedDevice, cores: tuple[int, ...]) -> GpuSide:
    return GpuSide(
        icd=device.icd,
        platform=device.platform,
        name=device.name,
        driver=device.driver,
        type=device.type,
        cores=cores,
        compute_units=len(cores) or device.compute_units,
        max_work_group_size=device.max_work_group_size,
        wave_size=device.wave_size,
        vector_width=device.vector_width,
        global_mem_cache_size=device.global_mem_cache_size,
        local_mem_bytes=device.local_mem_bytes,
        unified_memory=device.unified_memory,
        memory_types=_memory_types(device),
        max_image_width=device.max_image_width,
        max_image_height=device.max_image_height,
        fine_grained_svm=device.fine_grained_svm,
    )
