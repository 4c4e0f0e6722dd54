"""A region of a network's tensor in a buffer: where each of its elements lies.

Layouts are those of `codl.kernels.base`. The CPU's arrays are planar float32 tensors too.
"""

from __future__ import annotations

import msgspec

from codl.ir.region import Region, Shape, Span
from codl.ir.types import ImageSize, Storage


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The region `held` of the tensor `name`, shaped `shape` as a whole, in a buffer.

    `buffer` is its number in the executable. Where channels lie in blocks of `block`, the region
    starts at a whole block; rows lie densely.
    """

    name: str
    buffer: int
    shape: Shape
    held: Region
    storage: Storage
    block: int

    @property
    def blocks(self) -> int:
        return -(-self.held.channels.size // self.block)

    @property
    def pixels(self) -> int:
        """Pixels of one channel, or block of channels, of one image."""
        return self.held.rows.size * self.shape.w

    @property
    def image_stride(self) -> int:
        """Pixels from an image to the next, of all blocks of channels; not of an `image`."""
        return self.blocks * self.pixels

    @property
    def bytes(self) -> int:
        """Bytes of the images held, with their last blocks whole."""
        elements = self.held.images.size * self.blocks * self.block * self.pixels
        return self.storage.element_bytes * elements

    @property
    def image_size(self) -> ImageSize | None:
        """Texels of all images side by side and one below the other; None of a buffer."""
        if self.storage.layout != "image":
            return None
        rows = self.held.images.size * self.held.rows.size
        return ImageSize(self.blocks * self.shape.w, rows, self.storage.element)

    def lead(self, part: Region) -> int:
        """Channels of the first block of `part` that lie before it."""
        return (part.channels.start - self.held.channels.start) % self.block

    def blocks_around(self, part: Region, block: int | None = None) -> Region:
        """The region of whole blocks (or of `block` channels) that `part` lies in."""
        block, (first, last) = block or self.block, self.held.channels
        begin = part.channels.start - (part.channels.start - first) % block
        end = part.channels.stop + (first - part.channels.stop) % block
        return part._replace(channels=Span(begin, min(end, last)))

    def is_whole_blocks(self, part: Region, block: int | None = None) -> bool:
        return self.blocks_around(part, block) == part

    def serves(self, part: Region) -> bool:
        """Whether a kernel can work on `part` in place: from a block on or, where it is planar, in
        one piece.
        """
        if self.storage.layout != "planar":
            return not self.lead(part)
        before = 1  # elements of the axes further out
        for own, held in zip(part, self.held, strict=True):
            if own != held and before > 1:
                return False
            before *= own.size
        return True

    def place(self, part: Region, image: int = 0) -> tuple[int, int]:
        """The two integers that tell a kernel where one image of `part` lies, counted from its
        first: the offset and the stride of blocks in pixels, or an image's column and row.

        Raises `ValueError` for a part that does not begin at a block.
        """
        inner = part.within(self.held)
        image += inner.images.start
        if inner.channels.start % self.block:
            raise ValueError(f"{part} does not begin at a block of {self.block} channels")
        first = inner.channels.start // self.block
        if self.storage.layout == "image":
            return first * self.shape.w, image * self.held.rows.size + inner.rows.start
        return (image * self.blocks + first) * self.pixels + inner.rows.start * self.shape.w, (
            self.pixels
        )
