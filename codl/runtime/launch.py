"""Kernels with their arguments, ready to be enqueued.

Without an event they go past pyopencl, which asks the driver for one each time. An NVIDIA H200
starts the next kernel 1.9 us earlier where the one before has no event, and the host needs 3.4 us
a launch and not 4.6.

Under limits a launch that is too long runs in pieces, which together have each of its work-items
once. `get_global_id` counts on from a launch's offset. `get_group_id`, `get_num_groups` and
`get_global_size` do not: they answer for the piece. A kernel that asks for them is compiled for
its launch, with answers for the whole of it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from codl.errors import DeviceError
from codl.runtime.drivers import cl_module

if TYPE_CHECKING:
    import pyopencl as cl


#: What answers for a piece, and what of it there is no answer for without a work-group's size.
BY_PIECE = re.compile(r"\bget_(group_id|num_groups|global_size)\b")
BY_GROUP = re.compile(r"\bget_(group_id|num_groups|local_id|local_size|local_linear_id)\b")
#: What no answer is made for.
UNKNOWN = re.compile(r"\bget_(global_linear_id|global_offset|enqueued_local_size)\b")

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """Where a piece begins, and its size, in work-items."""

    offset: Sizes
    size: Sizes


def cut(global_size: Sizes, local_size: Sizes | None, count: int) -> list[Piece]:
    """About `count` pieces of a launch, of whole work-groups; fewer where it has no more of those.

    The outermost dimension is cut first, since work-items that differ there alone share the least;
    a further one only where the groups along that are too few.
    """
    group = local_size or (1,) * len(global_size)
    bounds: list[list[tuple[int, int]]] = []
    left = count
    for size, step in zip(reversed(global_size), reversed(group), strict=True):
        groups = size // step
        parts = max(1, min(left, groups))
        left = ceil(left / parts)
        ends = [groups * part // parts * step for part in range(parts + 1)]
        bounds.insert(0, [(a, b - a) for a, b in pairwise(ends)])
    # In the order of the whole: the outermost dimension changes last.
    every = (tuple(reversed(own)) for own in product(*reversed(bounds)))
    return [Piece(tuple(at for at, _ in own), tuple(n for _, n in own)) for own in every]


def most(global_size: Sizes, local_size: Sizes | None) -> int:
    """How many pieces a launch can have: its work-groups."""
    return prod(global_size) // prod(local_size or (1,))


def refusal(text: str, local_size: Sizes | None) -> str | None:
    """Why a kernel cannot be split that is in a program of this text; None where it can."""
    found = UNKNOWN.search(text)
    if found is None and local_size is None:
        found = BY_GROUP.search(text)
    return None if found is None else f"its source asks for {found[0]}"


def for_pieces(text: str, global_size: Sizes, local_size: Sizes | None) -> str:
    """The text of a program whose work-items see the whole launch from each piece of it."""
    if not BY_PIECE.search(text):
        return text
    groups = [n // step for n, step in zip(global_size, local_size or global_size, strict=True)]
    return (
        "#define get_group_id(d) ((get_global_id(d) - get_local_id(d)) / get_local_size(d))\n"
        f"#define get_global_size(d) {_by_dimension(global_size)}\n"
        f"#define get_num_groups(d) {_by_dimension(groups)}\n{text}"
    )


def _by_dimension(sizes: Sequence[int]) -> str:
    chosen = "1"
    for number, size in reversed(list(enumerate(sizes))):
        chosen = f"(d) == {number} ? {size} : {chosen}"
    return f"((size_t)({chosen}))"


class BoundKernel:
    """A kernel with its arguments set, ready to be enqueued at once.

    Raises `DeviceError` where they are more or fewer than it takes.
    """

    __slots__ = ("_buffers", "_global", "_local", "arguments", "kernel", "name", "offset")

    def __init__(
        self,
        name: str,
        kernel: cl.Kernel,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        values: Sequence[Any],
        *,
        offset: tuple[int, ...] | None = None,
    ) -> None:
        if len(values) != kernel.num_args:  # which pyopencl tells by a TypeError
            raise DeviceError(
                f"The kernel {kernel.function_name!r} of {name!r} takes {kernel.num_args} "
                f"arguments, and its launch has {len(values)}."
            )
        kernel.set_args(*values)
        self.name = name
        self.kernel = kernel
        self._global, self._local = global_size, local_size
        #: Where it begins, of a piece.
        self.offset = offset
        self.arguments = _arguments(kernel, self._global, self._local, offset)
        # Kernels do not keep their buffers alive.
        self._buffers = values

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        return cl_module().enqueue_nd_range_kernel(
            queue, self.kernel, self._global, self._local, self.offset
        )

    def pieces(self, count: int) -> list[BoundKernel]:
        """The same in about so many launches; see `codl.runtime.bound_kernel`."""
        cuts = cut(self._global, self._local, count)
        return [
            BoundKernel(self.name, self.kernel, p.size, self._local, self._buffers, offset=p.offset)
            for p in cuts
        ]

    def check(self, device: cl.Device) -> None:
        """Refuse what the device would not launch; raises `DeviceError` with wanted and allowed.

        Only now that the kernel is built does the driver tell what it needs.
        """
        info, kernel = cl_module().kernel_work_group_info, self.kernel
        used = kernel.get_work_group_info(info.LOCAL_MEM_SIZE, device)
        if used > device.local_mem_size:
            raise DeviceError(
                f"The kernel {self.name!r} needs {used} bytes of local memory, {device.name} has "
                f"{device.local_mem_size}."
            )
        if self._local is None:
            return
        allowed = kernel.get_work_group_info(info.WORK_GROUP_SIZE, device)
        longest = device.max_work_item_sizes
        if prod(self._local) > allowed or any(
            wanted > most for wanted, most in zip(self._local, longest, strict=False)
        ):
            raise DeviceError(
                f"The kernel {self.name!r} wants work-groups of {_sizes(self._local)}, "
                f"{device.name} allows it {allowed} work-items, {_sizes(longest)} at most."
            )
        if any(n % size for n, size in zip(self._global, self._local, strict=True)):
            raise DeviceError(
                f"The kernel {self.name!r} wants work-groups of {_sizes(self._local)}, which do "
                f"not divide its {_sizes(self._global)} work-items."
            )


def _sizes(sizes: Sequence[int]) -> str:
    return "x".join(str(size) for size in sizes)


def _arguments(
    kernel: cl.Kernel,
    global_size: Sequence[int],
    local_size: Sequence[int] | None,
    offset: Sequence[int] | None,
) -> tuple[Any, ...]:
    """What `clEnqueueNDRangeKernel` takes behind the queue, converted once."""
    sizes = ctypes.c_size_t * len(global_size)
    return (
        ctypes.c_void_p(kernel.int_ptr),
        ctypes.c_uint(len(global_size)),
        None if offset is None else sizes(*offset),
        sizes(*global_size),
        None if local_size is None else sizes(*local_size),
        ctypes.c_uint(0),
        None,
        None,
    )


@cache
def enqueue_function() -> Callable[..., int] | None:
    """`clEnqueueNDRangeKernel` of the loader that pyopencl uses; None where it does not show it."""
    try:
        library = ctypes.CDLL(cl_module()._cl.__file__)
        function: Callable[..., int] = library.clEnqueueNDRangeKernel
    except (AttributeError, OSError):
        return None
    return function


def pointer(queue: cl.CommandQueue) -> ctypes.c_void_p:
    return ctypes.c_void_p(queue.int_ptr)
