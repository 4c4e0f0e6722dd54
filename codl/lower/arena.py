"""Memory plans: buffers that tensors take in turns, as they are needed.

Whatever is given back may be taken at once where commands run in order. Memory that is taken again
holds what was there, which is finite too. A new buffer is allocated where no free one is large
enough; of the free ones the smallest that fits is taken (best fit), and none is ever freed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from codl.ir.executable import Place
from codl.ir.region import Region, Shape
from codl.ir.soc import Soc
from codl.ir.tensor import Tensor
from codl.ir.types import PLANAR, ImageSize, Storage
from codl.kernels.image import image_refusal
from codl.lower.assembly import Assembly

#: Buffers of one kind: their place, and the size where they are images.
Kind: TypeAlias = tuple[Place, ImageSize | None]


@dataclass
class FreeList:
    """Buffers of an assembly that are free, by kind."""

    assembly: Assembly
    _free: dict[Kind, list[int]] = field(default_factory=dict)

    def take(self, place: Place, size: int, image: ImageSize | None = None) -> int:
        free = self._free.setdefault((place, image), [])
        buffers = self.assembly.buffers
        fitting = [number for number in free if buffers[number].bytes >= size]
        if not fitting:
            return self.assembly.buffer(place, size, image)
        best = min(fitting, key=lambda number: buffers[number].bytes)
        free.remove(best)
        return best

    def give(self, number: int) -> None:
        buffer = self.assembly.buffers[number]
        self._free.setdefault((buffer.place, buffer.image), []).append(number)


class HostArena:
    """The CPU's arrays: planar float32, in host memory or in memory that the GPU sees as it is."""

    def __init__(self, assembly: Assembly) -> None:
        self._free = FreeList(assembly)

    def take(self, name: str, shape: Shape, held: Region, *, is_shared: bool) -> Tensor:
        """Memory for a region of the tensor `name`."""
        place: Place = "shared" if is_shared else "cpu"
        buffer = self._free.take(place, held.shape(shape).bytes)
        return Tensor(name, buffer, shape, held, PLANAR, 1)

    def give(self, tensor: Tensor) -> None:
        """No command from here on reads or writes this tensor."""
        self._free.give(tensor.buffer)


class GpuArena:
    """The GPU's memory: tensors in any storage, and scratch of kernels."""

    def __init__(self, assembly: Assembly, soc: Soc) -> None:
        self._free, self._soc = FreeList(assembly), soc

    def take(self, name: str, shape: Shape, held: Region, storage: Storage) -> Tensor:
        """Memory for a region of the tensor `name`, its channels rounded to whole blocks."""
        empty = self._tensor(name, -1, shape, held, storage)
        buffer = self._free.take("gpu", empty.bytes, empty.image_size)
        return self._tensor(name, buffer, shape, held, storage)

    def fits(self, shape: Shape, held: Region, storage: Storage) -> bool:
        """Whether the device has images as large as this; buffers are refused when allocated."""
        return storage.layout != "image" or not image_refusal(self._soc, [held.shape(shape)])

    def scratch(self, size: int | ImageSize) -> int:
        """The number of a buffer of at least `size` bytes, or of an image of that size."""
        if isinstance(size, ImageSize):
            return self._free.take("gpu", size.bytes, size)
        return self._free.take("gpu", size)

    def give(self, tensor: Tensor) -> None:
        """No command from here on reads or writes this tensor."""
        self._free.give(tensor.buffer)

    def give_scratch(self, buffer: int) -> None:
        self._free.give(buffer)

    def _tensor(
        self, name: str, buffer: int, shape: Shape, held: Region, storage: Storage
    ) -> Tensor:
        block = {"blocked": self._soc.gpu.vector_width, "planar": 1, "image": 4}[storage.layout]
        return Tensor(name, buffer, shape, held, storage, block)
