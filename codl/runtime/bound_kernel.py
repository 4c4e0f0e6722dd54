"""Kernels with their arguments, ready to be enqueued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from codl.errors import DeviceError
from codl.kernels.base import ApartArg, Arg, ConstantArg, Launch, ScratchArg, TensorArg
from codl.runtime import cl_enqueue as launch
from codl.runtime.cl_import import cl_module

if TYPE_CHECKING:
    import pyopencl as cl

    from codl.ir import Region
    from codl.runtime.memory import GpuTensor


@dataclass(frozen=True)
class Arguments:
    """What the arguments of a plan's launches stand for: tensors and their regions, and memory."""

    tensors: Mapping[TensorArg, tuple[GpuTensor, Region]]
    constants: Mapping[str, cl.MemoryObject]
    scratch: Mapping[str, cl.MemoryObject]

    @property
    def images(self) -> int:
        """Of the regions; those of one image are read again for every image of the others."""
        return max((region.images.size for _, region in self.tensors.values()), default=1)

    def values(self, shape: Launch, image: int) -> list[Any]:
        """The values that a kernel gets which computes from this image on."""
        return [value for arg in shape.args for value in self._values(arg, image + shape.image)]

    def _values(self, arg: Arg, image: int) -> Sequence[Any]:
        if isinstance(arg, TensorArg):
            tensor, region = self.tensors[arg]
            return tensor.view(region, image if region.images.size > 1 else 0)
        if isinstance(arg, ConstantArg):
            return [self.constants[arg.name]]
        if isinstance(arg, ScratchArg):
            return [self.scratch[arg.name]]
        if isinstance(arg, ApartArg):
            tensor, region = self.tensors[arg.tensor]
            return [np.int32(tensor.image_stride if region.images.size > 1 else 0)]
        return [np.float32(arg) if isinstance(arg, float) else np.int32(arg)]


class BoundKernel:
    """A kernel with its arguments set, ready to be enqueued at once."""

    __slots__ = ("_buffers", "_global", "_local", "arguments", "kernel", "name")

    def __init__(
        self,
        name: str,
        kernel: cl.Kernel,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        values: Sequence[Any],
    ) -> None:
        kernel.set_args(*values)
        self.name = name
        self.kernel = kernel
        self._global, self._local = global_size, local_size
        self.arguments = launch.arguments(kernel, self._global, self._local)
        # Kernels do not keep their buffers alive.
        self._buffers = values

    @property
    def constants(self) -> list[cl.MemoryObject]:
        """The memory that is only read: weights."""
        cl = cl_module()
        objects = [value for value in self._buffers if isinstance(value, cl.MemoryObject)]
        return [value for value in objects if value.flags & cl.mem_flags.READ_ONLY]

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        return cl_module().enqueue_nd_range_kernel(queue, self.kernel, self._global, self._local)

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
