"""Normalization of every run of elements to mean 0 and variance 1: layer, instance, group norm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from codl.ir.ops.base import Values, Weights
from codl.ir.ops.nd import NdOp, Sizes


class Channels(NamedTuple):
    """Element i of a tensor belongs to channel (i // run) % total."""

    total: int
    run: int

    @classmethod
    def of(cls, sizes: Sizes, among: Sizes) -> Channels | None:
        """Of a tensor that is stretched to `among`; None where it is so between its own axes."""
        axes = [axis for axis, size in enumerate(sizes) if size > 1]
        if not axes:
            return cls(1, prod(among))
        block = slice(axes[0], axes[-1] + 1)
        if sizes[block] != among[block]:
            return None
        return cls(prod(sizes[block]), prod(among[axes[-1] + 1 :]))


@dataclass(frozen=True, kw_only=True)
class Norm(NdOp):
    """`shapes` are the input and, where `affine`, a scale and a bias of one shape.

    The axes from `axis` on, cut in `groups` equal parts, are a run that is normalized. Scale and
    bias have as many axes as the input; those of size 1 are stretched, and the others adjacent.
    `center` is False where runs are divided by their root mean square and their mean stays.
    """

    axis: int
    groups: int = 1
    epsilon: float = 1e-5
    center: bool = True

    kind: ClassVar[str] = "norm"
    examples: ClassVar[tuple[str, ...]] = (
        "norm in=64x32 axis=1",
        "norm in=1x64x14x14,1x64x1x1,1x64x1x1 axis=1 groups=64",
    )

    @property
    def affine(self) -> bool:
        return len(self.shapes) > 1

    @property
    def run(self) -> int:
        """Elements that are normalized together."""
        return prod(self.shapes[0][self.axis :]) // self.groups

    @property
    def runs(self) -> int:
        return prod(self.shapes[0]) // self.run

    @property
    def channels(self) -> Channels | None:
        """Which element of scale and bias an element takes."""
        return Channels.of(self.shapes[-1], self.shapes[0]) if self.affine else None

    @property
    def free_axes(self) -> Iterable[int]:
        return range(self.axis)

    @property
    def flops(self) -> int:
        """A sum, a sum of squares, and a product and a sum for each element; as much for affine."""
        return (6 + 2 * self.affine) * self.runs * self.run

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        x = inputs[0].reshape(self.runs, self.run)
        if self.center:
            x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + self.epsilon)
        x = x.reshape(self.shapes[0])
        if self.affine:
            x = x * inputs[1] + inputs[2]
        return np.asarray(x)
