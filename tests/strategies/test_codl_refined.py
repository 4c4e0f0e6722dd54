"""`codl-refined`: plans that run, and which of them is then taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.devices import here
from support.plans import image, row
from support.simulated import SOC
from support.synthetic_predictors import SyntheticPredictors

from codl.engine.engine import Engine
from codl.errors import UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure.budget import Budget
from codl.measure.timing import Effort, TimedTogether
from codl.plan.beam_search import Objective
from codl.plan.build_plan import default_plan
from codl.plan.cost_model import CostModel
from codl.records.results import Latency
from codl.records.soc import Soc
from codl.strategies import codl_refined, find
from codl.strategies.base import Context


@dataclass(frozen=True)
class Mistaken(Context):
    """Predictors that think the GPU a thousand times faster than the CPU, or slower."""

    gpu: float = 1.0

    def cost(self, default: str, *, by_op: bool = False) -> CostModel:
        return CostModel(self.soc, SyntheticPredictors(gpu=self.gpu), by_op)


@pytest.mark.parametrize("gpu", [1e3, 1e-3])
def test_a_mistaken_predictor_still_gives_a_plan_that_runs(
    gpu: float, first_soc: Soc, monkeypatch: pytest.MonkeyPatch
) -> None:
    for effort in ("DUEL", "FINAL"):
        monkeypatch.setattr(codl_refined, effort, Effort(min_rounds=3, min_seconds=0.1))
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


class StandIn:
    """An engine, and what its target loaded."""

    def __init__(self, network: Network, plan: Plan, *how: Any) -> None:
        self.plan, self.loaded = plan, self

    def run(self) -> None: ...

    feed = close = lambda self, *inputs: None


def trials(
    latency_ms: Mapping[str, Sequence[float]], monkeypatch: pytest.MonkeyPatch
) -> tuple[codl_refined.PlanTrials, dict[str, Plan], list[str]]:
    """Two plans, `one` on a processor alone, and what each takes in one comparison and the next."""
    network = row(2)
    plans = {name: replace(default_plan(network, SOC, "gpu"), strategy=name) for name in latency_ms}
    plans["both"] = replace(plans["both"], chains=plans["both"].chains * 2)
    left = {name: iter(taken) for name, taken in latency_ms.items()}

    def time(models: dict[str, StandIn], effort: Effort) -> TimedTogether:
        taken = {name: next(left[own.plan.strategy]) for name, own in models.items()}
        return TimedTogether({name: Latency(ms, ms, ms, 3) for name, ms in taken.items()})

    monkeypatch.setattr(codl_refined, "Engine", StandIn)
    monkeypatch.setattr(codl_refined, "observe", lambda engine, cost, runs: [])
    notes: list[str] = []
    target: Any = SimpleNamespace(time=time)
    cost, budget = CostModel(SOC, SyntheticPredictors()), Budget(30.0, lambda: 0.0)
    return codl_refined.PlanTrials(network, cost, target, budget, notes.append), plans, notes


@pytest.mark.parametrize(("both_ms", "taken"), [(9.9, "one"), (9.6, "both")])
def test_two_processors_must_be_worth_it(
    both_ms: float, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan on both that gains 1 % over one processor alone is not taken, one of 4 % is."""
    tried, plans, notes = trials({"one": [10.0] * 2, "both": [both_ms] * 2}, monkeypatch)
    with tried:
        tried.run(plans["one"])
        assert tried.run(plans["both"])
        assert tried.result([plans["one"]]).strategy == taken
    assert len(notes) == 2


@pytest.mark.parametrize(("again_ms", "taken"), [(20.0, "one"), (9.9, "one"), (9.6, "both")])
def test_a_plan_that_lost_once_to_one_processor_is_looked_at_again(
    again_ms: float, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may have been disturbed; it must be as much faster as any plan on both."""
    tried, plans, notes = trials({"one": [10.0] * 2, "both": [20.0, again_ms]}, monkeypatch)
    with tried:
        tried.run(plans["both"])
        assert tried.run(plans["one"])
        assert tried.result([plans["one"]]).strategy == taken
    assert len(notes) == 2


def test_what_it_cannot_compare_is_refused(first_soc: Soc) -> None:
    network: Network = row(1)
    target, objective = here(first_soc), Objective("energy", None)
    with pytest.raises(UnsupportedError, match="the objective 'energy'"):
        find("codl-refined").plan(network, Context(first_soc, objective=objective, target=target))
    with pytest.raises(UnsupportedError, match="its file says source: replayed"):
        find("codl-refined").plan(
            network, Mistaken(replace(first_soc, source="replayed"), target=target)
        )


class Bench:
    """A device in which only a clock goes on: building takes `build_s`, every run `run_s`.

    Searches find one plan after the other, each with a percent less on the GPU, and faster.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, build_s: float, run_s: float) -> None:
        self.now, self.run_s, self.plans = 1000.0, run_s, 0
        bench = self

        class Slow(StandIn):
            def __init__(self, network: Network, plan: Plan, *how: Any) -> None:
                super().__init__(network, plan)
                bench.now += build_s
                bench.plans += 1

            def run(self) -> None:
                bench.now += run_s

        monkeypatch.setattr(codl_refined, "Engine", Slow)
        monkeypatch.setattr(codl_refined, "observe", self.observe)
        ratios = self.ratios()
        monkeypatch.setattr(codl_refined, "search", lambda *how, **more: next(ratios))
        monkeypatch.setattr(codl_refined, "unless_alone", lambda plan, *how: plan)

    def ratios(self) -> Iterator[Plan]:
        plan = default_plan(row(2), SOC, "gpu")
        for number in count(1):
            (chain,) = plan.chains
            yield replace(plan, chains=(replace(chain, gpu_ratio=1 - number / 100),))

    def observe(self, engine: StandIn, cost: CostModel, runs: int) -> Sequence[Any]:
        for _ in range(runs):
            engine.run()
        return []

    def time(self, models: dict[str, StandIn], effort: Effort) -> TimedTogether:
        self.now += max(
            effort.min_seconds, effort.min_rounds * effort.turn * self.run_s * len(models)
        )
        taken = {name: latency_ms(own.plan) for name, own in models.items()}
        return TimedTogether({name: Latency(ms, ms, ms, 3) for name, ms in taken.items()})


def latency_ms(plan: Plan) -> float:
    ratio = plan.chains[0].gpu_ratio
    return 10.0 if ratio in (0, 1) else 5.0 * ratio


def refined(bench: Bench, budget_s: float) -> tuple[Plan, float]:
    """A plan, and the seconds that it took."""
    begin, target = bench.now, SimpleNamespace(time=bench.time)
    context: Any = Mistaken(SOC, target=target, budget_s=budget_s, clock=lambda: bench.now)  # type: ignore[arg-type]
    plan = find("codl-refined").plan(row(2), context)
    return plan, bench.now - begin


@pytest.mark.parametrize("run_s", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("build_s", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("budget_s", [15.0, 30.0, 300.0])
def test_it_keeps_its_budget(
    budget_s: float, build_s: float, run_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, took_s = refined(Bench(monkeypatch, build_s=build_s, run_s=run_s), budget_s)
    assert took_s <= budget_s
    assert f"of {budget_s:g} s" in plan.method


def test_a_longer_budget_tries_more_plans_and_any_takes_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []
    for budget_s in (0.5, 20.0, 30.0, 60.0):
        bench = Bench(monkeypatch, build_s=1.0, run_s=0.01)
        plan, _ = refined(bench, budget_s)
        # Beside those that were searched ran each processor alone, and the better one at the end.
        searched = max(1, bench.plans - 3)
        assert plan.chains[0].gpu_ratio == 1 - searched / 100
        tried.append(bench.plans)
    assert tried[0] == 1  # the plan of `codl` runs whatever the budget
    assert tried == sorted(set(tried))


def test_ctrl_c_takes_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, build_s=1.0, run_s=0.01)
    ratios = bench.ratios()

    def search(*how: Any, **more: Any) -> Plan:
        if bench.plans == 5:
            raise KeyboardInterrupt
        return next(ratios)

    monkeypatch.setattr(codl_refined, "search", search)
    plan, took_s = refined(bench, 300.0)
    assert "refined by 5 plans" in plan.method
    assert 0 < plan.chains[0].gpu_ratio < 1
    assert took_s < 30


def test_ctrl_c_before_any_plan_ran_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, build_s=1.0, run_s=0.01)

    def search(*how: Any, **more: Any) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr(codl_refined, "search", search)
    with pytest.raises(KeyboardInterrupt):
        refined(bench, 300.0)
