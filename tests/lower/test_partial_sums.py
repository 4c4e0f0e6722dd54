"""Plans with partial sums: lowered, in NumPy, on a device, and checked op by op."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import here
from support.plans import Case, make_plan
from support.simulated import SOC
from support.some import some
from support.synthetic_predictors import SyntheticPredictors

from codl.engine.cpu_fallback import on_cpu
from codl.engine.engine import Engine
from codl.errors import MismatchError
from codl.evaluation.closeness import max_rel_err
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.ir.executable import Executable
from codl.ir.plan import Plan, load_plan
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.lower.partition import partition_plan
from codl.plan import op_placement
from codl.plan.build_plan import with_fallbacks
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.improver import Improver
from codl.records.soc import Soc
from codl.runtime.numpy_interpreter import Interpreter
from codl.runtime.placement import LocalSoc
from codl.validate.references import ModelAndSource
from codl.validate.validation import ModelUnderTest, to_precision, validate

FEATURES, WIDE = 32, 96


@pytest.fixture(scope="module")
def case() -> Case:
    """A feed-forward pair with a residual, and what ONNX Runtime makes of it."""
    b = ModelBuilder("pair")
    x = b.input("x", (1, 7, FEATURES))
    up = b.gelu(b.linear(x, WIDE))
    b.output(b.relu(b.add(b.linear(up, FEATURES), x)))
    proto = b.build()
    network = convert(simplify(import_onnx(proto, "pair")))
    given_x = np.random.default_rng(3).standard_normal((1, 7, FEATURES)).astype(np.float32)
    session = ort.InferenceSession(
        proto.SerializeToString(), session_options(1), ["CPUExecutionProvider"]
    )
    names = list(network.outputs)
    return network, given_x, dict(zip(names, session.run(names, {"x": given_x}), strict=True))


def pair_plan(case: Case, soc: Soc, cut: int = 40, dim: str = "OC", ratio: float = 0.4) -> Plan:
    """Both products as one chain, the second as partial sums; the rest cut otherwise."""
    network = case[0]
    down = network.layers[1].name
    written, _ = replace(make_plan(network, soc, []), sums={down: cut}).applied(network)
    cuts = [(2, "N", 0.5), (len(written.layers) - 2, dim, ratio)]
    return make_plan(written, soc, cuts, "missing").restored(network, {down: cut})


@given(
    cut=st.integers(1, WIDE // 4 - 1).map(lambda blocks: 4 * blocks),
    dim=st.sampled_from(["OC", "H"]),
    ratio=st.sampled_from([0.0, 0.4, 1.0]),
    sharing=st.sampled_from(["missing", "gather"]),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_any_cut_gives_the_outputs(
    cut: int, dim: str, ratio: float, sharing: str, case: Case
) -> None:
    network = case[0]
    plan = replace(pair_plan(case, SOC, cut, dim, ratio), sharing=sharing)
    check(lower(network, plan, SOC, Tuning()), case)


def check(executable: Executable, case: Case) -> None:
    _, x, expected = case
    interpreter = Interpreter(executable, poisoned=True)
    interpreter.inputs["x"].reshape(x.shape)[:] = x
    interpreter.run()
    for name, right in expected.items():
        assert max_rel_err(interpreter.outputs[name].reshape(right.shape), right) <= 1e-5


def test_only_terms_are_shared(case: Case) -> None:
    """Each processor has its features, and gets the term of the other one."""
    network = case[0]
    program = partition_plan(network, pair_plan(case, SOC, 40), SOC)
    first, second = program.segments
    features = [shard.parts[0].region.rows for shard in (first.gpu, first.cpu)]
    assert [(span.start, span.stop) for span in features] == [(0, 40), (40, WIDE)]
    assert {move.tensor for move in first.transfers} == {"x"}
    assert {move.tensor.removesuffix(".terms") for move in second.transfers} == {
        network.layers[1].output
    }
    placed = op_placement.predicted(network, pair_plan(case, SOC), SOC, None)
    reasons = [row.reason for row in placed if row.op == network.layers[1].name]
    assert len(reasons) == 2
    assert all(reason.startswith("a term of partial sums") for reason in reasons)


def test_on_a_device(case: Case, first_soc: LocalSoc) -> None:
    network, x, expected = case
    with Engine(network, pair_plan(case, first_soc, 41), here(first_soc)) as engine:
        for _ in range(2):
            outputs = engine({"x": x})
            for name, right in some(expected.items()):
                assert max_rel_err(outputs[name], right) <= 1e-4


def test_a_balanced_plan_keeps_them(case: Case) -> None:
    """Terms stay as the plan has them; chains have other ratios."""
    network, plan = case[0], pair_plan(case, SOC, dim="H")
    cost = covered(CostModel(SOC, SyntheticPredictors.with_all_terms(gpu=3.0)), network)
    moved = Improver(network, cost, SOC).balanced(plan)
    assert moved.sums == plan.sums
    assert [c.gpu_ratio for c in moved.chains] != [c.gpu_ratio for c in plan.chains]
    check(lower(network, moved, SOC, Tuning()), case)


def test_it_is_checked_op_by_op(case: Case, first_soc: LocalSoc) -> None:
    network, x, _ = case
    written, plan = pair_plan(case, first_soc).applied(network)
    found = validate(
        ModelUnderTest(ModelAndSource(written), here(first_soc), Tuning(), [{"x": x}]), plan
    )
    assert found.ok, found.diagnosis
    assert {one.part.layer.name for one in found.ops.checks} == {x.name for x in written.layers}


def test_what_changes_plans_keeps_them(case: Case, first_soc: LocalSoc) -> None:
    network = case[0]
    plan = pair_plan(case, first_soc)
    for other in (
        to_precision(network, plan, first_soc, "half_storage"),
        with_fallbacks(network, plan, []),
    ):
        assert other.sums == plan.sums
        lower(network, other, first_soc, Tuning())
    alone = on_cpu(network, plan, first_soc)
    assert not alone.sums
    lower(network, alone, first_soc, Tuning())


def test_plans_in_files(case: Case, tmp_path: Path) -> None:
    network = case[0]
    plan = pair_plan(case, SOC)
    assert load_plan(plan.save(tmp_path / "plan.json")) == plan
    assert plan.fingerprint != replace(plan, sums={network.layers[1].name: 48}).fingerprint
    assert lower(network, plan, SOC, Tuning()).network == network.digest


@pytest.mark.parametrize("sums", [{}, {"nothing": 4}, {"matmul2/MatMulAddFusion": WIDE}])
def test_plans_with_other_sums_are_refused(sums: dict[str, int], case: Case) -> None:
    with pytest.raises(MismatchError):
        lower(case[0], replace(pair_plan(case, SOC), sums=sums), SOC, Tuning())
