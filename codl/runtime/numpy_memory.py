"""An executable's memory in NumPy: tensors in blocks, planes and images of texels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir.executable import Access, Executable
from codl.ir.executable_states import state_tensors
from codl.ir.ops.base import Array
from codl.ir.region import Region
from codl.ir.tensor import Tensor

#: All bits set are not-a-number in float32 and in float16.
SPOILT = 0xFF


class Memory:
    """Every buffer as bytes. What is read and written are regions, shaped nchw.

    With `poisoned` memory, that of states apart, begins as not-a-numbers, and to read one is an
    error: nothing was written there, or what was is lost. Otherwise it begins as zeros, as on a
    device.
    """

    def __init__(self, executable: Executable, *, poisoned: bool = False) -> None:
        self._tensors, self._is_poisoned = executable.tensors, poisoned
        try:
            self._bytes = [np.zeros(one.bytes, np.uint8) for one in executable.buffers]
        except MemoryError as error:
            total = sum(one.bytes for one in executable.buffers)
            raise CodlError(f"The buffers take {total:,} bytes, which are not there.") from error
        kept = {self._tensors[number].buffer for number in state_tensors(executable).values()}
        for number in range(len(self._bytes) if poisoned else 0):
            if number not in kept:
                self.spoil(number)

    def read(self, access: Access, at: str) -> NDArray[np.float64]:
        """A region; raises `CodlError` with the place `at` where poisoned memory has nothing."""
        tensor = self._tensors[access.tensor]
        values = _elements(self._typed(tensor), tensor)[places(tensor, access.region)]
        ordered = np.ascontiguousarray(values.swapaxes(0, 1), np.float64)
        if self._is_poisoned and np.isnan(ordered).any():
            raise CodlError(f"{at} reads {tensor.name} ({access.region}): it was not all written.")
        return ordered

    def write(self, access: Access, values: NDArray[Any]) -> None:
        """Overwrite a region; the lanes beyond the last channel become zeros.

        Raises `CodlError` for another number of values.
        """
        tensor, region = self._tensors[access.tensor], access.region
        if np.size(values) != region.shape(tensor.shape).elements:
            raise CodlError(f"{np.size(values)} values are written to {tensor.name} ({region}).")
        elements = _elements(self._typed(tensor), tensor)
        shaped = np.asarray(values).reshape(region.shape(tensor.shape))
        with np.errstate(over="ignore"):  # as a device rounds to float16
            elements[places(tensor, region)] = shaped.swapaxes(0, 1)
        held = tensor.held.channels
        if region.channels.stop == held.stop:
            images, _, rows = region.within(tensor.held)
            beyond = slice(held.size % tensor.block or tensor.block, None)
            elements[slice(*images), -1, slice(*rows), :, beyond] = 0

    def view(self, number: int) -> Array:
        """All of a planar float32 tensor, in place."""
        tensor = self._tensors[number]
        view: Array = self._typed(tensor).reshape(tensor.held.shape(tensor.shape))
        return view

    def spoil(self, buffer: int) -> None:
        """What a buffer held is lost."""
        self._bytes[buffer][:] = SPOILT

    def _typed(self, tensor: Tensor) -> NDArray[Any]:
        """The elements of a tensor, one after the other."""
        typed: NDArray[Any] = self._bytes[tensor.buffer][: tensor.bytes].view(
            tensor.storage.element
        )
        return typed


def _elements(flat: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    """A tensor's elements as (images, blocks, rows, columns, lanes of a block), in place."""
    images, rows = tensor.held.images.size, tensor.held.rows.size
    if tensor.storage.layout == "image":
        texels = flat.reshape(images, rows, tensor.blocks, tensor.shape.w, tensor.block)
        elements: NDArray[Any] = texels.swapaxes(1, 2)
        return elements
    return flat.reshape(images, tensor.blocks, rows, tensor.shape.w, tensor.block)


def places(tensor: Tensor, region: Region) -> tuple[Any, ...]:
    """What takes a region from `_elements`, as (channels, images, rows, columns)."""
    images, channels, rows = region.within(tensor.held)
    at = np.arange(*channels)
    return slice(*images), at // tensor.block, slice(*rows), slice(None), at % tensor.block
