"""Two-dimensional convolution: any kernel, stride, padding, dilation and number of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Pad, Weights
from codl.ir.ops.grouped import GroupedOp
from codl.ir.ops.window import WindowOp
from codl.ir.region import Region, Shape


@dataclass(frozen=True, kw_only=True)
class Conv2d(GroupedOp, WindowOp):
    """`weight` is (out_channels, in_channels / groups, kernel h, kernel w), `bias` (out_channels).

    A cut through OC leaves groups whole (`channel_step`).
    """

    kind: ClassVar[str] = "conv2d"

    @property
    def output(self) -> Shape:
        return Shape(self.input.n, self.out_channels, *self.out_hw)

    @property
    def flops(self) -> int:
        per_output = 2 * (self.input.c // self.groups) * self.kernel.h * self.kernel.w
        return per_output * self.output.elements

    def needs(self, part: Region, index: int = 0) -> Region:
        rows = self.input_rows(part.rows)[0]
        return Region(part.images, self.group_inputs(part.channels), rows)

    def restrict(self, part: Region) -> Conv2d:
        rows, above, below = self.input_rows(part.rows)
        needed = Region(part.images, self.group_inputs(part.channels), rows)
        _, left, _, right = self.pad
        return self._with(
            inputs=(needed.shape(self.inputs[0]),),
            out_channels=part.channels.size,
            groups=self.group_span(part.channels).size,
            pad=Pad(above, left, below, right),
        )

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        weight = weights["weight"].astype(np.float64)
        windows = self.windows(inputs[0], 0.0)
        out = np.empty(self.output, np.float64)
        ic, oc = self.input.c // self.groups, self.out_channels // self.groups
        for g in range(self.groups):
            part = windows[:, g * ic : (g + 1) * ic]
            filters = weight[g * oc : (g + 1) * oc]
            out[:, g * oc : (g + 1) * oc] = np.einsum("nchwij,ocij->nohw", part, filters)
        out += weights["bias"].astype(np.float64)[None, :, None, None]
        return self.activation.reference(out)
