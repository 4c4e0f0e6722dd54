"""What a driver's failures mean, and what this process may still do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from codl.errors import DeviceError
from codl.runtime.cl_import import cl_module

#: The package whose errors are those of a driver.
DRIVERS = "pyopencl"
#: What OpenCL's codes say to somebody who does not know them by heart.
_MEANINGS = {
    "OUT_OF_RESOURCES": "a work-group needs more registers or local memory than the device has, "
    "or another process took them",
    "OUT_OF_HOST_MEMORY": "the host has too little memory left",
    "MEM_OBJECT_ALLOCATION_FAILURE": "the device has too little memory left",
    "INVALID_BUFFER_SIZE": "a buffer is larger than the device allows",
    "INVALID_IMAGE_SIZE": "an image is larger than the device allows",
    "INVALID_WORK_GROUP_SIZE": "a work-group is larger than the kernel allows, or does not divide "
    "the global size",
    "INVALID_WORK_ITEM_SIZE": "a work-group is longer in one dimension than the device allows",
    "INVALID_KERNEL_NAME": "the built program has no such kernel: its source defines none, or the "
    "driver's compiler lost it",
    "INVALID_KERNEL_ARGS": "an argument is missing or is not what the kernel declares",
    "DEVICE_NOT_AVAILABLE": "the device is gone, or its driver was reset",
    "INVALID_COMMAND_QUEUE": "the device is gone, or its driver was reset",
}


@contextmanager
def explained(action: str) -> Iterator[None]:
    """Turn what a driver raises inside into a `DeviceError`: what failed, the code, its meaning."""
    try:
        yield
    except Exception as error:
        if not any(kind.__module__.startswith(DRIVERS) for kind in type(error).__mro__):
            raise
        code = getattr(error, "code", None)
        reason = str(error) if code is None else describe(code)
        raise DeviceError(f"{action} failed ({reason}).") from error


def describe(code: int) -> str:
    """OpenCL's name of an error's code, such as OUT_OF_RESOURCES, and what it means."""
    name = code_name(code)
    return f"{name}: {_MEANINGS[name]}" if name in _MEANINGS else name


def code_name(code: int) -> str:
    return str(cl_module().status_code.to_string(code, "code %d"))
