"""Resize of rows and columns: nearest, linear or cubic, by every one of ONNX's coordinate rules.

Along one axis, an output element is a sum of `taps` input elements; `AxisTable` holds which, and
their weights. They are computed in float32, so that ties are broken as ONNX Runtime breaks them.
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

ResizeMode = Literal["nearest", "linear", "cubic"]
Floats = NDArray[np.float32]

#: How a position of the input is rounded to an index by mode `nearest`; `simple` is opset 10's.
ROUNDING: Mapping[str, Callable[[Floats, float], NDArray[Any]]] = {
    "round_prefer_floor": lambda x, scale: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x, scale: np.floor(x + np.float32(0.5)),
    "floor": lambda x, scale: np.floor(x),
    "ceil": lambda x, scale: np.ceil(x),
    "simple": lambda x, scale: np.ceil(x) if scale < 1 else np.trunc(x),
}
HALF, ONE = np.float32(0.5), np.float32(1)
NEARLY = 1e-5


class Axis(NamedTuple):
    """One axis that is resized; `start` and `end` are where crops lie, from 0 to 1."""

    size: int
    to: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _symmetric(x: Floats, a: Axis) -> Floats:
    adjustment = np.float32(a.to) / (np.float32(a.scale) * np.float32(a.size))
    shift = np.float32(a.size) / 2 * (ONE - adjustment)
    moved: Floats = np.float32(shift) + (x + HALF) / np.float32(a.scale) - HALF
    return moved


def _cropped(x: Floats, a: Axis) -> Floats:
    start, end, last = np.float32(a.start), np.float32(a.end), np.float32(a.size - 1)
    if a.to == 1:
        return np.full_like(x, HALF * (start + end) * last)
    moved: Floats = start * last + x * (end - start) * last / np.float32(a.to - 1)
    return moved


#: From indices of the output to positions in the input.
COORDS: Mapping[str, Callable[[Floats, Axis], Floats]] = {
    "half_pixel": lambda x, a: (x + HALF) / np.float32(a.scale) - HALF,
    "pytorch_half_pixel": lambda x, a: (
        (x + HALF) / np.float32(a.scale) - HALF if a.to > 1 else np.zeros_like(x)
    ),
    "half_pixel_symmetric": _symmetric,
    "asymmetric": lambda x, a: x / np.float32(a.scale),
    "align_corners": lambda x, a: (
        x * np.float32(a.size - 1) / np.float32(a.to - 1) if a.to > 1 else np.zeros_like(x)
    ),
    "tf_half_pixel_for_nn": lambda x, a: (x + HALF) / np.float32(a.scale),
    "tf_crop_and_resize": _cropped,
}


@dataclass(frozen=True, eq=False)
class AxisTable:
    """For every output index `taps` input indices and their weights; -1 where all lie outside."""

    indices: NDArray[np.int64]
    weights: Floats

    def part(self, span: Span, first: int) -> AxisTable:
        """Some output indices, with input indices counted from `first`."""
        rows = slice(*span)
        indices = self.indices[rows]
        return AxisTable(np.where(indices < 0, -1, indices - first), self.weights[rows])

    @property
    def reads(self) -> Span:
        """The input indices that are read; one where there are none."""
        inside = self.indices[self.indices >= 0]
        return Span(int(inside.min()), int(inside.max()) + 1) if inside.size else Span(0, 1)

    def copies(self, size: int) -> bool:
        """Whether every one of `size` input elements is the output element at its index."""
        if len(self.indices) != size or (self.indices != np.arange(size)[:, None]).any():
            return False
        return bool((self.weights[:, 0] == 1).all() and not self.weights[:, 1:].any())

    @property
    def taken(self) -> list[tuple[NDArray[np.int64], Floats]]:
        """For each tap the index in the input of every output element, and its weight."""
        return list(zip(np.maximum(self.indices, 0).T, self.weights.T, strict=True))

    def is_close(self, other: AxisTable, atol: float) -> bool:
        """Whether two tables weigh every input element alike."""
        if self.indices.shape[0] != other.indices.shape[0]:
            return False
        signed = ((self, self.weights), (other, -other.weights))
        size = 1 + max(int(table.indices.max(initial=0)) for table, _ in signed)
        places = [
            (np.arange(len(table.indices))[:, None] * size + np.maximum(table.indices, 0)).ravel()
            for table, _ in signed
        ]
        _, where = np.unique(np.concatenate(places), return_inverse=True)
        weights = np.concatenate([weights.ravel() for _, weights in signed])
        return bool((np.abs(np.bincount(where, weights)) <= atol).all())


@dataclass(frozen=True, kw_only=True)
class Resize(Op):
    """`scales` and `roi` are those of (h, w), where sizes alone do not say them.

    `roi` is (start h, start w, end h, end w) of `tf_crop_and_resize`, for which positions outside
    the input give `outside`. `within`, of a part of rows: the whole's input and output rows, and
    the first of each that this op has.
    """

    size: Size2
    mode: ResizeMode = "nearest"
    coords: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    scales: Numbers = ()
    roi: Numbers = ()
    outside: float = 0.0
    cubic_a: float = -0.75
    exclude_outside: bool = False
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
        """Input elements that an output element is made of along one axis."""
        return {"nearest": 1, "linear": 2, "cubic": 4}[self.mode]

    @property
    def flops(self) -> int:
        return 2 * self.taps**2 * self.output.elements

    @property
    def rows(self) -> AxisTable:
        """The table of rows, counted from the first that this op has."""
        size, to, first_in, first_out = self.within or (self.input.h, self.size.h, 0, 0)
        whole = _table(self._rule, self._axis(0, size, to))
        return whole.part(Span(first_out, first_out + self.size.h), first_in)

    @property
    def columns(self) -> AxisTable:
        return _table(self._rule, self._axis(1, self.input.w, self.size.w))

    @property
    def _rule(self) -> _Rule:
        return _Rule(self.mode, self.coords, self.rounding, self.cubic_a, self.exclude_outside)

    def _axis(self, index: int, size: int, to: int) -> Axis:
        scale = self.scales[index] if self.scales else to / size
        start, end = self.roi[index::2] if self.roi else (0.0, 1.0)
        return Axis(size, to, scale, start, end)

    @property
    def nearly_ties(self) -> bool:
        """Whether which of two elements is nearest hangs on the last digits of a position.

        Some versions of ONNX Runtime take such a position for a tie.
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
        need = self.needs(part)
        if part.rows == Span(0, self.size.h):
            return replace(self, inputs=(need.shape(self.input),))
        where = (size, to, first_in + need.rows.start, first_out + part.rows.start)
        return replace(
            self,
            inputs=(need.shape(self.input),),
            size=Size2(part.rows.size, self.size.w),
            within=where,
        )

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        tall = sum(
            (inputs[0][:, :, at] * weight[:, None] for at, weight in self.rows.taken),
            np.zeros(()),
        )
        out = sum((tall[..., at] * weight for at, weight in self.columns.taken), np.zeros(()))
        return np.where(self.beside, self.outside, out)

    @property
    def beside(self) -> NDArray[np.bool_]:
        """Which elements of an output channel lie outside the input, (h, w) or stretched to it."""
        return (self.rows.indices[:, :1] < 0) | (self.columns.indices[:, 0] < 0)


class _Rule(NamedTuple):
    mode: ResizeMode
    coords: str
    rounding: str
    cubic_a: float
    exclude_outside: bool


@lru_cache(maxsize=256)
def _table(rule: _Rule, axis: Axis) -> AxisTable:
    """The table of a whole axis; one that keeps its size is copied."""
    crops = rule.coords == "tf_crop_and_resize"
    if axis.size == axis.to and axis.scale == 1 and not crops:
        taps = {"nearest": 1, "linear": 2, "cubic": 4}[rule.mode]
        indices_kept = np.repeat(np.arange(axis.to)[:, None], taps, 1)
        return AxisTable(indices_kept, np.eye(1, taps, dtype=np.float32).repeat(axis.to, 0))
    at = COORDS[rule.coords](np.arange(axis.to, dtype=np.float32), axis)
    indices, weights = _taps(rule, axis, at)
    if crops:
        beside = (at < 0) | (at > axis.size - 1)
        indices = np.where(beside[:, None], -1, indices)
        weights = np.where(beside[:, None], np.float32(0), weights)
    return AxisTable(indices, weights)


def _taps(rule: _Rule, axis: Axis, at: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Indices, moved into the input, and weights, for positions in the input."""
    last = axis.size - 1
    if rule.mode == "nearest":
        nearest = ROUNDING[rule.rounding](at, axis.scale).astype(np.int64).clip(0, last)
        return nearest[:, None], np.ones((at.size, 1), np.float32)
    if rule.mode == "linear":
        at = at.clip(0, last)
        below = np.floor(at).astype(np.int64)
        share = at - below.astype(np.float32)
        indices = np.stack([below, np.minimum(below + 1, last)], 1)
        return indices, np.stack([ONE - share, share], 1)
    below = np.floor(at).astype(np.int64)
    indices = below[:, None] + np.arange(-1, 3)
    weights = _cubic(at - below.astype(np.float32), np.float32(rule.cubic_a))
    if rule.exclude_outside:
        weights = np.where((indices < 0) | (indices > last), np.float32(0), weights)
        weights /= weights.sum(1, keepdims=True)
    return indices.clip(0, last), weights


def _cubic(share: Floats, a: np.float32) -> Floats:
    """Weights of the elements before, at, after and two after a position."""

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    columns = [far(share + 1), near(share), near(1 - share), far(2 - share)]
    return np.stack(columns, 1).astype(np.float32)
