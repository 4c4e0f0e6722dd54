"""Engines that adapt: changes on a scripted device, and outputs across one on a real device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.devices import here
from support.plans import branching_case, image, legal, make_plan, row
from support.scripted_target import LOCAL, ScriptedModel, ScriptedTarget, context_of
from support.synthetic_predictors import SyntheticContext, SyntheticPredictors

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.ir.records.results import Latency
from codl.machine.placement import LocalSoc
from codl.measure.closeness import max_rel_err
from codl.measure.timing import TimedTogether
from codl.plan.build_plan import default_plan
from codl.plan.corrections import waiting
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.search import search
from codl.plan.strategies.adapter import APART, FIRST, MOST, PlanAdapter
from codl.targets.connect import connect

NETWORK = row(4, 96)
PREDICTORS = SyntheticPredictors.with_all_terms(flops=2e7, gpu=1.3)


class Served:
    """An engine of the plan that is predicted fastest, on a scripted device."""

    def __init__(self) -> None:
        self.cost = covered(CostModel(LOCAL, PREDICTORS), NETWORK)
        self.target = ScriptedTarget(self.cost)
        self.context = context_of(self.target, PREDICTORS, None)
        found = search(NETWORK, self.cost, "test")
        self.engine = Engine(NETWORK, found, self.target)  # type: ignore[arg-type]
        self.adapter = PlanAdapter(self.context, NETWORK)
        self.engine.adapt(self.adapter)
        self.engine.feed(image(NETWORK))

    @property
    def waits(self) -> float:
        return waiting(self.target.times(self.engine.executable))

    def serve(self, inferences: int) -> None:
        for _ in range(inferences):
            self.engine.run()


def test_a_slower_processor_gets_less() -> None:
    served = Served()
    served.serve(1000)
    before = served.engine.plan
    assert served.adapter.adaptation.changes == ()
    served.target.shards = {"cpu": 1.5}
    slow_ms = served.engine.loaded.latency_ms  # type: ignore[attr-defined]
    assert served.waits > APART
    served.serve(MOST + 2 * FIRST)
    assert served.waits < APART
    change, *_ = served.adapter.adaptation.changes
    assert 1000 < change.runs <= 1000 + MOST + FIRST
    assert change.before_ms == pytest.approx(slow_ms)
    assert change.after_ms < 0.98 * slow_ms
    assert served.engine.loaded.latency_ms <= change.after_ms  # type: ignore[attr-defined]
    assert sum(change.gpu_ratios) > sum(chain.gpu_ratio for chain in before.chains)
    after = served.engine.plan
    assert [(c.ops, c.dim, c.variants) for c in after.chains] == [
        (c.ops, c.dim, c.variants) for c in before.chains
    ]
    # The first state again, and the first ratios.
    served.target.shards = {}
    served.serve(MOST + 2 * FIRST)
    assert served.waits < APART


@pytest.mark.parametrize("slower", [1.0, 2.0])
def test_nothing_changes_where_both_are_as_fast_beside_each_other_as_before(slower: float) -> None:
    """A profile costs at most one inference in fifty."""
    served = Served()
    served.serve(100)
    served.target.slower = slower
    served.serve(1900)
    assert served.adapter.adaptation.changes == ()
    assert served.adapter.adaptation.runs == 2000
    assert len(served.target.loaded) == 1
    assert served.target.runs - 2000 < 2000 / 50


def test_a_plan_that_fails_to_load_changes_nothing_until_the_machine_does() -> None:
    served = Served()
    before, loaded = served.engine.plan, served.engine.loaded
    tried: list[int] = []

    def fails(executable: Any) -> None:
        tried.append(served.adapter.runs)
        raise DeviceError("out of memory")

    served.target.fails = fails
    served.target.shards = {"cpu": 1.5}
    served.serve(3000)
    assert tried == [2 * FIRST]
    assert served.engine.plan is before
    assert served.engine.loaded is loaded
    assert served.adapter.adaptation.changes == ()
    served.target.fails, served.target.shards = None, {"cpu": 1.8}
    served.serve(MOST + 2 * FIRST)
    assert len(served.adapter.adaptation.changes) == 1


def test_a_plan_that_is_no_faster_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    before = served.engine.plan

    def same(models: dict[str, Any], *_: Any, **__: Any) -> TimedTogether:
        return TimedTogether({name: Latency(1.0, 1.0, 1.0, 4) for name in models})

    monkeypatch.setattr(served.target, "time", same)
    closed: list[Any] = []
    monkeypatch.setattr(ScriptedModel, "close", lambda model: closed.append(model))
    served.target.shards = {"cpu": 1.5}
    served.serve(3000)
    assert served.engine.plan is before
    assert len(served.target.loaded) == 2
    assert [model.executable for model in closed] == served.target.loaded[1:]


def test_one_processor_alone_is_never_profiled() -> None:
    served = Served()
    plan = default_plan(NETWORK, LOCAL, "cpu")
    served.engine = Engine(NETWORK, plan, served.target)  # type: ignore[arg-type]
    served.engine.adapt(served.adapter)
    served.target.alone = {"cpu": 1.5}
    served.serve(100)
    assert served.target.runs == 100
    assert served.engine.plan is plan


#: Inferences on a real device in which a skewed plan is changed at the latest.
MOST_RUNS = 100 * FIRST


@pytest.mark.parametrize("serial", ["local", "process"])
def test_outputs_stay_right_across_a_change(
    serial: str, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a plan that leaves nearly all to one processor, also where nothing is any faster."""
    monkeypatch.setattr("codl.plan.strategies.adapter.WORTH", np.inf)
    network, x, expected = branching_case()
    cuts = legal(network, [(2, "H", 0.9), (1, "OC", 0.9), (1, "H", 1.0)])
    plan = make_plan(network, first_soc, cuts, "missing")
    target = here(first_soc) if serial == "local" else connect(serial, first_soc)
    context = SyntheticContext(first_soc, target=target, predictors=PREDICTORS)
    with Engine(network, plan, target) as engine:
        engine.adapt(PlanAdapter(context, network))
        outputs, runs = dict(engine.outputs), 0
        # Where other programs have the cores, a look may find both sides alike, and the next later.
        while runs < 5 * FIRST or (runs < MOST_RUNS and not engine.adaptation.changes):
            runs += 1
            for array in outputs.values():
                array.fill(np.nan)
            engine.feed({"image": x})
            engine.run()
            for name, reference in expected.items():
                found = outputs[name].reshape(reference.shape)
                assert max_rel_err(found, reference) <= 1e-4
        assert engine.adaptation.runs == runs
        assert engine.adaptation.changes
        assert engine.plan != plan
    if serial == "process":
        target.close()


def test_threads_get_their_own_outputs_across_a_change(
    first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codl.plan.strategies.adapter.WORTH", np.inf)
    network = row(3)
    plan = make_plan(network, first_soc, [(3, "H", 0.9)], "missing")
    target = here(first_soc)
    inputs = [image(network, seed) for seed in range(5 * FIRST)]
    with Engine(network, default_plan(network, first_soc, "cpu"), target) as alone:
        expected = [alone(x) for x in inputs]
    with Engine(network, plan, target) as engine, ThreadPoolExecutor(4) as pool:
        context = SyntheticContext(first_soc, target=target, predictors=PREDICTORS)
        engine.adapt(PlanAdapter(context, network))
        for _ in range(MOST_RUNS // len(inputs)):
            for found, right in zip(pool.map(engine, inputs), expected, strict=True):
                for name, values in right.items():
                    np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)
            assert engine.adaptation is not None
            if engine.adaptation.changes:
                break
        assert engine.adaptation.changes
