"""Ops on tensors of any rank: they see them as dense arrays, and are cut between images at most."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

from codl.ir.ops.base import Array, Dim, Op, Weights
from codl.ir.region import Region, Shape, as_nchw

#: The sizes of a tensor's axes, outermost first.
Sizes = tuple[int, ...]
#: Several parameters of one kind.
Numbers = tuple[float, ...]


class AxisBlock(NamedTuple):
    """A dense tensor around some adjacent axes: (outer, size, inner), `size` being theirs."""

    outer: int
    size: int
    inner: int

    @classmethod
    def around(cls, sizes: Sizes, axes: Sizes) -> AxisBlock:
        """`axes` are adjacent and ascending, at least one."""
        first, last = axes[0], axes[-1]
        return cls(prod(sizes[:first]), prod(sizes[first : last + 1]), prod(sizes[last + 1 :]))

    @property
    def elements(self) -> int:
        return self.outer * self.size * self.inner


@dataclass(frozen=True, kw_only=True)
class NdOp(Op):
    """`shapes` are the inputs as the model has them; `inputs` the same elements as nchw.

    A subclass gives `out_sizes` and the rest; `reference` gets and returns nchw arrays, and
    reshapes them. What lies along the first of several axes are images; one that leaves them apart
    gives `keeps_images`, and `for_images` where more than `shapes` depends on their number.
    """

    shapes: tuple[Sizes, ...]
    inputs: tuple[Shape, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(as_nchw(sizes) for sizes in self.shapes))

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
        return ()

    @property
    def keeps_images(self) -> bool:
        return False

    @property
    def images(self) -> int:
        """1: kernels see a dense array and compute all of it at once."""
        return 1

    @property
    def out_sizes(self) -> Sizes:
        """The sizes of the output's axes."""
        raise NotImplementedError

    @property
    def output(self) -> Shape:
        return as_nchw(self.out_sizes)

    @property
    def flops(self) -> int:
        """One for each output element; an op that does more says so."""
        return prod(self.out_sizes)

    def has_images(self, index: int) -> bool:
        """Whether input `index` has an image for each of the output's; otherwise all need it."""
        sizes = self.shapes[index]
        return self.keeps_images and len(sizes) > 1 and sizes[0] == self.output.n

    def needs(self, part: Region, index: int = 0) -> Region:
        whole = Region.whole(self.inputs[index])
        return whole._replace(images=part.images) if self.has_images(index) else whole

    def restrict(self, part: Region) -> Op:
        whole = Region.whole(self.output)
        if part == whole:
            return self
        if not self.keeps_images or part != whole._replace(images=part.images):
            raise ValueError(f"a {self.kind} is not split so: {part} of {self.output}")
        return replace(self, **self.for_images(part.images.size))

    def for_images(self, count: int) -> dict[str, Any]:
        """The fields that differ for `count` images."""
        shapes = (
            (count, *sizes[1:]) if self.has_images(index) else sizes
            for index, sizes in enumerate(self.shapes)
        )
        return {"shapes": tuple(shapes)}

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, Array]:
        """All of them: no axis of theirs need be the output's channels."""
        return dict(weights)
