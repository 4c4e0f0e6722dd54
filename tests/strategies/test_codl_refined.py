"""`codl-refined`: plans that run, and which of them is then taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.devices import here
from support.plans import image, row
from support.simulated import SOC
from support.synthetic_predictors import SyntheticPredictors

from codl.errors import UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.results import Latency
from codl.ir.soc import Soc
from codl.measure.interleave import Effort, TimedTogether
from codl.plan.cost_model import CostModel
from codl.plan.objective import Objective
from codl.plan.single_processor import default_plan
from codl.runtime.engine import Engine
from codl.strategies import codl_refined, find
from codl.strategies.base import Context


@dataclass(frozen=True)
class Mistaken(Context):
    """Predictors that think the GPU a thousand times faster than the CPU, or slower."""

    gpu: float = 1.0

    def cost(self, default: str, *, by_op: bool = False) -> CostModel:
        return CostModel(self.soc, SyntheticPredictors(gpu=self.gpu), by_op)


@pytest.mark.parametrize("gpu", [1e3, 1e-3])
def test_a_mistaken_predictor_still_gives_a_plan_that_runs(gpu: float, first_soc: Soc) -> None:
    network = row(3)
    plan = find("codl-refined").plan(network, Mistaken(first_soc, target=here(first_soc), gpu=gpu))
    assert plan.strategy == "codl-refined"
    assert "plans that ran" in plan.method
    inputs = image(network)
    with (
        Engine(network, plan, here(first_soc)) as engine,
        Engine(network, default_plan(network, first_soc, "cpu"), here(first_soc)) as reference,
    ):
        for name, expected in reference(inputs).items():
            np.testing.assert_allclose(engine(inputs)[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("both_ms", "taken"), [(9.9, "one"), (9.6, "both")])
def test_two_processors_must_be_worth_it(
    both_ms: float, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan on both that gains 1 % over one processor alone is not taken, one of 4 % is."""
    latency_ms = {"one": 10.0, "both": both_ms}
    network = row(2)
    plans = {name: replace(default_plan(network, SOC, "gpu"), strategy=name) for name in latency_ms}
    plans["both"] = replace(plans["both"], chains=plans["both"].chains * 2)

    class StandIn:
        """An engine, and what its target loaded."""

        def __init__(self, network: Network, plan: Plan, *how: Any) -> None:
            self.plan, self.loaded = plan, self

        def run(self) -> None: ...

        feed = close = lambda self, *inputs: None

    class Timing:
        """A target that knows how long plans take."""

        def time(self, models: dict[str, StandIn], effort: Effort) -> TimedTogether:
            taken = {name: latency_ms[own.plan.strategy] for name, own in models.items()}
            return TimedTogether({name: Latency(ms, ms, ms, 3) for name, ms in taken.items()})

    monkeypatch.setattr(codl_refined, "Engine", StandIn)
    monkeypatch.setattr(codl_refined, "observe", lambda engine, cost: [])
    notes: list[str] = []
    target: Any = Timing()
    with codl_refined.Trials(
        network, CostModel(SOC, SyntheticPredictors()), target, notes.append
    ) as trials:
        trials.run(plans["one"])
        assert trials.run(plans["both"])
        assert trials.result(plans["one"]).strategy == taken
    assert len(notes) == 2


def test_what_it_cannot_compare_is_refused(first_soc: Soc) -> None:
    network: Network = row(1)
    target, objective = here(first_soc), Objective("energy", None)
    with pytest.raises(UnsupportedError, match="the objective 'energy'"):
        find("codl-refined").plan(network, Context(first_soc, objective=objective, target=target))
    with pytest.raises(UnsupportedError, match="replayed from measurements of others"):
        find("codl-refined").plan(
            network, Mistaken(replace(first_soc, source="replayed"), target=target)
        )
