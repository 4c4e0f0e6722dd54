"""Parts of ops of any rank in every kernel variant of either processor."""

from __future__ import annotations

import numpy as np
import pytest
from support.kernel_runs import Case
from support.nd_ops import CUT
from support.some import some

from codl.ir import Dim, Op, Region, Span, split, to_text
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

CASES = [pytest.param(op, dim, id=f"{dim} {to_text(op)}") for op in CUT for dim in op.dims]


def case_of(op: Op) -> Case:
    case = Case.of(op)
    if op.kind == "gather":
        case.inputs[1].flat[:] = np.arange(case.inputs[1].size) % 5 - 2
        case = Case(op, case.inputs, {}, op.reference([x.astype(float) for x in case.inputs], {}))
    return case


@pytest.mark.parametrize(("op", "dim"), CASES)
def test_shards_in_kernels_of_the_gpu(op: Op, dim: Dim, first_gpu: OpenClDevice) -> None:
    case = case_of(op)
    for part in some(split(op, dim, 0.4)):
        for variant in some(registry.variants(op.restrict(part), "gpu", first_gpu.soc)):
            case.on_gpu(variant, first_gpu, part)


@pytest.mark.parametrize(("op", "dim"), CASES)
def test_shards_in_nets_of_the_cpu(op: Op, dim: Dim, first_soc: Soc) -> None:
    case = case_of(op)
    for part in some(split(op, dim, 0.4)):
        for variant in some(registry.variants(op.restrict(part), "cpu", first_soc)):
            case.on_cpu(variant, first_soc, part)


def test_a_box_in_the_middle(first_gpu: OpenClDevice) -> None:
    """Cut through images, channels and rows at once, which lies nowhere in one piece."""
    for op in some(CUT):
        part = Region.whole(op.output)
        if len(op.dims) < 3:
            continue
        part = Region(*(Span(span.size // 3, -(-span.size // 3) + span.size // 3) for span in part))
        case = case_of(op)
        for variant in some(registry.variants(op.restrict(part), "gpu", first_gpu.soc)):
            case.on_gpu(variant, first_gpu, part)
