"""Probes of OpenCL drivers without a SoC: each is loaded and runs a kernel on each of its devices;
and a bare device, to measure what it is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from platform import machine
from typing import TYPE_CHECKING, Any

import numpy as np

from codl.errors import DeviceError, UnknownNameError
from codl.records.soc_facts import SVM_LEVELS
from codl.runtime import drivers
from codl.runtime.driver_search import entry_of, find_driver
from codl.runtime.drivers import TARGET, TARGET_FLOATS, build_program, cl_module, make_kernel

if TYPE_CHECKING:
    import pyopencl as cl

#: CL_PLATFORM_NOT_FOUND_KHR.
NO_PLATFORM = -1001


def platforms_of(driver: str) -> list[cl.Platform]:
    """The platforms of a driver, which is loaded; no other can be afterwards, in this process.

    A driver may take the process down. Raises `DeviceError` where there is no such driver, or where
    it gives no platform.
    """
    wanted = find_driver(driver)
    with drivers.loaded([wanted], cores=()):
        entry_of(wanted)
        with drivers.as_device_error(f"Asking {wanted.library} for its platforms"):
            platforms = _platforms()
    # pyopencl adds an installed Oclgrind to whatever else is loaded; a simulator is no device.
    platforms = [p for p in platforms if p.name.strip() != "Oclgrind" or "oclgrind" in driver]
    if not platforms:
        raise DeviceError(
            f"{wanted.library} was loaded and has no platform: is its device there, and may this "
            "user open it?"
        )
    return platforms


def _platforms() -> list[cl.Platform]:
    """Those of all drivers that are loaded; none where the loader says that there are none."""
    cl = cl_module()
    try:
        return list(cl.get_platforms())
    except cl.Error as error:
        if error.code == NO_PLATFORM:
            return []
        raise


class BareDevice:
    """A device with a context, and a queue whose events tell when they ran."""

    def __init__(self, device: cl.Device) -> None:
        cl = cl_module()
        self.device = device
        self.context = cl.Context([device])
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(self.context, properties=profiling)

    @classmethod
    def open(cls, driver: str, name: str) -> BareDevice:
        """A device of a driver by its name; raises `UnknownNameError` where there is none."""
        devices = [d for platform in platforms_of(driver) for d in platform.get_devices()]
        for device in devices:
            if device.name.strip() == name:
                return cls(device)
        raise UnknownNameError("OpenCL device", name, [d.name.strip() for d in devices])

    def kernel(self, source: str, name: str, options: tuple[str, ...] = ()) -> Any:
        """A kernel of a source text."""
        program = cl_module().Program(self.context, source)
        build_program(program, options)
        return make_kernel(program, name)


#: What a CPU's vectors may hold, in floats.
WIDTHS = (4, 8, 16)
#: A trivial kernel; behind the items it leaves the floats in the vectors of the x86 CPU that it was
#: compiled for, which the compiler's own macros tell, or 0.
SOURCE = """
#if defined(__AVX512F__)
#define FLOATS 16
#elif defined(__AVX__)
#define FLOATS 8
#elif defined(__SSE__)
#define FLOATS 4
#else
#define FLOATS 0
#endif
kernel void probe(global int *out) {
    out[get_global_id(0)] = get_global_id(0);
    if (get_global_id(0) == 0) out[get_global_size(0)] = FLOATS;
}
"""
ITEMS = 64


@dataclass(frozen=True)
class ProbedDevice:
    """One OpenCL device as its driver describes it, and whether a kernel ran on it."""

    icd: str
    platform: str
    name: str
    type: str
    version: str
    driver: str
    compute_units: int
    max_work_group_size: int
    wave_size: int
    vector_width: int
    global_mem_cache_size: int
    local_mem_bytes: int
    unified_memory: bool
    memory_types: tuple[str, ...]
    extensions: tuple[str, ...]
    max_image_width: int = 0
    max_image_height: int = 0
    fine_grained_svm: bool = False
    #: Of `codl.records.soc.SVM_LEVELS`; then whether kernels may compute in `half`.
    svm: str = "none"
    half: bool = False
    max_read_images: int = 0
    #: Of a device that is a CPU; 0 where that is not known.
    vector_registers: int = 0


@dataclass(frozen=True)
class ProbeResult:
    """The devices of one driver, or why there are none.

    `file` is what named it, an ICD file or the library itself; `is_guess` as in `Driver`.
    """

    icd: str
    devices: tuple[ProbedDevice, ...] = ()
    error: str = ""
    file: str = ""
    is_guess: bool = False


def look(name: str) -> list[ProbedDevice]:
    """Load a driver and run a kernel on each of its devices.

    A driver may take the process down, and no other can be loaded afterwards: this is for a process
    that does nothing else. Raises `DeviceError` where there is no such driver.
    """
    devices = []
    for platform in platforms_of(name):
        for device in platform.get_devices():
            cl = cl_module()
            context = cl.Context([device])
            queue = cl.CommandQueue(context)
            program = cl.Program(context, SOURCE)
            build_program(program, ())
            kernel = make_kernel(program, "probe")
            out = np.zeros(ITEMS + 1, np.int32)
            buffer = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, out.nbytes)
            kernel.set_args(buffer)
            cl.enqueue_nd_range_kernel(queue, kernel, (ITEMS,), None)
            cl.enqueue_copy(queue, out, buffer)
            if not np.array_equal(out[:ITEMS], np.arange(ITEMS)):
                raise RuntimeError(f"{device.name}: a trivial kernel gave a wrong result")
            devices.append(_describe(name, platform, device, kernel, compiled=int(out[ITEMS])))
    return devices


def _describe(icd: str, platform: Any, device: Any, kernel: Any, *, compiled: int) -> ProbedDevice:
    cl = cl_module()
    is_cpu = bool(device.type & cl.device_type.CPU)
    multiple = kernel.get_work_group_info(
        cl.kernel_work_group_info.PREFERRED_WORK_GROUP_SIZE_MULTIPLE, device
    )
    svm = svm_level(device)
    width = compiled_width(device.native_vector_width_float, compiled) if is_cpu else 4
    return ProbedDevice(
        icd=icd,
        platform=platform.name.strip(),
        name=device.name.strip(),
        type="cpu" if is_cpu else "gpu",
        version=device.version.strip(),
        driver=device.driver_version,
        compute_units=device.max_compute_units,
        max_work_group_size=device.max_work_group_size,
        wave_size=1 if is_cpu else multiple,
        vector_width=width,
        global_mem_cache_size=device.global_mem_cache_size,
        local_mem_bytes=device.local_mem_size,
        unified_memory=bool(device.host_unified_memory),
        memory_types=("buffer", *(["image2d"] if device.image_support else [])),
        extensions=tuple(device.extensions.split()),
        max_image_width=device.image2d_max_width if device.image_support else 0,
        max_image_height=device.image2d_max_height if device.image_support else 0,
        fine_grained_svm=svm in SVM_LEVELS[2:],
        svm=svm,
        half="cl_khr_fp16" in device.extensions.split(),
        max_read_images=device.max_read_image_args if device.image_support else 0,
        vector_registers=vector_registers(width, machine()) if is_cpu else 0,
    )


def compiled_width(native: int, compiled: int = 0) -> int:
    """Floats in the vectors of a CPU's kernels: the driver's native ones, and no more than its
    compiler has instructions for, where that tells it (`compiled` is not 0).

    A driver may look at the CPU, and its compiler be too old to know it: PoCL with LLVM 14 claims
    vectors of 16 on a Zen 4 and compiles for a Zen 3. Vectors of 16 go wrong there: programs lose
    their kernels, and builds never end. Intel's runtime may be told to compile for another CPU, and
    says the same all the same.
    """
    held = TARGET_FLOATS.get(os.environ.get(TARGET, ""), native)
    return min(held, compiled or native, native) if native in WIDTHS else WIDTHS[0]


def vector_registers(width: int, architecture: str) -> int:
    """The vector registers of a CPU's instruction set; 0 of one that is not known here.

    Vectors of 16 floats are AVX-512's on x86; narrower ones may be those of any x86 CPU.
    """
    if architecture in ("x86_64", "AMD64"):
        return 32 if width == WIDTHS[-1] else 16
    return {"aarch64": 32, "arm64": 32, "armv7l": 16}.get(architecture, 0)


def svm_level(device: Any) -> str:
    """What memory host and kernels may share, of `SVM_LEVELS`; OpenCL 1.2 cannot be asked."""
    cl = cl_module()
    try:
        told = device.svm_capabilities
    except cl.Error:
        return SVM_LEVELS[0]
    levels = {level: getattr(cl.device_svm_capabilities, level.upper()) for level in SVM_LEVELS[1:]}
    return next((level for level in reversed(levels) if told & levels[level]), SVM_LEVELS[0])
