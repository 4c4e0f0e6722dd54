"""Concatenation along the channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ops.base import Dim, Op, Weights
from codl.ops.region import Region, Shape, Span


@dataclass(frozen=True, kw_only=True)
class Concat(Op):
    """All inputs share height and width; the output has the channels of one after the other."""

    kind: ClassVar[str] = "concat"

    @property
    def dims(self) -> tuple[Dim, ...]:
        return ("H",)

    @property
    def output(self) -> Shape:
        return self.input._replace(c=sum(shape.c for shape in self.inputs))

    @property
    def flops(self) -> int:
        return 0

    def offset(self, index: int) -> int:
        """The first output channel of input `index`."""
        return sum(shape.c for shape in self.inputs[:index])

    def needs(self, part: Region, index: int = 0) -> Region:
        first = self.offset(index)
        channels = Span(part.channels.start - first, part.channels.stop - first)
        return Region(channels.clip(self.inputs[index].c), part.rows)

    def restrict(self, part: Region) -> Concat:
        if part.channels != Span(0, self.output.c):
            raise ValueError(f"a concat is split on H only, not to {part}")
        shapes = (shape._replace(h=part.rows.size) for shape in self.inputs)
        return replace(self, inputs=tuple(shapes))

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        return self.activation.reference(np.concatenate(inputs, axis=1))
