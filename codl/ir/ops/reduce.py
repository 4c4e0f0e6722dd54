"""Reductions of a tensor along adjacent axes: sums, means, extremes and norms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Weights
from codl.ir.ops.nd import AxisBlock, NdOp, Sizes


def _log_sum_exp(x: NDArray[np.float64], **kwargs: Any) -> NDArray[np.float64]:
    result: NDArray[np.float64] = np.logaddexp.reduce(x, **kwargs)
    return result


#: What every mode computes of a three-axis array along its middle axis.
REDUCTIONS: Mapping[str, Callable[..., NDArray[np.float64]]] = {
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

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        value = REDUCTIONS[self.mode](inputs[0].reshape(self.rows), axis=1)
        return self.activation.reference(value.reshape(self.output))
