"""Element-wise operators on one or two tensors, with broadcasting: residual adds, scales, gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ops.base import Dim, Op, Weights
from codl.ops.region import Region, Shape, Span

#: What every mode computes; those of one input come after the blank line.
MODES: Mapping[str, Callable[..., NDArray[np.float64]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "prelu": lambda x, slope: np.where(x < 0, slope * x, x),
    #
    "identity": lambda x: x,
}
UNARY = ("identity",)


@dataclass(frozen=True, kw_only=True)
class Eltwise(Op):
    """An axis of size 1 is stretched to the other input's; `identity` only has an activation."""

    mode: str = "add"

    kind: ClassVar[str] = "eltwise"

    @property
    def dims(self) -> tuple[Dim, ...]:
        return ("H", "OC")

    @property
    def acts_on_channels_alone(self) -> bool:
        return True

    @property
    def output(self) -> Shape:
        return Shape(*(max(sizes) for sizes in zip(*self.inputs, strict=True)))

    @property
    def flops(self) -> int:
        return self.output.elements

    def needs(self, part: Region, index: int = 0) -> Region:
        """The same region; all of an axis that is stretched."""
        shape, one = self.inputs[index], Span(0, 1)
        return Region(
            part.channels if shape.c == self.output.c else one,
            part.rows if shape.h == self.output.h else one,
        )

    def restrict(self, part: Region) -> Eltwise:
        shapes = (self.needs(part, i).shape(shape) for i, shape in enumerate(self.inputs))
        return replace(self, inputs=tuple(shapes))

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        function: Any = MODES[self.mode]
        return self.activation.reference(function(*inputs))
