"""Element-wise operators on one or two tensors, with broadcasting: residual adds, scales, gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Dim, Op, Weights
from codl.ir.region import Region, Shape, Span


def _softplus(x: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = np.logaddexp(x, 0)
    return result


#: What every mode computes, those of one input behind the others. Some take the op's `alpha`, and
#: `beta`.
MODES: Mapping[str, Callable[..., NDArray[np.float64]]] = {
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
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "mish": lambda x: x * np.tanh(_softplus(x)),
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
#: How many of `alpha` and `beta` a mode takes; none where it is not listed.
PARAMETERS: Mapping[str, int] = {"selu": 2, "celu": 1, "thresholded_relu": 1, "shrink": 2}


@dataclass(frozen=True, kw_only=True)
class Eltwise(Op):
    """An axis of size 1 is stretched to the other input's; `identity` only has an activation."""

    mode: str = "add"
    alpha: float = 0.0
    beta: float = 0.0

    kind: ClassVar[str] = "eltwise"

    @property
    def parameters(self) -> tuple[float, ...]:
        return (self.alpha, self.beta)[: PARAMETERS.get(self.mode, 0)]

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
        return ("H", "OC")

    @property
    def acts_on_channels_alone(self) -> bool:
        return True

    @property
    def output(self) -> Shape:
        first = self.inputs[0]
        if all(shape == first for shape in self.inputs):
            return first
        return Shape(*map(max, *self.inputs))

    @property
    def flops(self) -> int:
        return self.output.elements

    def needs(self, part: Region, index: int = 0) -> Region:
        """The same region; all of an axis that is stretched."""
        shape, output, one = self.inputs[index], self.output, Span(0, 1)
        if shape == output:
            return part
        return Region(
            part.images if shape.n == output.n else one,
            part.channels if shape.c == output.c else one,
            part.rows if shape.h == output.h else one,
        )

    def restrict(self, part: Region) -> Eltwise:
        shapes = (self.needs(part, i).shape(shape) for i, shape in enumerate(self.inputs))
        return self._with(inputs=tuple(shapes))

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        function: Any = MODES[self.mode]
        return self.activation.reference(function(*inputs, *self.parameters))
