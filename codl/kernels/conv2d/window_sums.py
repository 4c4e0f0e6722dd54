"""Windows above 3x3 as sums of 3x3 windows over shifted inputs, which Winograd is for.

A 7x7 window, with zeros to 9x9, is nine windows of 3x3, each over the input shifted by as much as
it lies from the first. With the shifted inputs one above the other that is one 3x3 convolution of
nine times as many channels, which adds up the nine, and ncnn has Winograd for it; windows above 3x3
it only knows as matrix products. (Cf. Huang et al., "DWM: A Decomposable Winograd Method for
Convolution Acceleration", AAAI 2020.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from codl.ir.columns import (
    Column,
    FeatureColumns,
    ceil_div,
)
from codl.ir.ops.base import Array, Pad, Weights
from codl.ir.ops.convolution import (
    Conv2d,
    ConvColumns,
)
from codl.ir.ops.window import Size2
from codl.ir.region import Shape
from codl.kernels.feature_columns import (
    by_level,
    packed_vectors,
)
from codl.kernels.ncnn import NcnnLayer, Shifts
from codl.records.soc import Soc

#: The window of those that are added up.
SIDE = 3


def is_sum(op: Conv2d) -> bool:
    """Whether an op's window is larger than those that are added up, both ways."""
    return min(op.kernel) > SIDE


def inner(op: Conv2d) -> Conv2d:
    """The 3x3 convolution of the shifted inputs, one above the other; a 3x3 one as it is."""
    if not is_sum(op):
        return op
    channels = op.input.c * _times(op.kernel.h) * _times(op.kernel.w)
    shape = Shape(op.input.n, channels, op.output.h + SIDE - 1, op.output.w + SIDE - 1)
    return replace(op, inputs=(shape,), kernel=Size2(SIDE, SIDE), pad=Pad(0, 0, 0, 0))


def summed(layer: NcnnLayer, op: Conv2d) -> NcnnLayer:
    """`layer`, which convolves `inner(op)`, with the shifts that make its input of the op's."""
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
    return replace(layer, shifts=Shifts(padding, crops), arrange=_arranged)


def inner_columns(ops: ConvColumns) -> ConvColumns:
    """`inner` of each op."""
    larger = np.minimum(ops.kh, ops.kw) > SIDE
    found = {
        "ic": ops.ic * _windows(ops),
        "ih": ops.oh + SIDE - 1,
        "iw": ops.ow + SIDE - 1,
        **dict.fromkeys(("kh", "kw"), np.full_like(ops.ic, SIDE)),
        **dict.fromkeys(("top", "left", "bottom", "right"), np.zeros_like(ops.ic)),
    }
    columns = {name: np.where(larger, new, getattr(ops, name)) for name, new in found.items()}
    return replace(ops, **columns)


def copies(ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """What is copied to shift the inputs: nothing for windows of 3x3."""
    windows = _windows(ops)
    pixels = (ops.oh + SIDE - 1) * (ops.ow + SIDE - 1) * windows * (windows > 1)
    copied = 4.0 * ops.ic * pixels
    return {
        "copied_vectors": pixels * packed_vectors(ops.ic, soc.cpu.simd_floats),
        **by_level("copied", copied, soc.cpu.l2_cache_bytes),
    }


def _windows(ops: ConvColumns) -> Column:
    """How many windows are added up."""
    return ceil_div(ops.kh, SIDE) * ceil_div(ops.kw, SIDE)


def _times(size: int) -> int:
    """How many windows of 3 cover one of `size`."""
    return -(-size // SIDE)


def _arranged(weights: Weights) -> Mapping[str, Array]:
    """The windows of 3x3 after one another, as more input channels."""
    weight = weights["weight"]
    oc, ic, height, width = weight.shape
    down, across = _times(height), _times(width)
    full = np.zeros((oc, ic, SIDE * down, SIDE * across), np.float32)
    full[:, :, :height, :width] = weight
    cut = full.reshape(oc, ic, down, SIDE, across, SIDE).transpose(0, 2, 4, 1, 3, 5)
    return {**weights, "weight": cut.reshape(oc, down * across * ic, SIDE, SIDE)}
