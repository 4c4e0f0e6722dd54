"""Windows above 3x3 by Winograd on the CPU: a sum of 3x3 convolutions over shifted inputs.

A 7x7 window, with zeros to 9x9, is nine windows of 3x3, each over the input shifted by as much as
it lies from the first. With the shifted inputs one above the other that is one 3x3 convolution of
nine times as many channels, which adds up the nine, and ncnn has Winograd for it; windows above 3x3
it only knows as matrix products. (Cf. Huang et al., "DWM: A Decomposable Winograd Method for
Convolution Acceleration", AAAI 2020.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codl.kernels.columns import (
    Column,
    ConvColumns,
    FeatureColumns,
    by_level,
    ceil_div,
    packed_vectors,
)
from codl.kernels.conv2d.cpu import CpuWinograd
from codl.kernels.ncnn import NcnnLayer, Shifts
from codl.kernels.variant import ByColumns, OnCpu
from codl.ops.base import Array, Pad, Weights
from codl.ops.conv2d import Conv2d
from codl.ops.region import Shape
from codl.ops.window import Size2
from codl.soc import Soc

#: The window that Winograd is for.
SIDE = 3
WINOGRAD = CpuWinograd()


@dataclass(frozen=True)
class CpuWinogradSum(OnCpu, ByColumns):
    """Square-ish windows from 4x4, of stride 1."""

    name: ClassVar[str] = "cpu_winograd_sum"
    op_kind: ClassVar[str] = "conv2d"
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if min(op.kernel) <= SIDE:
            return f"kernel must be above {SIDE} both ways, got {op.kernel}"
        return WINOGRAD.refusal(_inner(op), soc)

    def plan(self, op: Conv2d, soc: Soc) -> NcnnLayer:
        down, across = _times(op.kernel.h), _times(op.kernel.w)
        size = {3: op.output.w + SIDE - 1, 4: op.output.h + SIDE - 1, 5: op.input.c}
        padding = {
            0: op.pad.top,
            1: op.pad.bottom + SIDE * down - op.kernel.h,
            2: op.pad.left,
            3: op.pad.right + SIDE * across - op.kernel.w,
        }
        crops = tuple(
            {0: SIDE * x, 1: SIDE * y, 2: 0, **size} for y in range(down) for x in range(across)
        )
        layer = WINOGRAD.plan(_inner(op), soc)
        return replace(layer, shifts=Shifts(padding, crops), arrange=_arranged)

    def feature_columns(self, ops: ConvColumns, soc: Soc) -> FeatureColumns:
        """Those of the one convolution, and the copies of its input."""
        down, across = ceil_div(ops.kh, SIDE), ceil_div(ops.kw, SIDE)
        side, nothing = np.full_like(ops.ic, SIDE), np.zeros_like(ops.ic)
        inner = replace(
            ops,
            ic=ops.ic * down * across,
            ih=ops.oh + SIDE - 1,
            iw=ops.ow + SIDE - 1,
            kh=side,
            kw=side,
            **dict.fromkeys(("top", "left", "bottom", "right"), nothing),
        )
        pixels = inner.ih * inner.iw
        copied: Column = 4.0 * inner.ic * pixels
        copies = pixels * down * across * packed_vectors(ops.ic, soc.cpu.simd_floats)
        return {
            **WINOGRAD.feature_columns(inner, soc),
            "copied_vectors": copies,
            **by_level("copied", copied, soc.cpu.l2_cache_bytes),
        }


def _times(size: int) -> int:
    """How many windows of 3 cover one of `size`."""
    return -(-size // SIDE)


def _inner(op: Conv2d) -> Conv2d:
    """The 3x3 convolution of the shifted inputs, one above the other."""
    channels = op.input.c * _times(op.kernel.h) * _times(op.kernel.w)
    shape = Shape(op.input.n, channels, op.output.h + SIDE - 1, op.output.w + SIDE - 1)
    return replace(op, inputs=(shape,), kernel=Size2(SIDE, SIDE), pad=Pad(0, 0, 0, 0))


def _arranged(weights: Weights) -> Mapping[str, Array]:
    """The windows of 3x3 after one another, as so many more input channels."""
    weight = weights["weight"]
    oc, ic, height, width = weight.shape
    down, across = _times(height), _times(width)
    full = np.zeros((oc, ic, SIDE * down, SIDE * across), np.float32)
    full[:, :, :height, :width] = weight
    cut = full.reshape(oc, ic, down, SIDE, across, SIDE).transpose(0, 2, 4, 1, 3, 5)
    return {**weights, "weight": cut.reshape(oc, down * across * ic, SIDE, SIDE)}


VARIANT = CpuWinogradSum()
