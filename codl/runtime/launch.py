"""Kernels with their arguments, ready to be enqueued.

Launches without an event bypass pyopencl, which always makes an event. Without events, an NVIDIA
H200 starts the next kernel 1.9 us earlier, and the host needs 3.4 us per launch instead of 4.6. On
a CPU an event costs nothing, and pyopencl's call is faster than one by ctypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from codl.errors import DeviceError
from codl.runtime.drivers import cl_module, is_stand_in, loader

if TYPE_CHECKING:
    import pyopencl as cl

Sizes: TypeAlias = tuple[int, ...]
Call: TypeAlias = Callable[[], object]


class BoundKernel:
    """A kernel with its arguments set, ready to be enqueued.

    `offset` is a piece's first work-item. Raises `DeviceError` for a wrong number of values.
    """

    __slots__ = (
        *("_calls", "_converted", "_queue", "global_size", "kernel", "local_size"),
        *("name", "offset", "values"),
    )

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
        if len(values) != kernel.num_args:  # a TypeError in pyopencl
            raise DeviceError(
                f"The kernel {kernel.function_name!r} of {name!r} takes {kernel.num_args} "
                f"arguments, and its launch has {len(values)}."
            )
        kernel.set_args(*values)
        self.name, self.kernel, self.offset = name, kernel, offset
        self.global_size, self.local_size = global_size, local_size
        #: Kept here, as kernels do not keep their buffers alive.
        self.values = values
        self._converted: tuple[Any, ...] | None = None
        self._queue: cl.CommandQueue | None = None
        self._calls: tuple[Call, ...] = ()

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        return self.with_event(queue)()

    def with_event(self, queue: cl.CommandQueue) -> Callable[[], cl.Event]:
        """A function that enqueues the kernel with an event, without further look-ups."""
        if is_stand_in():
            return partial(queue.launch, self._arguments())
        sizes = self.global_size, self.local_size, self.offset
        return partial(cl_module().enqueue_nd_range_kernel, queue, self.kernel, *sizes)

    def calls(self, queue: cl.CommandQueue, *, is_cpu: bool) -> tuple[Call, ...]:
        """Functions that enqueue the kernel without an event, cached for the present queue."""
        if self._queue is not queue:
            function, event = enqueue_function(queue, is_cpu=is_cpu), c_void_p()
            if function is None:
                self._calls = (self.with_event(queue),)
            elif not is_cpu:
                self._calls = (partial(function, *self._arguments(), None),)
            else:
                release = partial(queue.calls.clReleaseEvent, event)
                self._calls = partial(function, *self._arguments(), byref(event)), release
            self._queue = queue
        return self._calls

    def _arguments(self) -> tuple[Any, ...]:
        """Arguments of the driver's function, converted once."""
        if self._converted is None:
            from codl.runtime.cl_library import launch_arguments  # pyopencl converts its own

            sizes = self.global_size, self.local_size, self.offset
            self._converted = launch_arguments(self.kernel.int_ptr, *sizes)
        return self._converted

    def check(self, device: cl.Device) -> None:
        """Raise `DeviceError` if the built kernel needs more than the device allows."""
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


def enqueue_function(queue: cl.CommandQueue, *, is_cpu: bool) -> Callable[..., object] | None:
    """The loader's `clEnqueueNDRangeKernel` for a queue; None if pyopencl's call is faster.

    pyopencl is faster on a CPU: events cost its drivers almost nothing, and Intel's driver takes
    longer for launches without them.
    """
    if is_stand_in():
        function: Callable[..., object] = queue.enqueue
        return function
    if is_cpu:
        return None
    from codl.runtime.cl_library import Error

    try:
        call = loader().calls.clEnqueueNDRangeKernel
    except Error:
        return None
    return partial(call, c_void_p.from_param(queue.int_ptr))
