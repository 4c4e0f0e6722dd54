"""Fallbacks of plans: what they change, and what keeps to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.executables import small_network, small_plan
from support.simulated import SOC

from codl.errors import CodlWarning, InvalidFileError
from codl.ir.plan import OpFallback, load_plan
from codl.ir.records import soc as socs
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.plan.build_plan import with_fallbacks

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


def test_a_soc_file_of_an_earlier_version_may_have_fallbacks(tmp_path: Path) -> None:
    path = SOC.save(tmp_path / "there.yaml")
    path.write_text(path.read_text() + "fallbacks:\n- {op: conv2d, instead: gpu_gemm}\n")
    with pytest.warns(CodlWarning, match="fallbacks are no longer read"):
        assert socs.load(path) == SOC
