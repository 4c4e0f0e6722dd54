"""Kernels with their arguments, ready to be enqueued.

Without an event they go past pyopencl, which asks the driver for one each time. An NVIDIA H200
starts the next kernel 1.9 us earlier where the one before has no event, and the host needs 3.4 us
a launch and not 4.6. On a CPU an event costs nothing, and pyopencl's call less than that by ctypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from codl.errors import DeviceError
from codl.runtime.cl_library import Error
from codl.runtime.drivers import cl_module, is_stand_in, loader

if TYPE_CHECKING:
    import pyopencl as cl

Sizes: TypeAlias = tuple[int, ...]


class BoundKernel:
    """A kernel with its arguments set, ready to be enqueued at once.

    `offset` is where it begins, of a piece of a launch. Raises `DeviceError` where the values are
    more or fewer than the arguments that it takes.
    """

    __slots__ = ("arguments", "global_size", "kernel", "local_size", "name", "offset", "values")

    def __init__(
        self,
        name: str,
        kernel: cl.Kernel,
        global_size: Sizes,
        local_size: Sizes | None,
        values: Sequence[Any],
        *,
        offset: Sizes | None = None,
    ) -> None:
        if len(values) != kernel.num_args:  # which pyopencl tells by a TypeError
            raise DeviceError(
                f"The kernel {kernel.function_name!r} of {name!r} takes {kernel.num_args} "
                f"arguments, and its launch has {len(values)}."
            )
        kernel.set_args(*values)
        self.name, self.kernel, self.offset = name, kernel, offset
        self.global_size, self.local_size = global_size, local_size
        #: Kernels do not keep their buffers alive.
        self.values = values
        sizes = ctypes.c_size_t * len(global_size)
        #: What `clEnqueueNDRangeKernel` takes behind the queue, converted once.
        self.arguments = (
            ctypes.c_void_p(kernel.int_ptr),
            ctypes.c_uint(len(global_size)),
            None if offset is None else sizes(*offset),
            sizes(*global_size),
            None if local_size is None else sizes(*local_size),
            ctypes.c_uint(0),
            None,
            None,
        )

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        return cl_module().enqueue_nd_range_kernel(
            queue, self.kernel, self.global_size, self.local_size, self.offset
        )

    def check(self, device: cl.Device) -> None:
        """Refuse what the device would not launch; raises `DeviceError` with wanted and allowed.

        Only now that the kernel is built does the driver tell what it needs.
        """
        info, kernel, local = cl_module().kernel_work_group_info, self.kernel, self.local_size
        used = kernel.get_work_group_info(info.LOCAL_MEM_SIZE, device)
        if used > device.local_mem_size:
            raise DeviceError(
                f"The kernel {self.name!r} needs {used} bytes of local memory, {device.name} has "
                f"{device.local_mem_size}."
            )
        if local is None:
            return
        allowed = kernel.get_work_group_info(info.WORK_GROUP_SIZE, device)
        longest = device.max_work_item_sizes
        if prod(local) > allowed or any(
            wanted > most for wanted, most in zip(local, longest, strict=False)
        ):
            raise DeviceError(
                f"The kernel {self.name!r} wants work-groups of {_product(local)}, "
                f"{device.name} allows it {allowed} work-items, {_product(longest)} at most."
            )
        if any(n % size for n, size in zip(self.global_size, local, strict=True)):
            raise DeviceError(
                f"The kernel {self.name!r} wants work-groups of {_product(local)}, which do "
                f"not divide its {_product(self.global_size)} work-items."
            )


def _product(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def enqueue_function(queue: cl.CommandQueue, *, is_cpu: bool) -> Callable[..., int] | None:
    """`clEnqueueNDRangeKernel` past pyopencl; None where pyopencl's way is the faster one.

    A CPU's driver makes events for next to nothing, and Intel's takes longer over kernels without.
    pyopencl's call takes the host half a microsecond less than one by ctypes.
    """
    if is_stand_in():
        function: Callable[..., int] = queue.enqueue_with_event if is_cpu else queue.enqueue
        return function
    return None if is_cpu else _function_of_loader()


@cache
def _function_of_loader() -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = loader().calls.clEnqueueNDRangeKernel
    except Error:
        return None
    return function
