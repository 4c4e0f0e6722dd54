"""Concatenation along the channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Dim, Op, Weights
from codl.ir.region import Region, Shape, Span


@dataclass(frozen=True, kw_only=True)
class Concat(Op):
    """All inputs share height and width; the output has the channels of one after the other."""

    kind: ClassVar[str] = "concat"

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
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
        channels = part.channels.since(self.offset(index))
        return part._replace(channels=channels.clip(self.inputs[index].c))

    def restrict(self, part: Region) -> Concat:
        if part.channels != Span(0, self.output.c):
            raise ValueError(f"a concat is split on H or N only, not to {part}")
        size = {"n": part.images.size, "h": part.rows.size}
        shapes = (shape._replace(**size) for shape in self.inputs)
        return replace(self, inputs=tuple(shapes))

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        return self.activation.reference(np.concatenate(inputs, axis=1))
