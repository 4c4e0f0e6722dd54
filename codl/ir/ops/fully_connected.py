"""Fully connected layer: a matrix-vector product over the flattened input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from random import Random
from typing import ClassVar

import numpy as np

from codl.ir.columns import Column, Columns, FeatureColumns
from codl.ir.ops.base import Op, SyntheticGroup, Values, Weights, channels
from codl.ir.region import Region, Shape

#: What is read of ops, together, and without a call for each.
_SIZES = attrgetter("inputs", "out_channels")
#: A layer lies between two that models have, and is changed by 2 to this power.
SPREAD = 1.0


@dataclass(frozen=True)
class FcColumns(Columns):
    """Fully connected layers over an input of `ic` x `ih` x `iw`."""

    ic: Column
    ih: Column
    iw: Column
    oc: Column

    @staticmethod
    def _rows(ops: Sequence[FullyConnected]) -> list[tuple[int, ...]]:
        return [(*shape, oc) for (shape,), oc in map(_SIZES, ops)]

    @cached_property
    def in_features(self) -> Column:
        return self.ic * self.ih * self.iw

    @property
    def input_elements(self) -> Column:
        return self.images * self.in_features

    @property
    def weight_elements(self) -> Column:
        return self.oc * (self.in_features + 1)

    @property
    def output_elements(self) -> Column:
        return self.images * self.oc

    @property
    def mulayer_features(self) -> FeatureColumns:
        return {"flops": self.flops, "in_features": self.in_features, "out_features": self.oc}

    @property
    def flops(self) -> Column:
        return 2 * self.in_features * self.images * self.oc


@dataclass(frozen=True, kw_only=True)
class FullyConnected(Op):
    """`weight` is (out_channels, c * h * w of the input in nchw order), `bias` (out_channels)."""

    out_channels: int

    kind: ClassVar[str] = "fc"
    examples: ClassVar[tuple[str, ...]] = ("fc in=1x64x1x1 oc=64",)
    is_product: ClassVar[bool] = True
    is_batched: ClassVar[bool] = True
    size_columns: ClassVar[type[Columns]] = FcColumns
    inner_dims = ("OC",)
    synthetic_group = SyntheticGroup("fc", 5)

    @property
    def in_features(self) -> int:
        return self.input.c * self.input.h * self.input.w

    @property
    def output(self) -> Shape:
        return Shape(self.input.n, self.out_channels, 1, 1)

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.out_channels, self.in_features), "bias": (self.out_channels,)}

    def synthesize(self, other: Op, dice: Random) -> FullyConnected:
        """Between two, at one place for both sizes, and around that."""
        assert isinstance(other, FullyConnected)
        place = dice.random()

        def size(first: int, second: int) -> int:
            between = first ** (1 - place) * second**place
            return max(1, channels(between * 2 ** dice.gauss(0, SPREAD)))

        shape = Shape(1, size(self.in_features, other.in_features), 1, 1)
        out = size(self.out_channels, other.out_channels)
        return replace(self, inputs=(shape,), out_channels=out)

    def needs(self, part: Region, index: int = 0) -> Region:
        return Region.whole(self.input)._replace(images=part.images)

    def restrict(self, part: Region) -> FullyConnected:
        inputs = (self.input._replace(n=part.images.size),)
        return replace(self, inputs=inputs, out_channels=part.channels.size)

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        flat = inputs[0].reshape(self.input.n, -1)
        out: Values = flat @ weights["weight"].astype(np.float64).T + weights["bias"].astype(
            np.float64
        )
        return out
