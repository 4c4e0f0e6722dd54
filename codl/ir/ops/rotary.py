"""Rotary position embedding (Su et al. 2021): pairs of features are turned by a token's angles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Weights
from codl.ir.ops.nd import NdOp, Sizes


@dataclass(frozen=True, kw_only=True)
class Rotary(NdOp):
    """`shapes` are x, cosines and sines; x has images, tokens and heads, in either order, features.

    `axis` (1 or 2) is that of the tokens. Cosines and sines are (images or 1, tokens, pairs). The
    first `2 * pairs` features are turned: feature i with i + pairs or, where `interleaved`, 2 i
    with 2 i + 1. The others stay.
    """

    axis: int = 2
    interleaved: bool = False

    kind: ClassVar[str] = "rotary"
    examples: ClassVar[tuple[str, ...]] = (
        "rotary in=1x3x7x24,1x7x8,1x7x8",
        "rotary in=1x7x3x16,1x7x8,1x7x8 axis=1 interleaved=1",
    )

    @property
    def flavor(self) -> str:
        return "interleaved" if self.interleaved else ""

    @property
    def pairs(self) -> int:
        return self.shapes[1][-1]

    @property
    def tokens(self) -> int:
        return self.shapes[0][self.axis]

    @property
    def out_sizes(self) -> Sizes:
        return self.shapes[0]

    @property
    def free_axes(self) -> Iterable[int]:
        return (0, 1, 2)

    def source(self, axis: int, index: int) -> int | None:
        """Tables have an axis of tokens, one of images where those differ, and none of heads."""
        if index == 0:
            return axis
        if axis == self.axis:
            return 1
        return 0 if axis == 0 and self.shapes[index][0] > 1 else None

    @property
    def flops(self) -> int:
        """Four products and two sums for each pair."""
        x = self.shapes[0]
        return 6 * x[0] * x[1] * x[2] * self.pairs

    @property
    def problem(self) -> str | None:
        ranks = tuple(map(len, self.shapes))
        if ranks != (4, 3, 3):
            return f"x must have 4 axes, cosines and sines 3, got {ranks}."
        if self.axis not in (1, 2):
            return f"axis must be 1 or 2, got {self.axis}."
        x, cos, sin = self.shapes
        if cos != sin or cos[0] not in (1, x[0]) or cos[1] != self.tokens:
            return (
                f"cosines and sines must be (1 or {x[0]}, {self.tokens}, pairs), got {cos}, {sin}."
            )
        if 2 * self.pairs > x[3]:
            return f"{self.pairs} pairs are more than the {x[3]} features have."
        return None

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        shaped = (value.reshape(sizes) for value, sizes in zip(inputs, self.shapes, strict=True))
        x, cos, sin = shaped
        cos, sin = (np.expand_dims(table, 3 - self.axis) for table in (cos, sin))
        turned, rest = np.split(x, [2 * self.pairs], axis=-1)
        if self.interleaved:
            a, b = turned[..., ::2], turned[..., 1::2]
            pairs = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
            turned = pairs.reshape(turned.shape)
        else:
            a, b = np.split(turned, 2, axis=-1)
            turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
        return self.activation.reference(np.concatenate([turned, rest], axis=-1))
