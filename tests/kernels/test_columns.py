"""Features over columns of many ops: against one op at a time, and against plain integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_ops import attentions, convolutions, fully_connected, poolings, products
from support.simulated import SOC
from support.some import some

from codl.ir import Op
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.tuning import Tuning

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
