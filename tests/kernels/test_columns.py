"""Features over columns of many ops: against one op at a time, and against plain integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from platform import machine
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_runs import run_cpu
from support.random_ops import attentions, convolutions, fully_connected, poolings, products
from support.simulated import SOC
from support.some import some

from codl.ir import Array, Op, Region, parse
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.ops.matmul import (
    Attention,
    AttentionColumns,
    FcColumns,
    FullyConnected,
    MatMul,
    MatMulColumns,
)
from codl.ir.ops.window import Pool2d, PoolColumns, WindowColumns
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels import tiling as caches
from codl.kernels.conv2d.cpu import DIRECT, TILES, WINOGRAD, usual_tile
from codl.kernels.cpu import CpuKernel, NcnnLayer
from codl.kernels.tuning import Tuning
from codl.measure.op_runner import operands
from codl.predict import features

GPU = replace(
    SOC.gpu, type="cpu", compute_units=1, max_work_group_size=4096, wave_size=1, vector_width=16
)
CPU = SOC.cpu
#: One core, a few narrower ones, and a device that runs work-items in lockstep.
SOCS = (
    Soc("one", "", CPU, GPU),
    Soc("few", "", CPU, replace(GPU, compute_units=3, vector_width=8)),
    Soc("known", "", CPU, replace(GPU, compute_units=2, vector_width=8, vector_registers=16)),
    Soc("real", "", CPU, replace(GPU, type="gpu", compute_units=12, vector_width=4, wave_size=32)),
)
KINDS = {
    Conv2d: ConvColumns,
    Pool2d: PoolColumns,
    FullyConnected: FcColumns,
    MatMul: MatMulColumns,
    Attention: AttentionColumns,
}
OPS = convolutions() | poolings() | fully_connected() | products() | attentions()


def one_tile(tile: int) -> CpuKernel:
    """Winograd with the tile that is told, and not the one that ncnn would take."""
    tiles = {f"use_winograd{size}3_convolution": size == tile for size in TILES}

    def describe(op: Conv2d) -> NcnnLayer:
        layer: NcnnLayer = WINOGRAD.describe(op)
        return replace(layer, options={**layer.options, **tiles})

    return replace(WINOGRAD, describe=describe)


def by_columns(op: Op) -> list[Any]:
    return [v for v in registry.known_to(op) if v.op_columns is not None]


def values_of(found: Any, name: str) -> np.ndarray[Any, Any]:
    return np.asarray(getattr(found, name))


@given(ops=st.lists(OPS, min_size=1, max_size=12))
@settings(max_examples=100)
def test_columns_hold_the_sizes_that_ops_have(ops: list[Op]) -> None:
    for kind, of_kind in KINDS.items():
        own: list[Any] = [op for op in ops if isinstance(op, kind)]
        if not own:
            continue
        found = of_kind.of(own)
        assert len(found) == len(own)
        assert list(values_of(found, "flops")) == [op.flops for op in own]
        sizes = found.input_elements + found.weight_elements + found.output_elements
        assert list(4 * sizes) == [op.bytes for op in own]
        if isinstance(found, WindowColumns):
            assert list(found.oh) == [op.output.h for op in own]
            assert list(found.ow) == [op.output.w for op in own]
            assert list(found.extent_h) == [op.extent.h for op in own]
            assert list(found.window) == [op.kernel.h * op.kernel.w for op in own]
        if isinstance(found, ConvColumns):
            assert list(found.is_depthwise) == [op.is_depthwise for op in own]
        some = found.take(slice(1, 3))
        assert list(values_of(some, "flops")) == [op.flops for op in own[1:3]]


@given(ops=st.lists(OPS, min_size=1, max_size=12))
@settings(max_examples=60)
def test_many_ops_have_the_features_that_each_has_alone(ops: list[Op]) -> None:
    for soc in some(SOCS):
        for variant in some({v for op in ops for v in by_columns(op)}):
            own = [
                op for op in ops if op.kind == variant.op_kind and variant.refusal(op, soc) is None
            ]
            if own:
                check_alone(variant, own, soc)


def check_alone(variant: Any, ops: Sequence[Op], soc: Soc) -> None:
    """Also that no feature is negative."""
    table = Tuning().feature_columns(variant, ops, soc)
    rows = [variant.features(op, soc) for op in ops]
    for at, row in enumerate(rows):
        assert list(row) == list(table), variant.name
        assert row == {name: values[at] for name, values in table.items()}, variant.name
        assert all(np.isfinite(v) and v >= 0 for v in row.values()), row


@given(size=st.integers(0, 5000))
def test_halvings_count_vectors_of_falling_width(size: int) -> None:
    steps, left, width = 0, size, 16
    while left:
        while left < width:
            width //= 2
        steps, left = steps + left // width, left % width
    assert caches.halvings(np.array([float(size)]), 16)[0] == steps


PARTS = [
    parse(f"conv2d in=1x64x{h}x56 oc={oc} kernel=3x3 pad=1")
    for oc in range(16, 129, 16)
    for h in (4, 8, 12)
]


@pytest.mark.parametrize("soc", SOCS, ids=lambda soc: soc.name)
def test_more_output_channels_never_cost_fewer_operations_or_bytes(soc: Soc) -> None:
    for variant in some(by_columns(PARTS[0])):
        if any(variant.refusal(part, soc) for part in PARTS):
            continue
        table = features.table("variant", registry.target(variant, PARTS[0]), PARTS, soc)
        at = {name: index for index, name in enumerate(table.names)}
        # With more channels ncnn takes another tile, which may compute less.
        by_tile = {"padded_macs", "weight_bytes"} if variant.name == "cpu_winograd" else set()
        for name in some({"flops", "weight_bytes", "output_bytes", "padded_macs"} - by_tile):
            if name in at:
                by_height = table.values[:, at[name]].reshape(-1, 3)
                assert (np.diff(by_height, axis=0) >= 0).all(), (variant.name, name)


#: Channels in and out, and rows and columns, on either side of what decides.
SIZES = (
    *((ic, oc, size, 30) for ic in (17, 32, 64) for oc in (8, 16, 48) for size in (4, 9, 13, 30)),
    *((ic, oc, 9, size) for ic in (8, 128, 512) for oc in (32, 64, 256) for size in (6, 9, 11)),
    *((24, 24, size, size) for size in (21, 25, 36, 37, 42, 75, 76, 108)),
    *((8, 24, 46, size) for size in (31, 34, 46, 47)),
    *((100, oc, 18, 18) for oc in (128, 512)),
)


@pytest.mark.skipif(machine() not in ("x86_64", "AMD64"), reason="other machines, other choices")
def test_the_tile_that_is_counted_is_the_one_that_ncnn_takes(first_soc: Soc) -> None:
    """Tiles round differently, so the outputs of only one tile are those of ncnn's choice."""
    ops = [parse(f"conv2d in=1x{c}x{h}x{w} oc={o} kernel=3x3 pad=1") for c, o, h, w in SIZES]
    found = []
    for op in ops:
        variants = (WINOGRAD, *map(one_tile, TILES))
        usual, *others = (cpu_output(op, variant, first_soc) for variant in variants)
        same = [t for t, other in zip(TILES, others, strict=True) if np.array_equal(usual, other)]
        assert len(same) == 1
        found += same
    assert set(found) == set(TILES)
    assert found == usual_tile(ConvColumns.of(ops)).tolist()


def cpu_output(op: Op, variant: CpuKernel, soc: Soc) -> Array:
    inputs, weights = operands(op)
    return run_cpu(variant, op, Region.whole(op.output), inputs, weights, soc)


@given(st.data())
def test_rows_of_taps_in_the_input_are_counted(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    kernel, stride, dilation = draw(1, 5), draw(1, 3), draw(1, 2)
    top, bottom = draw(0, kernel), draw(0, kernel)
    rows = max(draw(1, 12), (kernel - 1) * dilation + 1 - top - bottom)
    op = parse(
        f"conv2d in=1x4x{rows}x9 oc=4 kernel={kernel}x1 stride={stride}x1 "
        f"dilation={dilation}x1 pad={top},0,{bottom},0"
    )
    taps = (
        0 <= out * stride + tap * dilation - top < rows
        for out in range(op.output.h)
        for tap in range(kernel)
    )
    inside = sum(taps)
    turned = parse(
        f"conv2d in=1x4x9x{rows} oc=4 kernel=1x{kernel} stride=1x{stride} "
        f"dilation=1x{dilation} pad=0,{top},0,{bottom}"
    )
    assert ConvColumns.of([op]).tap_rows[0] == inside
    assert ConvColumns.of([turned]).tap_columns[0] == inside


def plain_general_steps(op: Conv2d, lanes: int) -> tuple[float, float, float]:
    """Multiply-adds of ncnn's general direct kernel, those that wait, and chunks, loop by loop."""
    steps = waits = chunks = 0.0
    taps, left = op.kernel.h * op.kernel.w, op.out_channels
    longer = 1 + 2 * min(max((taps - 9) / 40, 0), 1)
    for width in (lanes, lanes // 2, lanes // 4, lanes // 8, lanes // 16):
        while width and left >= width:
            left -= width
            effort = 1.0 if width == lanes else 0.7
            inputs = op.input.c
            for chunk in (16, 8, 4, 2, 1):
                while inputs >= chunk:
                    inputs -= chunk
                    chunks += effort
                    if chunk >= 4:
                        steps += effort * chunk * taps
                    else:
                        waits += effort * taps * longer
    pixels = op.output.h * op.output.w
    return steps * pixels, waits * pixels, chunks * pixels


@pytest.mark.parametrize(
    ("text", "is_general"),
    [
        ("in=1x3x40x30 oc=32 kernel=3x3 stride=2x2 pad=1", True),
        ("in=1x3x20x20 oc=24 kernel=7x7 stride=2x2 pad=3", True),
        ("in=1x31x9x9 oc=27 kernel=5x5 pad=2", True),
        ("in=1x48x9x9 oc=24 kernel=3x3 pad=1", True),
        ("in=1x40x9x9 oc=24 kernel=3x3 pad=1", False),
        ("in=1x40x9x9 oc=24 kernel=3x3 stride=2x2 pad=1", True),
        ("in=1x3x9x9 oc=24 kernel=3x3 pad=1", False),
        ("in=1x16x9x9 oc=17 kernel=3x3 pad=1", False),
        ("in=1x16x9x9 oc=16 kernel=3x3 pad=1 groups=16", False),
    ],
)
def test_steps_of_direct_convolution_are_those_of_ncnns_loops(text: str, is_general: bool) -> None:
    op = parse(f"conv2d {text}")
    assert isinstance(op, Conv2d)
    found = DIRECT.features(op, SOCS[0])
    wanted = plain_general_steps(op, 16) if is_general else (0, 0, 0)
    own = (found["sum_steps"], found["waiting_steps"], found["chunks"])
    assert own == pytest.approx(wanted, rel=1e-12)
    others = [found[name] for name in ("eight_steps", "planar_steps", "depthwise_steps")]
    assert sum(value > 0 for value in others) == (not is_general)
