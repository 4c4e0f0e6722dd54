"""Where the maxima of a pooling lie: the second output of ONNX's MaxPool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Pad, Weights
from codl.ir.ops.nd import NdOp, Sizes
from codl.ir.ops.pool2d import Pool2d
from codl.ir.ops.window import Size2
from codl.ir.region import as_nchw


@dataclass(frozen=True, kw_only=True)
class MaxIndices(NdOp):
    """Indices into the whole input, of the first maximum of each window.

    Elements of an image's channel are counted row by row, or `by_columns`. Indices are stored as
    float32, which is exact up to 2^24.
    """

    kernel: Size2
    stride: Size2 = Size2(1, 1)
    pad: Pad = Pad(0, 0, 0, 0)
    dilation: Size2 = Size2(1, 1)
    by_columns: bool = False

    kind: ClassVar[str] = "max_indices"
    examples: ClassVar[tuple[str, ...]] = ("max_indices in=1x8x14x14 kernel=2 stride=2",)

    @property
    def pooling(self) -> Pool2d:
        """The pooling whose maxima these are."""
        shape = as_nchw(self.shapes[0])
        return Pool2d(
            inputs=(shape,),
            kernel=self.kernel,
            stride=self.stride,
            pad=self.pad,
            dilation=self.dilation,
        )

    @property
    def out_sizes(self) -> Sizes:
        return tuple(self.pooling.output)

    @property
    def flops(self) -> int:
        return self.pooling.flops

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        pooling, (n, c, h, w) = self.pooling, as_nchw(self.shapes[0])
        order = np.arange(h * w, dtype=np.float64).reshape((w, h) if self.by_columns else (h, w))
        places = np.broadcast_to(order.T if self.by_columns else order, (n, c, h, w))
        places = places + np.arange(n * c).reshape(n, c, 1, 1) * (h * w)
        values = pooling.windows(inputs[0].reshape(n, c, h, w), -np.inf)
        first = values.reshape(*self.out_sizes, -1).argmax(-1)
        seen = pooling.windows(places, -1.0).reshape(*self.out_sizes, -1)
        taken = np.take_along_axis(seen, first[..., None], -1)[..., 0]
        return self.activation.reference(taken)
