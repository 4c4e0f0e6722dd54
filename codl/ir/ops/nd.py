"""Ops on dense tensors of any rank, split along axes that the op does not mix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, NamedTuple

from codl.ir.ops.base import Array, Dim, Op, Values, Weights
from codl.ir.region import Region, Shape, Span, as_nchw

#: Sizes of a tensor's axes, outermost first.
Sizes = tuple[int, ...]
#: Several parameters of one kind.
Numbers = tuple[float, ...]


class AxisBlock(NamedTuple):
    """A dense tensor as (outer, size, inner), with adjacent axes merged to `size`."""

    outer: int
    size: int
    inner: int

    @classmethod
    def around(cls, sizes: Sizes, axes: Sizes) -> AxisBlock:
        """The block of adjacent, ascending `axes`; at least one."""
        first, last = axes[0], axes[-1]
        return cls(prod(sizes[:first]), prod(sizes[first : last + 1]), prod(sizes[last + 1 :]))

    @property
    def elements(self) -> int:
        return self.outer * self.size * self.inner


#: Dimensions of the first axes; a single axis is channels.
AXIS_DIMS: tuple[Dim, ...] = ("N", "OC", "H")


def dims_of(sizes: Sizes) -> tuple[Dim, ...]:
    """Dimensions of a tensor's first axes, at most three, as `as_nchw` orders them."""
    return AXIS_DIMS[1:2] if len(sizes) == 1 else AXIS_DIMS[: len(sizes)]


def cuts_of(part: Region, sizes: Sizes) -> dict[int, Span]:
    """The cut axes of a region of a tensor, with the range of each."""
    spans = part[1:2] if len(sizes) == 1 else part
    cut = enumerate(zip(spans, sizes, strict=False))
    return {axis: span for axis, (span, size) in cut if span != (0, size)}


@dataclass(frozen=True, kw_only=True)
class NdOp(Op):
    """Base of ops on tensors of any rank; `shapes` are the model's, `inputs` the same as nchw.

    The output's first three axes are split as images, channels and rows, regardless of meaning. So
    a cut of tokens is `N` for (tokens, features), `OC` for (1, tokens, features), and `H` for (1,
    heads, tokens, features). A subclass gives the output's `free_axes`, and the input axis of each
    (`source`).
    """

    shapes: tuple[Sizes, ...]
    inputs: tuple[Shape, ...] = field(init=False)

    is_dense: ClassVar[bool] = True
    #: Kernels compute a dense array with all its images at once.
    images = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(as_nchw(sizes) for sizes in self.shapes))

    @property
    def free_axes(self) -> Iterable[int]:
        """Output axes that the op does not mix: a range of them needs ranges of inputs."""
        return ()

    def source(self, axis: int, index: int) -> int | None:
        """The axis of input `index` that a free output axis cuts; None if all is needed."""
        sizes = self.shapes[index]
        same = axis < len(sizes) and sizes[axis] == self.out_sizes[axis]
        return axis if same else None

    def needed(self, axis: int, span: Span) -> Span:
        """The input range for a range of a free axis; by default the same."""
        return span

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        """Fields, without `shapes`, of the op for these ranges of free axes."""
        return {}

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """Dimensions of the free axes, outermost first, whose parts are regions of all inputs."""
        free, sizes = set(self.free_axes), self.out_sizes
        return tuple(
            dim
            for axis, dim in enumerate(dims_of(sizes))
            if axis in free and sizes[axis] > 1 and self._cuts_all_inputs(axis)
        )

    def _cuts_all_inputs(self, axis: int) -> bool:
        """Whether the input axis lies among the first three of each input that is cut."""
        sources = [(self.source(axis, index), sizes) for index, sizes in enumerate(self.shapes)]
        return all(source is None or source < len(dims_of(sizes)) for source, sizes in sources)

    @cached_property
    def carries_channels(self) -> bool:
        axis = 0 if len(self.out_sizes) == 1 else 1
        sources = (self.source(axis, index) for index in range(len(self.shapes)))
        return "OC" in self.dims and any(source is not None for source in sources)

    @property
    def out_sizes(self) -> Sizes:
        """Sizes of the output's axes; by default the first input's."""
        return self.shapes[0]

    @property
    def output(self) -> Shape:
        return as_nchw(self.out_sizes)

    def needs(self, part: Region, index: int = 0) -> Region:
        sizes, spans = self.shapes[index], list(Region.whole(self.inputs[index]))
        for axis, span in self._needs(cuts_of(part, self.out_sizes), index).items():
            spans[1 if len(sizes) == 1 else axis] = span
        return Region(*spans)

    def _needs(self, cuts: Mapping[int, Span], index: int) -> dict[int, Span]:
        """The cut axes of an input for cuts of the output, with the range of each."""
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
        """The output for nchw arrays; `computed` gets the model's shapes."""
        return super().reference(self.shaped(inputs), weights)

    def shaped(self, inputs: Sequence[Values]) -> list[Values]:
        return [value.reshape(sizes) for value, sizes in zip(inputs, self.shapes, strict=True)]

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, Array]:
        """All weights, as their axes need not be output channels."""
        return dict(weights)


def resized(sizes: Sizes, cuts: Mapping[int, Span]) -> Sizes:
    """Sizes of a part with these ranges of some axes."""
    return tuple(cuts[axis].size if axis in cuts else size for axis, size in enumerate(sizes))
