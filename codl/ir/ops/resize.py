"""Nearest and linear resize of rows and columns, by the usual coordinate rules of ONNX.

Along an axis, an output element is a weighted sum of `taps` input elements, listed in `AxisTable`.
Positions are float32, so that ties break as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Op, Values, Weights
from codl.ir.ops.nd import Numbers, Sizes
from codl.ir.ops.window import Size2
from codl.ir.region import Region, Shape, Span

ResizeMode = Literal["nearest", "linear"]
Floats = NDArray[np.float32]

#: Rounding of input positions by mode `nearest`; `simple` is opset 10's.
ROUNDING: Mapping[str, Callable[[Floats, float], NDArray[Any]]] = {
    "round_prefer_floor": lambda x, scale: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x, scale: np.floor(x + np.float32(0.5)),
    "floor": lambda x, scale: np.floor(x),
    "ceil": lambda x, scale: np.ceil(x),
    "simple": lambda x, scale: np.ceil(x) if scale < 1 else np.trunc(x),
}
HALF = np.float32(0.5)
NEARLY = 1e-5


class Axis(NamedTuple):
    """A resized axis."""

    size: int
    to: int
    scale: float


#: Input positions of output indices, by coordinate rule.
COORDS: Mapping[str, Callable[[Floats, Axis], Floats]] = {
    "half_pixel": lambda x, a: (x + HALF) / np.float32(a.scale) - HALF,
    "pytorch_half_pixel": lambda x, a: (
        (x + HALF) / np.float32(a.scale) - HALF if a.to > 1 else np.zeros_like(x)
    ),
    "asymmetric": lambda x, a: x / np.float32(a.scale),
    "align_corners": lambda x, a: (
        x * np.float32(a.size - 1) / np.float32(a.to - 1) if a.to > 1 else np.zeros_like(x)
    ),
    "tf_half_pixel_for_nn": lambda x, a: (x + HALF) / np.float32(a.scale),
}


@dataclass(frozen=True, eq=False)
class AxisTable:
    """Input indices and weights, each (outputs, taps)."""

    indices: NDArray[np.int64]
    weights: Floats

    def part(self, span: Span, first: int) -> AxisTable:
        """Rows of the table for a span of outputs, with input indices from `first`."""
        rows = slice(*span)
        return AxisTable(self.indices[rows] - first, self.weights[rows])

    @property
    def reads(self) -> Span:
        """The range of read input indices."""
        return Span(int(self.indices.min()), int(self.indices.max()) + 1)

    def copies(self, size: int) -> bool:
        """Whether each of `size` output elements equals the input element at its index."""
        if len(self.indices) != size or (self.indices != np.arange(size)[:, None]).any():
            return False
        return bool((self.weights[:, 0] == 1).all() and not self.weights[:, 1:].any())

    @property
    def taken(self) -> list[tuple[NDArray[np.int64], Floats]]:
        """Input index and weight of each output element, by tap."""
        return list(zip(self.indices.T, self.weights.T, strict=True))

    def is_close(self, other: AxisTable, atol: float) -> bool:
        """Whether both tables give all input elements equal weights, within `atol`."""
        if self.indices.shape[0] != other.indices.shape[0]:
            return False
        signed = ((self, self.weights), (other, -other.weights))
        size = 1 + max(int(table.indices.max(initial=0)) for table, _ in signed)
        places = [
            (np.arange(len(table.indices))[:, None] * size + table.indices).ravel()
            for table, _ in signed
        ]
        _, where = np.unique(np.concatenate(places), return_inverse=True)
        weights = np.concatenate([weights.ravel() for _, weights in signed])
        return bool((np.abs(np.bincount(where, weights)) <= atol).all())


@dataclass(frozen=True, kw_only=True)
class Resize(Op):
    """Resize of rows and columns; `scales` are set if sizes do not imply them.

    A part of rows has `within`: rows in and out of the whole op, then its own first rows in and
    out.
    """

    size: Size2
    mode: ResizeMode = "nearest"
    coords: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    scales: Numbers = ()
    within: Sizes = ()

    kind: ClassVar[str] = "resize"
    examples: ClassVar[tuple[str, ...]] = ("resize in=1x64x14x14 size=28x28",)
    inner_dims = ("H", "OC")
    carries_channels = True

    @property
    def flavor(self) -> str:
        return self.mode

    @property
    def output(self) -> Shape:
        return Shape(self.input.n, self.input.c, *self.size)

    @property
    def taps(self) -> int:
        """Input elements per output element along one axis."""
        return 1 if self.mode == "nearest" else 2

    @property
    def flops(self) -> int:
        return 2 * self.taps**2 * self.output.elements

    @property
    def rows(self) -> AxisTable:
        """The table of rows, with indices from this op's first row."""
        size, to, first_in, first_out = self.within or (self.input.h, self.size.h, 0, 0)
        whole = _table(self.mode, self.coords, self.rounding, self._axis(0, size, to))
        return whole.part(Span(first_out, first_out + self.size.h), first_in)

    @property
    def columns(self) -> AxisTable:
        axis = self._axis(1, self.input.w, self.size.w)
        return _table(self.mode, self.coords, self.rounding, axis)

    def _axis(self, index: int, size: int, to: int) -> Axis:
        return Axis(size, to, self.scales[index] if self.scales else to / size)

    @property
    def nearly_ties(self) -> bool:
        """Whether float32 rounding decides between two nearest elements.

        Some versions of ONNX Runtime take such near-ties for ties.
        """
        if self.mode != "nearest" or not self.rounding.startswith("round"):
            return False
        axes = (self._axis(0, self.input.h, self.size.h), self._axis(1, self.input.w, self.size.w))
        changed = [axis for axis in axes if axis.size != axis.to or axis.scale != 1]
        positions = [
            COORDS[self.coords](np.arange(axis.to, dtype=np.float32), axis) for axis in changed
        ]
        distances = [np.abs(at - np.floor(at) - HALF) for at in positions]
        return any(((far > 0) & (far < NEARLY)).any() for far in distances)

    def needs(self, part: Region, index: int = 0) -> Region:
        if part.rows == Span(0, self.size.h):
            return part._replace(rows=Span(0, self.input.h))
        return part._replace(rows=self.rows.part(part.rows, 0).reads)

    def restrict(self, part: Region) -> Resize:
        size, to, first_in, first_out = self.within or (self.input.h, self.size.h, 0, 0)
        need, rows = self.needs(part), part.rows
        made = replace(self, inputs=(need.shape(self.input),))
        if rows == Span(0, self.size.h):
            return made
        where = (size, to, first_in + need.rows.start, first_out + rows.start)
        return replace(made, size=Size2(rows.size, self.size.w), within=where)

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        tall = sum(
            (inputs[0][:, :, at] * weight[:, None] for at, weight in self.rows.taken), np.zeros(())
        )
        return sum((tall[..., at] * weight for at, weight in self.columns.taken), np.zeros(()))


@lru_cache(maxsize=256)
def _table(mode: ResizeMode, coords: str, rounding: str, axis: Axis) -> AxisTable:
    """The table of a whole axis; an axis of unchanged size is a copy."""
    if axis.size == axis.to and axis.scale == 1:
        taps = 1 if mode == "nearest" else 2
        kept = np.repeat(np.arange(axis.to)[:, None], taps, 1)
        return AxisTable(kept, np.eye(1, taps, dtype=np.float32).repeat(axis.to, 0))
    last = axis.size - 1
    at = COORDS[coords](np.arange(axis.to, dtype=np.float32), axis)
    if mode == "nearest":
        nearest = ROUNDING[rounding](at, axis.scale).astype(np.int64).clip(0, last)
        return AxisTable(nearest[:, None], np.ones((at.size, 1), np.float32))
    at = at.clip(0, last)
    below = np.floor(at).astype(np.int64)
    share = at - below.astype(np.float32)
    indices = np.stack([below, np.minimum(below + 1, last)], 1)
    return AxisTable(indices, np.stack([1 - share, share], 1))
