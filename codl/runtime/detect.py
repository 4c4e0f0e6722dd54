"""Describes a machine as a SoC, and observes the cores that its two sides use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Event, Thread, get_native_id

import numpy as np

from codl.errors import DeviceError, UnknownNameError
from codl.ir import parse
from codl.kernels import registry
from codl.lower import pieces
from codl.records import statistic
from codl.records.soc import ELEMENT_NAMES, MEMORY_TYPES, CpuSide, GpuSide, Soc
from codl.runtime import threads
from codl.runtime.driver_search import INSTALL_HINT
from codl.runtime.hardware import CpuFacts, cpu_facts
from codl.runtime.host_handles import HostSession
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc, Placement, check_cores
from codl.runtime.probe import ProbedDevice, ProbeResult

OBSERVE_S = 0.5
#: Turns of pinned and unpinned threads: their least number, and the seconds in which more begin; in
#: each turn the runs that are not timed, and those that are.
TURNS, TURNS_S, SETTLING, TIMED = 12, 1.0, 2, 6
#: Order of preference of drivers, after GPUs.
PREFERRED = ("intel-opencl-rt", "pocl-binary-distribution", "pocl")


def describe(
    name: str,
    device: ProbedDevice,
    *,
    cpu: CpuFacts | None = None,
    memory_types: Sequence[str] = (),
    element: str = ELEMENT_NAMES[0],
    cpu_threads: int | None = None,
) -> LocalSoc:
    """Describe a machine with `device` as its GPU side; a device that is a CPU gets half the cores.

    `cpu` is the machine's CPU, by default this one's. The CPU side has a thread for each of its
    cores, or `cpu_threads`. Raises as `place`.
    """
    cpu = cpu or cpu_facts()
    if element not in ELEMENT_NAMES:
        raise UnknownNameError("element type", element, ELEMENT_NAMES)
    memory_types = memory_types or _memory_types(device)
    for memory in memory_types:
        if memory not in MEMORY_TYPES:
            raise UnknownNameError("memory type", memory, MEMORY_TYPES)
        if memory not in device.memory_types:
            names = ", ".join(device.memory_types)
            raise DeviceError(f"{device.name!r} has no {memory}; its memory types are {names}.")
    placement = place(device, cpu, cpu_threads)
    gpu = _gpu_side(device, placement.gpu_cores)
    halves = f"one CPU, divided: ncnn on some cores, {device.platform} on the others"
    facts = Soc(
        name=name,
        description=f"{cpu.name} beside {device.name}" if device.type == "gpu" else halves,
        cpu=CpuSide(
            name=cpu.name,
            threads=placement.threads,
            simd_floats=cpu.simd_floats,
            l2_cache_bytes=cpu.l2_cache_bytes,
            clusters=cpu.clusters,
            big_cores=cpu.big_cores,
            caches=cpu.caches,
        ),
        gpu=replace(gpu, memory_types=tuple(memory_types), element=element),
    )
    return LocalSoc.of(facts, placement)


def place(device: ProbedDevice, cpu: CpuFacts, cpu_threads: int | None = None) -> Placement:
    """Place both sides on a machine with `device`.

    Beside a GPU, the CPU side by default has a thread for each fast core of one NUMA node, as
    threads wait for the slowest. A device that is a CPU gets the slower or farther half of the
    cores. Raises `DeviceError` for one core, and `CodlError` for more threads than cores.
    """
    cores = cpu.cores
    if device.type == "gpu":
        usual, free = Placement(device.icd, cores[: cpu.near or None]), cores
    elif len(cores) < 2:
        raise DeviceError(
            f"The OpenCL device {device.name!r} is a CPU, and of the cores only "
            f"{list(cores)} may be used: two processors need two cores, or a GPU."
        )
    else:
        half = (len(cores) + 1) // 2
        usual, free = Placement(device.icd, cores[:half], cores[half:]), cores[:half]
    return usual if cpu_threads is None else usual.with_threads(cpu_threads, free)


def choose(probed: Sequence[ProbeResult], device: str | None) -> ProbedDevice:
    """Choose an OpenCL device of the probed ones, by name or by preference."""
    devices = [d for result in probed for d in result.devices]
    if not devices:
        failures = "; ".join(f"{r.icd}: {r.error.rstrip('.') or 'no device'}" for r in probed)
        tried = f" Drivers that were found failed: {failures}." if failures else ""
        where = "`codl doctor` says where drivers were looked for."
        raise DeviceError(f"No OpenCL device was found.{tried} {INSTALL_HINT} {where}")
    if device is not None:
        matching = [d for d in devices if device in (d.icd, d.name)]
        if not matching:
            names = {d.icd for d in devices} | {d.name for d in devices}
            raise UnknownNameError("OpenCL device", device, names)
        return matching[0]
    rank = {icd: index for index, icd in enumerate(PREFERRED)}
    return min(devices, key=lambda d: (d.type != "gpu", rank.get(d.icd, len(rank))))


def observe_cores(gpu: OpenClDevice) -> dict[str, list[int]]:
    """Run each side alone; the cores on which its threads were seen.

    Empty for a side that uses no core of this machine.
    """
    soc = gpu.soc
    with threads.pinned_to(soc.placement.cpu_cores):
        of_gpu = _observe_gpu(gpu) if soc.gpu.is_cpu else []
        others = gpu.worker_threads | threads.others_threads() - {get_native_id()}
        stop, observer = Event(), threads.CoreObserver(ignore=others)

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
    return {"cpu": sorted(observer.cores), "gpu": of_gpu}


def _observe_gpu(gpu: OpenClDevice) -> list[int]:
    """Sample while the device works and this thread sleeps."""
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


def busy_net(soc: LocalSoc) -> HostSession:
    """A convolution of about a millisecond on the CPU side."""
    op = parse("conv2d in=1x64x56x56 oc=64 kernel=3 pad=1")
    weights = op.weights_of(lambda shape: np.ones(shape, np.float32))
    variant = registry.variants(op, "cpu", soc)[0]
    return HostSession(pieces.net_alone([op], variant, [weights], soc), soc)


def unpinned_ratios(soc: LocalSoc, cores: Sequence[int]) -> tuple[float, ...]:
    """Latency with the CPU side's threads on all of `cores`, over that on its own, in turns.

    Each way has a calling thread of its own, whose OpenMP threads keep the cores on which they were
    made. Raises `DeviceError` for cores that this process may not use.
    """
    own = soc.placement
    wide = replace(own, cpu_cores=tuple(cores), cpu_threads=own.threads)
    check_cores(wide)
    with ExitStack() as stack:

        def turns_on(placement: Placement) -> Callable[[], float]:
            caller = stack.enter_context(ThreadPoolExecutor(1))
            net = caller.submit(busy_net, replace(soc, placement=placement)).result()
            return lambda: caller.submit(_turn_s, net).result()

        ways = {"pinned": turns_on(own), "unpinned": turns_on(wide)}
        ratios, order, begin = list[float](), list(ways), time.perf_counter()
        while len(ratios) < TURNS or time.perf_counter() - begin < TURNS_S:
            taken_s = {way: ways[way]() for way in order}
            ratios.append(taken_s["unpinned"] / taken_s["pinned"])
            order.reverse()  # neither always follows the other
    return tuple(ratios)


def _turn_s(net: HostSession) -> float:
    """Seconds of a run, after the threads of the other turn are idle."""
    threads.wait_until_idle()
    taken_s = []
    for _ in range(SETTLING + TIMED):
        begin = time.perf_counter()
        net.run()
        taken_s.append(time.perf_counter() - begin)
    return statistic.level(taken_s[SETTLING:])


def _memory_types(device: ProbedDevice) -> tuple[str, ...]:
    """Default memory types: a CPU emulates images slowly."""
    return device.memory_types if device.type == "gpu" else MEMORY_TYPES[:1]


def _gpu_side(device: ProbedDevice, cores: tuple[int, ...]) -> GpuSide:
    return GpuSide(
        platform=device.platform,
        name=device.name,
        driver=device.driver,
        type=device.type,
        compute_units=len(cores) or device.compute_units,
        max_work_group_size=device.max_work_group_size,
        wave_size=device.wave_size,
        vector_width=device.vector_width,  # type: ignore[arg-type]  # one of WIDTHS
        global_mem_cache_size=device.global_mem_cache_size,
        local_mem_bytes=device.local_mem_bytes,
        unified_memory=device.unified_memory,
        memory_types=_memory_types(device),
        max_image_width=device.max_image_width,
        max_image_height=device.max_image_height,
        fine_grained_svm=device.fine_grained_svm,
        opencl_version=device.version,
        half=device.half,
        svm=device.svm,
        max_read_images=device.max_read_images,
        vector_registers=device.vector_registers or None,
    )
