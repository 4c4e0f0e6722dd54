"""Reductions over adjacent axes, softmax, and normalization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from codl.ir.ops.base import Values, Weights
from codl.ir.ops.nd import AxisBlock, NdOp, Sizes

#: Functions by mode, over the middle axis of a three-axis array.
REDUCTIONS: Mapping[str, Callable[..., Values]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "l1": lambda x, axis: np.sum(np.abs(x), axis=axis),
    "l2": lambda x, axis: np.sqrt(np.sum(x * x, axis=axis)),
    "sum_square": lambda x, axis: np.sum(x * x, axis=axis),
    "log_sum": lambda x, axis: np.log(np.sum(x, axis=axis)),
    "log_sum_exp": np.logaddexp.reduce,
}


@dataclass(frozen=True, kw_only=True)
class Reduce(NdOp):
    """Reduction over adjacent, ascending `axes`, which stay with size 1 if `keepdims`."""

    mode: str
    axes: Sizes
    keepdims: bool = False

    kind: ClassVar[str] = "reduce"
    examples: ClassVar[tuple[str, ...]] = ("reduce in=64x32 axes=1 mode=sum",)

    @property
    def flavor(self) -> str:
        return self.mode

    @property
    def rows(self) -> AxisBlock:
        return AxisBlock.around(self.shapes[0], self.axes)

    @property
    def out_sizes(self) -> Sizes:
        axes, sizes = set(self.axes), enumerate(self.shapes[0])
        if self.keepdims:
            return tuple(1 if axis in axes else size for axis, size in sizes)
        return tuple(size for axis, size in sizes if axis not in axes)

    @property
    def _kept(self) -> Sizes:
        """Input axis of each output axis; all input axes if `keepdims`."""
        every = range(len(self.shapes[0]))
        return tuple(axis for axis in every if self.keepdims or axis not in self.axes)

    @property
    def free_axes(self) -> Iterable[int]:
        return (at for at, axis in enumerate(self._kept) if axis not in self.axes)

    def source(self, axis: int, index: int) -> int:
        return self._kept[axis]

    @property
    def flops(self) -> int:
        return self.rows.elements

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        return REDUCTIONS[self.mode](inputs[0].reshape(self.rows), axis=1)


@dataclass(frozen=True, kw_only=True)
class Softmax(NdOp):
    """Softmax over adjacent, ascending `axes` together."""

    axes: Sizes
    log: bool = False

    kind: ClassVar[str] = "softmax"
    examples: ClassVar[tuple[str, ...]] = (
        "softmax in=64x32 axes=1",
        "softmax in=1x8x14 axes=1 log=1",
    )

    @property
    def flavor(self) -> str:
        return "log" if self.log else ""

    @property
    def rows(self) -> AxisBlock:
        return AxisBlock.around(self.shapes[0], self.axes)

    @property
    def free_axes(self) -> Iterable[int]:
        return (axis for axis in range(len(self.shapes[0])) if axis not in self.axes)

    @property
    def flops(self) -> int:
        """Maximum, difference, exponential, sum and product for each element."""
        return 5 * self.rows.elements

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        x = inputs[0].reshape(self.rows)
        x = x - x.max(axis=1, keepdims=True)
        total = np.exp(x).sum(axis=1, keepdims=True)
        result: Values = x - np.log(total) if self.log else np.exp(x) / total
        return result


class Channels(NamedTuple):
    """Broadcast of a vector: element i takes channel (i // run) % total."""

    total: int
    run: int

    @classmethod
    def of(cls, sizes: Sizes, among: Sizes) -> Channels | None:
        """Channels of a tensor broadcast to `among`; None where an inner axis is broadcast."""
        axes = [axis for axis, size in enumerate(sizes) if size > 1]
        if not axes:
            return cls(1, prod(among))
        block = slice(axes[0], axes[-1] + 1)
        if sizes[block] != among[block]:
            return None
        return cls(prod(sizes[block]), prod(among[axes[-1] + 1 :]))


@dataclass(frozen=True, kw_only=True)
class Norm(NdOp):
    """Normalization of an input, with a scale and a bias of one shape if `affine`.

    Each run is one of `groups` equal parts of the axes from `axis` on. Scale and bias have the
    input's rank; axes of size 1 are broadcast, and all others adjacent. Without `center`, runs keep
    their mean and are divided by their root mean square.
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
        """Elements of a run, which are normalized together."""
        return prod(self.shapes[0][self.axis :]) // self.groups

    @property
    def runs(self) -> int:
        return prod(self.shapes[0]) // self.run

    @property
    def channels(self) -> Channels | None:
        """The channel of scale and bias for each element."""
        return Channels.of(self.shapes[-1], self.shapes[0]) if self.affine else None

    @property
    def free_axes(self) -> Iterable[int]:
        return range(self.axis)

    @property
    def flops(self) -> int:
        """Two sums, a product and a sum for each element; two more if `affine`."""
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
