"""The same elements under other axes: a copy, or nothing where a tensor is planar already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Weights
from codl.ir.ops.nd import NdOp, Sizes


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
    def keeps_images(self) -> bool:
        return len(self.to) > 1 and self.shapes[0][:1] == self.to[:1]

    def for_images(self, count: int) -> dict[str, Any]:
        return {**super().for_images(count), "to": (count, *self.to[1:])}

    @property
    def flops(self) -> int:
        return 0

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        return self.activation.reference(inputs[0].reshape(self.output))
