"""Probing of OpenCL drivers without a SoC: load one, and run a kernel on each of its devices."""

from __future__ import annotations

import os
from platform import machine
from typing import TYPE_CHECKING, Any

import numpy as np

from codl.errors import DeviceError
from codl.machine.driver_search import find_driver
from codl.machine.placement import ProbedDevice
from codl.runtime import drivers
from codl.runtime.drivers import (
    TARGET,
    TARGET_FLOATS,
    build_program,
    cl_module,
    make_kernel,
    needs_stand_in,
)

if TYPE_CHECKING:
    import pyopencl as cl

#: Value of CL_PLATFORM_NOT_FOUND_KHR.
NO_PLATFORM = -1001


def _platforms(name: str) -> list[cl.Platform]:
    """The platforms of a driver; raises `DeviceError` for one unknown or without platforms."""
    wanted = find_driver(name)
    with drivers.loaded([wanted], cores=()):
        needs_stand_in(wanted)
        with drivers.as_device_error(f"Asking {wanted.library} for its platforms"):
            try:
                platforms = list(cl_module().get_platforms())
            except cl_module().Error as error:
                if error.code != NO_PLATFORM:
                    raise
                platforms = []
    # pyopencl adds an installed Oclgrind to other drivers; a simulator is no device.
    platforms = [p for p in platforms if p.name.strip() != "Oclgrind" or "oclgrind" in name]
    if not platforms:
        raise DeviceError(
            f"{wanted.library} was loaded and has no platform: is its device there, and may this "
            "user open it?"
        )
    return platforms


#: Possible numbers of floats in a CPU's vector.
WIDTHS = (4, 8, 16)
#: A trivial kernel. After its items it writes the vector width in floats of the x86 CPU it was
#: compiled for, by the compiler's macros, or 0.
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


def look(name: str) -> list[ProbedDevice]:
    """Load a driver and run a kernel on each of its devices, in a process for this purpose alone.

    A driver may crash the process, which loads no other. Raises `DeviceError` for an unknown one.
    """
    devices = []
    for platform in _platforms(name):
        for device in platform.get_devices():
            cl = cl_module()
            context = cl.Context([device])
            queue, program = cl.CommandQueue(context), cl.Program(context, SOURCE)
            build_program(program, ())
            kernel, out = make_kernel(program, "probe"), np.zeros(ITEMS + 1, np.int32)
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
        fine_grained_svm=shares_memory(device),
        half="cl_khr_fp16" in device.extensions.split(),
        vector_registers=vector_registers(width, machine()) if is_cpu else 0,
    )


def compiled_width(native: int, compiled: int = 0) -> int:
    """Floats in a CPU kernel's vector: the driver's native width, limited by its compiler's.

    `compiled` is the width that the compiler has instructions for, or 0 if unknown. A compiler may
    be older than the CPU: PoCL with LLVM 14 reports vectors of 16 on a Zen 4 and compiles for a Zen
    3, where such programs lose their kernels and builds never end. Intel's runtime reports its
    native width even if set to compile for another CPU.
    """
    held = TARGET_FLOATS.get(os.environ.get(TARGET, ""), native)
    return min(held, compiled or native, native) if native in WIDTHS else WIDTHS[0]


def vector_registers(width: int, architecture: str) -> int:
    """Vector registers of a CPU (AVX-512 if `width` is 16 on x86); 0 if unknown."""
    if architecture in ("x86_64", "AMD64"):
        return 32 if width == WIDTHS[-1] else 16
    return {"aarch64": 32, "arm64": 32, "armv7l": 16}.get(architecture, 0)


def shares_memory(device: Any) -> bool:
    """Whether host and kernels may use memory at the same time; never before OpenCL 2.0."""
    levels = cl_module().device_svm_capabilities
    try:
        able = device.svm_capabilities
    except cl_module().Error:
        return False
    return bool(able & (levels.FINE_GRAIN_BUFFER | levels.FINE_GRAIN_SYSTEM))
