"""Fully connected layer: a matrix-vector product over the flattened input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Dim, Op, Weights
from codl.ir.region import Region, Shape


@dataclass(frozen=True, kw_only=True)
class FullyConnected(Op):
    """`weight` is (out_channels, c * h * w of the input in nchw order), `bias` (out_channels)."""

    out_channels: int

    kind: ClassVar[str] = "fc"

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
        return ("OC",)

    @property
    def in_features(self) -> int:
        return self.input.c * self.input.h * self.input.w

    @property
    def output(self) -> Shape:
        return Shape(self.input.n, self.out_channels, 1, 1)

    @property
    def flops(self) -> int:
        return 2 * self.in_features * self.output.elements

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.out_channels, self.in_features), "bias": (self.out_channels,)}

    def needs(self, part: Region, index: int = 0) -> Region:
        return Region.whole(self.input)._replace(images=part.images)

    def restrict(self, part: Region) -> FullyConnected:
        inputs = (self.input._replace(n=part.images.size),)
        return replace(self, inputs=inputs, out_channels=part.channels.size)

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        flat = inputs[0].reshape(self.input.n, -1)
        out = flat @ weights["weight"].astype(np.float64).T + weights["bias"].astype(np.float64)
        return self.activation.reference(out.reshape(self.output))
