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
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.conv2d.cpu import TILES, WINOGRAD, usual_tile
from codl.kernels.cpu import CpuKernel, NcnnLayer
from codl.kernels.tuning import Tuning
from codl.measure.op_runner import operands

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
