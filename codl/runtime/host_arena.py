"""The CPU's arrays of one engine: tensors take memory in turns, as they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from codl.ir import Array, Region, Shape
from codl.ir.types import PLANAR
from codl.runtime.memory import GpuTensor, seen_zeros
from codl.runtime.ncnn_net import Home, aligned_zeros
from codl.runtime.opencl import OpenClDevice

if TYPE_CHECKING:
    import pyopencl as cl


@dataclass(frozen=True)
class Slot:
    """Floats in a row, and the same memory as the GPU sees it, where it does."""

    array: Array
    seen: cl.SVM | None


class HomePool:
    """Slots that are free, and the homes that others are."""

    def __init__(self, gpu: OpenClDevice) -> None:
        self._gpu = gpu
        self._free: list[Slot] = []
        self._taken: dict[str, Slot] = {}
        #: All that was ever allocated.
        self.bytes = 0

    def take(
        self, name: str, shape: Shape, held: Region, *, seen: bool
    ) -> tuple[Home, GpuTensor | None]:
        """A home of a region of the tensor `name`, and the GPU's sight of it where it is `seen`.

        In the smallest slot that is free and large enough, or a new one.
        """
        part = held.shape(shape)
        fitting = [
            slot
            for slot in self._free
            if (slot.seen is not None) == seen and slot.array.size >= part.elements
        ]
        if fitting:
            slot = min(fitting, key=lambda slot: slot.array.size)
            self._free = [other for other in self._free if other is not slot]
        else:
            slot = self._new(part.elements, seen)
        self._taken[name] = slot
        home = Home(slot.array[: part.elements].reshape(part), held, held)
        if slot.seen is None:
            return home, None
        return home, GpuTensor(slot.seen, shape, held, PLANAR, 1)

    def give(self, name: str) -> None:
        """Nobody reads or writes this tensor's home from now on."""
        self._free.append(self._taken.pop(name))

    def _new(self, elements: int, seen: bool) -> Slot:
        self.bytes += 4 * elements
        if seen:
            return Slot(*seen_zeros(self._gpu, elements))
        return Slot(aligned_zeros((elements,)), None)
