"""What ncnn's direct convolution does, by which of its kernels an op gets.

On x86 channels lie in packs of 16, 8 or 4, whichever divides them, or one by one. For 3x3 windows
and some pairs of packs there are kernels that take all pixels of one input channel after the other;
depthwise convolutions have theirs. All else runs in one that makes a pixel of the output after the
other, a vector of its channels at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import (
    Column,
    FeatureColumns,
    rest,
)
from codl.ir.ops.convolution import (
    ConvColumns,
)
from codl.kernels.feature_columns import (
    FIRST_LEVEL,
    beyond,
    by_level,
    halvings,
)
from codl.records.soc import Soc

#: A step of less than a whole vector beside one of a whole: loads are what it waits for, and two
#: narrow ones take less than a wide one.
NARROW = 0.7
#: The same for depthwise windows, of half a vector (or of a quarter) and of a single channel.
NARROW_DEPTHWISE, SINGLE_DEPTHWISE = 0.5, 0.35
#: A strided step of the kernels for single input channels beside one that is not.
STRIDED = 1.1
#: Sums over the last few input channels wait for themselves, the longer the more taps a window has
#: beyond `TAPS`: fewer windows fit in what the core looks ahead.
WAITING, TAPS, MORE_TAPS = 2.0, 9, 40

Mask = NDArray[np.bool_]


def _pack(channels: Column, lanes: int) -> Column:
    """Channels of one pack."""
    pack = np.ones_like(channels)
    for width in (4, 8, 16):
        if width <= lanes:
            pack[rest(channels, width) == 0] = width
    return pack


@dataclass(frozen=True)
class _Kernels:
    """Which kernel every op gets, by packs of input and of output channels."""

    ops: ConvColumns
    lanes: int

    @cached_property
    def packs(self) -> tuple[Column, Column]:
        return _pack(self.ops.ic, self.lanes), _pack(self.ops.oc, self.lanes)

    @cached_property
    def small(self) -> Mask:
        """3x3 windows without gaps, those of depthwise convolutions apart."""
        ops = self.ops
        small: Mask = (ops.kh == 3) & (ops.kw == 3) & (ops.dh == 1) & (ops.dw == 1)
        small &= ~ops.is_depthwise
        return small

    @cached_property
    def eight(self) -> Mask:
        """From packs of 8 to packs of 8."""
        before, after = self.packs
        eight: Mask = self.small & (self.ops.sh == 1) & (before == 8) & (after == 8)
        return eight

    @cached_property
    def planar(self) -> Mask:
        """From single channels to packs of 8 or 4."""
        before, after = self.packs
        planar: Mask = self.small & (before == 1) & ((after == 8) | (after == 4))
        return planar & (self.ops.sh <= 2)

    @cached_property
    def single(self) -> Mask:
        """From packs of 16 or 8 to single channels."""
        before, after = self.packs
        single: Mask = self.small & (self.ops.sh == 1) & (before >= 8) & (after == 1)
        return single

    @cached_property
    def general(self) -> Mask:
        return ~(self.ops.is_depthwise | self.eight | self.planar | self.single)


def direct_columns(ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """The features of `CpuDirect`."""
    lanes, cache = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes
    kernels = _Kernels(ops, lanes)
    padded_bytes = 4.0 * ops.ic * ops.padded_h * ops.padded_w
    moved = by_level("moved", padded_bytes + 4.0 * ops.oc * ops.pixels, cache)
    return {
        **_general(kernels, cache),
        **_special(kernels),
        **_depthwise(kernels),
        "padded_bytes": padded_bytes,
        "moved_beyond": moved["moved_beyond"],
        "moved_far": moved["moved_far"],
        "weight_bytes": 4.0 * ops.oc * ops.group_ic * ops.window,
    }


def _general(kernels: _Kernels, cache_bytes: float) -> FeatureColumns:
    """The kernel for everything: for each pixel a vector of outputs, over chunks of input channels.

    A chunk is of 16 channels, or of a half of that and so on for the rest. With four channels or
    more there are four sums at a time, with fewer the next waits for the last. The weights of a
    vector of outputs, its panel, are read again for every pixel.
    """
    ops, lanes, here = kernels.ops, kernels.lanes, kernels.general
    inputs = ops.group_ic
    whole = np.floor(ops.oc / lanes)
    narrow = halvings(ops.oc - whole * lanes, lanes // 2)
    vectors = ops.pixels * (whole + NARROW * narrow) * here
    left = rest(inputs, 4)
    waits = (left >= 2) + rest(left, 2)
    longer = 1 + WAITING * np.clip((ops.window - TAPS) / MORE_TAPS, 0, 1)
    panel = 4.0 * lanes * inputs * ops.window

    def streamed(level_bytes: float) -> Column:
        panels = whole * beyond(panel, level_bytes) + narrow * beyond(panel / 2, level_bytes)
        return ops.pixels * panels * here

    return {
        "sum_steps": vectors * ops.window * (inputs - left),
        "waiting_steps": vectors * ops.window * waits * longer,
        "chunks": vectors * halvings(inputs, 16),
        "panels_streamed": streamed(FIRST_LEVEL),
        "panels_far": streamed(cache_bytes),
        "output_vectors": ops.pixels * np.ceil(ops.oc / kernels.packs[1]),
    }


def _special(kernels: _Kernels) -> FeatureColumns:
    """The kernels for 3x3 windows, in half vectors, two of them at a time where one comes alone."""
    ops, before = kernels.ops, kernels.packs[0]
    windows = ops.pixels * ops.window
    steps = windows * ops.ic * np.ceil(ops.oc / 8)
    planar = steps * np.where(ops.sh > 1, STRIDED, 1.0)
    single = windows * ops.oc * ops.ic / before
    return {
        "eight_steps": steps * kernels.eight,
        "planar_steps": planar * kernels.planar + single * kernels.single,
    }


def _depthwise(kernels: _Kernels) -> FeatureColumns:
    ops, pack = kernels.ops, kernels.packs[1]
    efforts = [SINGLE_DEPTHWISE, 1.0]
    effort = np.select([pack == 1, pack == kernels.lanes], efforts, NARROW_DEPTHWISE)
    steps = ops.pixels * ops.oc / pack * ops.window * effort * ops.is_depthwise
    return {
        "depthwise_steps": steps * (ops.sh == 1),
        "depthwise_strided_steps": steps * (ops.sh > 1),
    }
