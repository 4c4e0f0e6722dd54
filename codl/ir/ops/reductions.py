"""Sums, means, extremes and norms along adjacent axes, and softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from codl.ir.ops.base import Values, Weights
from codl.ir.ops.nd import AxisBlock, NdOp, Sizes


def _log_sum_exp(x: Values, **kwargs: Any) -> Values:
    result: Values = np.logaddexp.reduce(x, **kwargs)
    return result


#: What every mode computes of a three-axis array along its middle axis.
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
    "log_sum_exp": _log_sum_exp,
}


@dataclass(frozen=True, kw_only=True)
class Reduce(NdOp):
    """`axes` are adjacent and ascending; they stay, as ones, where `keepdims`."""

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
        """The input's axes that are the output's: all of them where they stay as ones."""
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
    """`axes` are adjacent and ascending; their elements are one distribution."""

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
        """A maximum, a difference, an exponential, a sum and a product for each element."""
        return 5 * self.rows.elements

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        x = inputs[0].reshape(self.rows)
        x = x - x.max(axis=1, keepdims=True)
        total = np.exp(x).sum(axis=1, keepdims=True)
        result: Values = x - np.log(total) if self.log else np.exp(x) / total
        return result
