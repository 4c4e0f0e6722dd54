from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Dim, Op, Values, Weights
from codl.ir.region import Region, Shape, Span


@dataclass(frozen=True, kw_only=True)
class Lrn(Op):
    """Each element is divided by (bias + alpha / size * the sum of squares of `size` channels
    around it) ** beta, as ONNX defines it.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    kind: ClassVar[str] = "lrn"
    examples: ClassVar[tuple[str, ...]] = (
        "lrn in=1x16x9x7 size=5",
        "lrn in=1x6x8x8 size=3 alpha=0.5 bias=2.0 act=relu",
        "lrn in=1x19x5x6 size=7 beta=0.5",
    )

    @property
    def problem(self) -> str | None:
        if self.size > 0 and self.size % 2:
            return None
        return f"size must be odd, so that a window has a middle, got {self.size}."

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
        return ("H",)

    @property
    def output(self) -> Shape:
        return self.input

    @property
    def flops(self) -> int:
        """A square and a sum for each channel of the window, a power and a quotient."""
        return (2 * self.size + 16) * self.output.elements

    def needs(self, part: Region, index: int = 0) -> Region:
        return part._replace(channels=Span(0, self.input.c))

    def restrict(self, part: Region) -> Lrn:
        return replace(self, inputs=(self.needs(part).shape(self.input),))

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        """In float64, without the activation: what kernels are tested against."""
        (x,) = inputs
        beside = self.size // 2
        squares = np.pad(x * x, ((0, 0), (beside, beside), (0, 0), (0, 0)))
        total = sum(squares[:, i : i + self.input.c] for i in range(self.size))
        return x / (self.bias + self.alpha / self.size * total) ** self.beta
