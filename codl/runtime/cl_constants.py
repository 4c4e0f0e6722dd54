"""OpenCL's constants, and what its objects tell, under the names that pyopencl has for them."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_size_t, c_uint32, c_uint64
from types import SimpleNamespace
from typing import Any, TypeAlias

from codl.runtime.cl_library import CODES, NAMES


def _bits(first: int, names: str) -> dict[str, int]:
    """Flags, one bit each from a first one on; a dash leaves one out."""
    return {n: 1 << first + at for at, n in enumerate(names.split()) if n != "-"}


def _numbers(first: int, names: str) -> dict[str, int]:
    return {name: first + at for at, name in enumerate(names.split()) if name != "-"}


_MEMORY = _bits(0, "READ_WRITE WRITE_ONLY READ_ONLY USE_HOST_PTR ALLOC_HOST_PTR COPY_HOST_PTR")
mem_flags = SimpleNamespace(**_MEMORY)
svm_mem_flags = SimpleNamespace(**_MEMORY, **_bits(10, "SVM_FINE_GRAIN_BUFFER SVM_ATOMICS"))
map_flags = SimpleNamespace(**_bits(0, "READ WRITE WRITE_INVALIDATE_REGION"))
device_type = SimpleNamespace(**_bits(0, "DEFAULT CPU GPU ACCELERATOR CUSTOM"), ALL=0xFFFFFFFF)
device_svm_capabilities = SimpleNamespace(
    **_bits(0, "COARSE_GRAIN_BUFFER FINE_GRAIN_BUFFER FINE_GRAIN_SYSTEM ATOMICS")
)
command_queue_properties = SimpleNamespace(
    **_bits(0, "OUT_OF_ORDER_EXEC_MODE_ENABLE PROFILING_ENABLE")
)
command_execution_status = SimpleNamespace(**_numbers(0, "COMPLETE RUNNING SUBMITTED QUEUED"))
channel_order = SimpleNamespace(**_numbers(0x10B0, "R A RG RA RGB RGBA"))
channel_type = SimpleNamespace(**_numbers(0x10DD, "HALF_FLOAT FLOAT"))
mem_object_type = SimpleNamespace(**_numbers(0x10F0, "BUFFER IMAGE2D"))
program_info = SimpleNamespace(**_numbers(0x1165, "BINARY_SIZES BINARIES"))
program_build_info = SimpleNamespace(LOG=0x1183)
kernel_work_group_info = SimpleNamespace(
    **_numbers(0x11B0, "WORK_GROUP_SIZE COMPILE_WORK_GROUP_SIZE LOCAL_MEM_SIZE"),
    **_numbers(0x11B3, "PREFERRED_WORK_GROUP_SIZE_MULTIPLE PRIVATE_MEM_SIZE"),
)
status_code = SimpleNamespace(
    **CODES, to_string=lambda code, unknown="<unknown %d>": NAMES.get(code) or unknown % code
)

#: Information by the attribute that gives it: its number, and its type.
Infos: TypeAlias = Mapping[str, tuple[int, Any]]
PLATFORM: Infos = {
    "version": (0x0901, str),
    "name": (0x0902, str),
    "vendor": (0x0903, str),
    "extensions": (0x0904, str),
}
DEVICE: Infos = {
    "type": (0x1000, c_uint64),
    "max_compute_units": (0x1002, c_uint32),
    "max_work_group_size": (0x1004, c_size_t),
    "max_work_item_sizes": (0x1005, [c_size_t]),
    "max_clock_frequency": (0x100C, c_uint32),
    "max_read_image_args": (0x100E, c_uint32),
    "max_mem_alloc_size": (0x1010, c_uint64),
    "image2d_max_width": (0x1011, c_size_t),
    "image2d_max_height": (0x1012, c_size_t),
    "image_support": (0x1016, c_uint32),
    "max_parameter_size": (0x1017, c_size_t),
    "global_mem_cache_size": (0x101E, c_uint64),
    "global_mem_size": (0x101F, c_uint64),
    "max_constant_buffer_size": (0x1020, c_uint64),
    "local_mem_type": (0x1022, c_uint32),
    "local_mem_size": (0x1023, c_uint64),
    "name": (0x102B, str),
    "vendor": (0x102C, str),
    "driver_version": (0x102D, str),
    "version": (0x102F, str),
    "extensions": (0x1030, str),
    "half_fp_config": (0x1033, c_uint64),
    "host_unified_memory": (0x1035, c_uint32),
    "native_vector_width_float": (0x103A, c_uint32),
    "native_vector_width_half": (0x103C, c_uint32),
    "opencl_c_version": (0x103D, str),
    "svm_capabilities": (0x1053, c_uint64),
    "compute_capability_major_nv": (0x4000, c_uint32),
    "compute_capability_minor_nv": (0x4001, c_uint32),
}
KERNEL: Infos = {"function_name": (0x1190, str), "num_args": (0x1191, c_uint32)}
MEMORY: Infos = {"type": (0x1100, c_uint32), "size": (0x1102, c_size_t)}
#: Of an event, how far its command is.
STATUS = 0x11D3
PROFILE: Infos = {
    name: (0x1280 + at, c_uint64) for at, name in enumerate(("queued", "submit", "start", "end"))
}
