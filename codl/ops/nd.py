"""Ops on tensors of any rank: they see them as dense arrays and run whole on one side."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from codl.ops.base import Array, Dim, Op, Weights
from codl.ops.region import Region, Shape, as_nchw

#: The sizes of a tensor's axes, outermost first.
Sizes = tuple[int, ...]
#: Several parameters of one kind.
Numbers = tuple[float, ...]


class Rows(NamedTuple):
    """A dense tensor around some adjacent axes: (outer, size, inner), `size` being theirs."""

    outer: int
    size: int
    inner: int

    @classmethod
    def around(cls, sizes: Sizes, axes: Sizes) -> Rows:
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
    reshapes them.
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

    def needs(self, part: Region, index: int = 0) -> Region:
        return Region.whole(self.inputs[index])

    def restrict(self, part: Region) -> Op:
        if part != Region.whole(self.output):
            raise ValueError(f"a {self.kind} is never split, got {part} of {self.output}")
        return self

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, Array]:
        """All of them: no axis of theirs need be the output's channels."""
        return dict(weights)
