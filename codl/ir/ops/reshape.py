"""The same elements under other axes: a copy, or nothing where a tensor is planar already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Activation, Weights
from codl.ir.ops.nd import NdOp, Sizes, resized
from codl.ir.ops.regrouping import Origin, origins
from codl.ir.region import Span


@dataclass(frozen=True, kw_only=True)
class Reshape(NdOp):
    """`to` has as many elements as the input."""

    to: Sizes

    kind: ClassVar[str] = "reshape"
    examples: ClassVar[tuple[str, ...]] = ("reshape in=1x64x14x14 to=1x12544",)
    is_light: ClassVar[bool] = True

    @property
    def out_sizes(self) -> Sizes:
        return self.to

    @property
    def keeps_order(self) -> bool:
        return self.activation == Activation()

    @cached_property
    def _origins(self) -> Mapping[int, Origin]:
        return origins(self.to, self.shapes[0])

    @property
    def free_axes(self) -> Iterable[int]:
        return self._origins

    def source(self, axis: int, index: int) -> int:
        return self._origins[axis].axis

    def needed(self, axis: int, span: Span) -> Span:
        return self._origins[axis].of(span)

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        return {"to": resized(self.to, cuts)}

    @property
    def flops(self) -> int:
        return 0

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        return self.activation.reference(inputs[0].reshape(self.output))
