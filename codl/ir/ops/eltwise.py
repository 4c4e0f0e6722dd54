"""Element-wise operators of one or two tensors, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from random import Random
from typing import ClassVar

import numpy as np

from codl.ir.columns import Column, Columns
from codl.ir.ops.base import Op, SyntheticGroup, Values, Weights, channels, map_size, width
from codl.ir.region import Region, Shape, Span

#: Functions by mode, binary ones first. Some take the op's `alpha` and `beta`.
MODES: Mapping[str, Callable[..., Values]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "prelu": lambda x, slope: np.where(x < 0, slope * x, x),
    "identity": lambda x: x,
    "abs": np.abs,
    "neg": np.negative,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "reciprocal": np.reciprocal,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "softplus": lambda x: np.logaddexp(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "selu": lambda x, alpha, beta: beta * np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
    "celu": lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0) / alpha), x),
    "thresholded_relu": lambda x, alpha: np.where(x > alpha, x, 0),
    "shrink": lambda x, alpha, beta: np.where(np.abs(x) > beta, x - alpha * np.sign(x), 0),
}
UNARY = tuple(MODES)[tuple(MODES).index("identity") :]
#: How many of `alpha` and `beta` a mode takes; by default none.
PARAMETERS: Mapping[str, int] = {"selu": 2, "celu": 1, "thresholded_relu": 1, "shrink": 2}


#: Reads these attributes in one call per op.
_SIZES = attrgetter("inputs", "activation.kind")


@dataclass(frozen=True)
class EltwiseColumns(Columns):
    """Columns of two inputs' sizes; an op of one input has it twice."""

    c0: Column
    h0: Column
    w0: Column
    n1: Column
    c1: Column
    h1: Column
    w1: Column
    inputs: Column
    is_active: Column

    @staticmethod
    def _rows(ops: Sequence[Eltwise]) -> list[tuple[int, ...]]:
        return [
            (*shapes[0], *shapes[-1], len(shapes), kind != "none")
            for shapes, kind in map(_SIZES, ops)
        ]

    @cached_property
    def oc(self) -> Column:
        return np.maximum(self.c0, self.c1)

    @cached_property
    def oh(self) -> Column:
        return np.maximum(self.h0, self.h1)

    @cached_property
    def ow(self) -> Column:
        return np.maximum(self.w0, self.w1)

    @cached_property
    def pixels(self) -> Column:
        return self.oh * self.ow

    @cached_property
    def stretched(self) -> Column:
        """Number of inputs whose height or width is broadcast."""
        first = (self.h0 != self.oh) | (self.w0 != self.ow)
        second = (self.h1 != self.oh) | (self.w1 != self.ow)
        count: Column = first * 1.0 + second * (self.inputs > 1)
        return count

    @cached_property
    def input_elements(self) -> Column:
        second = self.n1 * self.c1 * self.h1 * self.w1 * (self.inputs > 1)
        return self.images * self.c0 * self.h0 * self.w0 + second

    @property
    def output_elements(self) -> Column:
        return np.maximum(self.images, self.n1) * self.oc * self.pixels

    @property
    def flops(self) -> Column:
        return self.output_elements


@dataclass(frozen=True, kw_only=True)
class Eltwise(Op):
    """Element-wise op; axes of size 1 are broadcast. `identity` is for an activation alone."""

    mode: str = "add"
    alpha: float = 0.0
    beta: float = 0.0

    kind: ClassVar[str] = "eltwise"
    examples: ClassVar[tuple[str, ...]] = (
        "eltwise in=1x64x14x14,1x64x14x14",
        "eltwise in=1x64x14x14 mode=exp",
    )
    is_light: ClassVar[bool] = True
    size_columns: ClassVar[type[Columns]] = EltwiseColumns
    inner_dims = ("H", "OC")
    carries_channels = True
    synthetic_group = SyntheticGroup("eltwise", 2)

    @property
    def parameters(self) -> tuple[float, ...]:
        return (self.alpha, self.beta)[: PARAMETERS.get(self.mode, 0)]

    @property
    def output(self) -> Shape:
        first = self.inputs[0]
        if all(shape == first for shape in self.inputs):
            return first
        return Shape(*map(max, *self.inputs))

    @property
    def problem(self) -> str | None:
        if self.mode not in MODES:
            return f"mode={self.mode!r} must be one of {', '.join(MODES)}."
        wanted = 1 if self.mode in UNARY else 2
        if len(self.inputs) != wanted:
            return f"the mode {self.mode} takes {wanted} input(s), got {len(self.inputs)}."
        return None

    def synthesize(self, other: Op, dice: Random) -> Eltwise:
        """New sizes, with shared and broadcast axes as before."""
        h, w = map_size(self.output, dice)
        full = Shape(1, channels(self.output.c * width(dice)), h, w)
        shapes = (
            Shape(*(new if old > 1 else 1 for old, new in zip(shape, full, strict=True)))
            for shape in self.inputs
        )
        return replace(self, inputs=tuple(shapes))

    def needs(self, part: Region, index: int = 0) -> Region:
        """The region `part`, with the single index of each broadcast axis."""
        shape, output, single = self.inputs[index], self.output, Span(0, 1)
        if shape == output:
            return part
        return Region(
            part.images if shape.n == output.n else single,
            part.channels if shape.c == output.c else single,
            part.rows if shape.h == output.h else single,
        )

    def restrict(self, part: Region) -> Eltwise:
        shapes = (self.needs(part, i).shape(shape) for i, shape in enumerate(self.inputs))
        return self._with(inputs=tuple(shapes))

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        return MODES[self.mode](*inputs, *self.parameters)
