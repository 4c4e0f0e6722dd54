"""Fallbacks of plans and of SoC files: what they change, and what keeps to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.executables import small_network, small_plan
from support.simulated import SOC
from support.synthetic_predictors import SyntheticPredictors

from codl.errors import InvalidFileError, MismatchError
from codl.ir import parse, split, to_text
from codl.ir.plan import OpFallback, load_plan, those_of
from codl.ir.records import soc as socs
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.plan.build_plan import for_soc, with_fallbacks
from codl.plan.cost_model import CostModel
from codl.plan.search import search

NETWORK = small_network()
PLAN = small_plan(NETWORK, SOC)
OTHER = OpFallback("op1", "gpu", "gpu_direct", "gpu_gemm", "wrong: 3 NaN")
AWAY = OpFallback("op1", "gpu", "gpu_direct", "cpu_direct", "wrong")


def test_another_variant_leaves_the_chains_as_they_are() -> None:
    plan = with_fallbacks(NETWORK, PLAN, [OTHER])
    assert [one.ops for one in plan.chains] == [one.ops for one in PLAN.chains]
    assert plan.chains[0].variants["op1"]["gpu"] == "gpu_gemm"
    assert plan.chains[0].variants["op1"]["cpu"] == PLAN.chains[0].variants["op1"]["cpu"]
    assert (plan.fallbacks, plan.predicted_ms) == ((OTHER,), None)


def test_a_layer_that_goes_to_the_other_processor_is_cut_out_of_its_chain() -> None:
    plan = with_fallbacks(NETWORK, PLAN, [AWAY])
    assert [one.ops for one in plan.chains[:3]] == [("op0",), ("op1",), ("op2",)]
    assert [one.gpu_ratio for one in plan.chains[:3]] == [0.5, 0.0, 0.5]
    assert plan.chains[1].variants == {"op1": {"cpu": "cpu_direct"}}
    assert [one.ops for one in plan.chains[3:]] == [one.ops for one in PLAN.chains[1:]]
    lower(NETWORK, plan, SOC, Tuning())


def test_a_plan_keeps_them_in_its_file(tmp_path: Path) -> None:
    plan = with_fallbacks(NETWORK, PLAN, [OTHER, AWAY])
    assert load_plan(plan.save(tmp_path / "plan.json")).fallbacks == (OTHER, AWAY)
    content = json.loads((tmp_path / "plan.json").read_text())
    del content["fallbacks"]
    (tmp_path / "older.json").write_text(json.dumps(content))
    assert load_plan(tmp_path / "older.json").fallbacks == ()


@pytest.mark.parametrize("wrong", [3, [3], [{"op": "a"}], [{**vars(OTHER), "processor": "npu"}]])
def test_a_damaged_list_in_a_plan_is_refused(tmp_path: Path, wrong: object) -> None:
    content = json.loads(PLAN.save(tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**content, "fallbacks": wrong}))
    with pytest.raises(InvalidFileError, match="fallbacks"):
        load_plan(tmp_path / "plan.json")


def test_a_soc_file_has_ops_by_their_text(tmp_path: Path) -> None:
    (one,) = for_soc(NETWORK, [OTHER, OTHER])
    assert parse(one.op) == NETWORK.layers[1].op
    path = replace(SOC, fallbacks=(one,)).save(tmp_path / "there.yaml")
    loaded = socs.load(path)
    assert loaded.fallbacks == (one,)
    assert loaded.is_as_in(SOC.to_dict()), "latencies do not depend on it"
    path.write_text(path.read_text().replace("kernel=3x3", "kernel=none"))
    with pytest.raises(InvalidFileError, match=r"fallbacks\[0\].op"):
        socs.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=1x8x13x11 oc=24 kernel=3x3 pad=1 stride=2",
        "pooling in=2x8x12x9 kernel=3x3 stride=2 pad=1",
        "matmul in=5x7,7x6",
    ],
)
def test_parts_of_an_op_are_meant_and_others_are_not(text: str) -> None:
    op = parse(text)
    known = [OpFallback(to_text(op), "gpu", "a", "b")]
    assert those_of(known, op, "gpu") == known
    assert those_of(known, op, "cpu") == []
    for dim in op.dims:
        for ratio in (0.2, 0.5, 0.8):
            for region in split(op, dim, ratio):
                assert those_of(known, op.restrict(region), "gpu") == known
    other = parse("conv2d in=1x8x13x11 oc=24 kernel=1x1")
    assert those_of(known, other, "gpu") == []


def test_only_what_stands_in_is_left_on_a_soc() -> None:
    op = NETWORK.layers[1].op
    names = [variant.name for variant in registry.variants(op, "gpu", SOC)]
    soc = replace(SOC, fallbacks=for_soc(NETWORK, [OTHER]))
    assert "gpu_direct" in names
    assert [variant.name for variant in registry.variants(op, "gpu", soc)] == ["gpu_gemm"]
    unfit = [v.name for v in registry.variants(op, "gpu", soc, include_unfit=True)]
    assert {*names} <= {*unfit}, "checks and benchmarks run every one"
    assert registry.variants(op, "cpu", soc) == registry.variants(op, "cpu", SOC)
    away = replace(SOC, fallbacks=for_soc(NETWORK, [AWAY]))
    assert registry.variants(op, "gpu", away) == []
    half = replace(OTHER, instead="gpu_direct_fp16")
    narrow = replace(SOC, fallbacks=for_soc(NETWORK, [half]))
    found = [variant.name for variant in registry.variants(op, "gpu", narrow)]
    assert found == ["gpu_direct_fp16"], "of another type than the SoC's"


def test_plans_are_made_by_it_and_others_refused() -> None:
    soc = replace(SOC, fallbacks=for_soc(NETWORK, [AWAY]))
    with pytest.raises(MismatchError, match="'op1' in gpu_direct"):
        lower(NETWORK, PLAN, soc, Tuning())
    plan = search(NETWORK, CostModel(soc, SyntheticPredictors(gpu=3.0)), "codl")
    (chain,) = (one for one in plan.chains if "op1" in one.ops)
    assert (chain.gpu_ratio, set(chain.variants["op1"])) == (0.0, {"cpu"})
    lower(NETWORK, plan, soc, Tuning())
