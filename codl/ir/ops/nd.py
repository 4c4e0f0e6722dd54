"""Ops on tensors of any rank, seen as dense arrays and cut along axes that an op does not mix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, NamedTuple

from codl.ir.ops.base import Array, Dim, Op, Values, Weights
from codl.ir.region import Region, Shape, Span, as_nchw

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


#: What cuts each of the first axes; of a tensor of one axis that is channels.
AXIS_DIMS: tuple[Dim, ...] = ("N", "OC", "H")


def dims_of(sizes: Sizes) -> tuple[Dim, ...]:
    """The dimensions that cut a tensor's first axes, as `as_nchw` has them: at most three."""
    return AXIS_DIMS[1:2] if len(sizes) == 1 else AXIS_DIMS[: len(sizes)]


def cuts_of(part: Region, sizes: Sizes) -> dict[int, Span]:
    """The axes along which a region is a part of a tensor, with what it has of each."""
    spans = part[1:2] if len(sizes) == 1 else part
    cut = enumerate(zip(spans, sizes, strict=False))
    return {axis: span for axis, (span, size) in cut if span != (0, size)}


def region_of(cuts: Mapping[int, Span], sizes: Sizes) -> Region:
    """The region of a tensor with these ranges of some of its first axes."""
    spans = list(Region.whole(as_nchw(sizes)))
    for axis, span in cuts.items():
        spans[1 if len(sizes) == 1 else axis] = span
    return Region(*spans)


@dataclass(frozen=True, kw_only=True)
class NdOp(Op):
    """`shapes` are the inputs as the model has them; `inputs` the same elements as nchw.

    The first three axes of its output are images, channels and rows,
    whatever they mean to the model: what cuts tokens is `N` of (tokens, features), `OC` of
    (1, tokens, features), and `H` of (1, heads, tokens, features). A subclass names the `free_axes`
    of its output, and for each the axis of every input that is cut with it, where that is not the
    same one.
    """

    shapes: tuple[Sizes, ...]
    inputs: tuple[Shape, ...] = field(init=False)

    is_dense: ClassVar[bool] = True
    #: Kernels see a dense array and compute all of it at once.
    images = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(as_nchw(sizes) for sizes in self.shapes))

    @property
    def free_axes(self) -> Iterable[int]:
        """The axes of the output that it does not mix: each range needs ranges of the inputs."""
        return ()

    def source(self, axis: int, index: int) -> int | None:
        """The axis of input `index` that is cut with a free one; None where all is needed."""
        sizes = self.shapes[index]
        same = axis < len(sizes) and sizes[axis] == self.out_sizes[axis]
        return axis if same else None

    def needed(self, axis: int, span: Span) -> Span:
        """What of that axis of an input a range of a free one needs: the same range."""
        return span

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        """The fields, `shapes` apart, of the op that computes these ranges of free axes."""
        return {}

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """By the free axes, the outermost first: what that cuts lies densely."""
        free, sizes = set(self.free_axes), self.out_sizes
        return tuple(
            dim
            for axis, dim in enumerate(dims_of(sizes))
            if axis in free and sizes[axis] > 1 and self._reaches(axis)
        )

    def _reaches(self, axis: int) -> bool:
        """Whether what is cut of every input with an axis is one that a dimension cuts."""
        sources = [(self.source(axis, index), sizes) for index, sizes in enumerate(self.shapes)]
        return all(source is None or source < len(dims_of(sizes)) for source, sizes in sources)

    @cached_property
    def carries_channels(self) -> bool:
        axis = 0 if len(self.out_sizes) == 1 else 1
        sources = (self.source(axis, index) for index in range(len(self.shapes)))
        return "OC" in self.dims and any(source is not None for source in sources)

    @property
    def out_sizes(self) -> Sizes:
        """The sizes of the output's axes: the first input's, where a subclass says nothing else."""
        return self.shapes[0]

    @property
    def output(self) -> Shape:
        return as_nchw(self.out_sizes)

    def needs(self, part: Region, index: int = 0) -> Region:
        return region_of(self._needs(cuts_of(part, self.out_sizes), index), self.shapes[index])

    def _needs(self, cuts: Mapping[int, Span], index: int) -> dict[int, Span]:
        """The axes of an input that are cut with the output's, with what is needed of each."""
        sources = ((self.source(axis, index), axis, span) for axis, span in cuts.items())
        return {at: self.needed(axis, span) for at, axis, span in sources if at is not None}

    def restrict(self, part: Region) -> Op:
        cuts = cuts_of(part, self.out_sizes)
        if not cuts:
            return self
        dims = dims_of(self.out_sizes)
        if any(dims[axis] not in self.dims for axis in cuts):
            raise ValueError(f"a {self.kind} is not split so: {part} of {self.output}")
        shapes = (
            resized(sizes, self._needs(cuts, index)) for index, sizes in enumerate(self.shapes)
        )
        return replace(self, shapes=tuple(shapes), **self.parted(cuts))

    def reference(self, inputs: Sequence[Values], weights: Weights) -> Values:
        """Of nchw arrays; `computed` gets them under the sizes that the model has."""
        return super().reference(self.shaped(inputs), weights)

    def shaped(self, inputs: Sequence[Values]) -> list[Values]:
        return [value.reshape(sizes) for value, sizes in zip(inputs, self.shapes, strict=True)]

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, Array]:
        """All of them: no axis of theirs need be the output's channels."""
        return dict(weights)


def resized(sizes: Sizes, cuts: Mapping[int, Span]) -> Sizes:
    """The sizes of a part with these ranges of some axes."""
    return tuple(cuts[axis].size if axis in cuts else size for axis, size in enumerate(sizes))
