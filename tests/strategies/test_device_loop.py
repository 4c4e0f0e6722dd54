"""Plans that run before one is chosen: which is taken, what is kept, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.devices import here
from support.plans import image, row
from support.simulated import SOC
from support.synthetic_predictors import SyntheticPredictors

from codl.engine.engine import Engine
from codl.errors import MismatchError, UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure.timing import AnchorTime, TimedTogether
from codl.plan.beam_search import Objective
from codl.plan.build_plan import cpu_plans, default_plan
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.predict import DEFAULT
from codl.records.profile import load_profile
from codl.records.results import Latency
from codl.records.soc import Soc
from codl.runtime.placement import LocalSoc, Placement
from codl.strategies import find, rehearsal
from codl.strategies.base import Context
from codl.strategies.profiles import Profiling


@dataclass(frozen=True)
class Mistaken(Context):
    """Predictors that think the GPU a thousand times faster than the CPU, or slower."""

    gpu: float = 1.0

    def cost(self, default: str, *, by_op: bool = False) -> CostModel:
        return CostModel(self.soc, SyntheticPredictors(gpu=self.gpu), by_op)


@pytest.mark.parametrize("gpu", [1e3, 1e-3])
def test_a_mistaken_predictor_still_gives_a_plan_that_runs(
    gpu: float, first_soc: Soc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rehearsal, "doubts", lambda latency: ())  # whoever else is at work
    network = row(3)
    context = Mistaken(
        first_soc,
        target=here(first_soc),
        gpu=gpu,
        profiling=Profiling(tmp_path),  # type: ignore[arg-type]
    )
    plan = find("codl").plan(network, context)
    assert "that ran" in plan.method
    (file,) = tmp_path.rglob("*.json")
    alone, *_ = load_profile(file).runs
    # Every layer of the one net was timed, and together they take what the net takes.
    layers = alone.parts_ms["layer"]
    assert list(layers) == [layer.name for layer in network.layers]
    assert sum(layers.values()) == pytest.approx(sum(alone.parts_ms["net"].values()))
    inputs = image(network)
    with (
        Engine(network, plan, here(first_soc)) as engine,  # type: ignore[arg-type]
        Engine(network, default_plan(network, first_soc, "cpu"), here(first_soc)) as reference,  # type: ignore[arg-type]
    ):
        for name, expected in reference(inputs).items():
            np.testing.assert_allclose(engine(inputs)[name], expected, rtol=1e-4, atol=1e-5)


@dataclass
class Bench:
    """A device in which only a clock goes on: loading takes `build_s`, every run `run_s`.

    Searches find one plan after the other, each with a percent less on the GPU. It takes a percent
    less than the last, or more where `each_gains` is -1.
    """

    build_s: float = 0.0
    run_s: float = 0.001
    both_ms: float = 5.0
    each_gains: int = 1
    driver: str = "1.0"
    anchors: float = 1.0
    now: float = 1000.0
    loaded: int = 0
    notes: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rehearsal, "Engine", self.engine)
        monkeypatch.setattr(rehearsal.ObservedParts, "of", self.observed)
        monkeypatch.setattr(rehearsal.drift, "first_ms", lambda dataset: {("op", "cpu"): 1.0})
        plans = self.plans()
        latest: list[Plan] = []

        def found(network: Network, cost: CostModel, *how: Any, **more: Any) -> Plan:
            """The next plan, in whichever library the CPU's shards are to be."""
            if cost.library is None:
                latest.append(next(plans))
            return latest[-1]

        monkeypatch.setattr(rehearsal, "search", found)

    def plans(self) -> Iterator[Plan]:
        plan = default_plan(row(2), LOCAL, "gpu")
        for number in count(1):
            (chain,) = plan.chains
            both = {
                name: {"cpu": "cpu_direct", **variants} for name, variants in chain.variants.items()
            }
            ratio = 1 - number / 100
            yield replace(plan, chains=(replace(chain, gpu_ratio=ratio, variants=both),))

    def engine(self, network: Any, plan: Plan, *how: Any) -> Any:
        self.now += self.build_s
        self.loaded += 1
        loaded = SimpleNamespace(plan=plan, run=self.run, feed=lambda x: None, close=lambda: None)
        loaded.loaded = loaded
        return loaded

    def run(self) -> None:
        self.now += self.run_s

    def observed(self, engine: Any, runs: int) -> rehearsal.ObservedParts:
        self.now += 2 * runs * self.run_s
        return rehearsal.ObservedParts("another", {}, 1.0)

    def open(self) -> Mapping[str, str]:
        return {"driver": self.driver}

    def time(self, models: Mapping[str, Any], effort: Any, anchors: Any = None) -> TimedTogether:
        self.now += effort.min_seconds
        taken = {name: self.latency_ms(model.plan) for name, model in models.items()}
        latencies = {name: Latency(ms, ms, ms, 3) for name, ms in taken.items()}
        beside = () if anchors is None else (AnchorTime("op", "cpu", self.anchors),)
        return TimedTogether(latencies, anchors=beside)

    def latency_ms(self, plan: Plan) -> float:
        ratio = plan.chains[0].gpu_ratio
        return 10.0 if ratio in (0, 1) else self.both_ms * ratio**self.each_gains

    def context(self, profiling: Profiling, **more: Any) -> Context:
        target: Any = SimpleNamespace(time=self.time, open=self.open)
        return Mistaken(
            LOCAL,
            target=target,
            profiling=profiling,
            clock=lambda: self.now,
            note=self.notes.append,
            **more,
        )


CORES = range(SOC.gpu.compute_units if SOC.gpu.is_cpu else 0)
LOCAL = LocalSoc(**vars(SOC), placement=Placement("icd", (len(CORES),), tuple(CORES)))


def singles() -> int:
    """How many plans there are of one processor alone: of the CPU one in each of its libraries."""
    network = row(2)
    cost = covered(Mistaken(LOCAL).cost(DEFAULT), network)
    return len(cpu_plans(network, cost, strategy="test")) + 1


@pytest.mark.parametrize(("both_ms", "is_split"), [(10.05, False), (9.8, True)])
def test_two_processors_must_be_worth_it(
    both_ms: float, is_split: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A plan on both that gains 2 % over one processor alone is not taken, one of 4 % is."""
    bench = Bench(both_ms=both_ms)
    bench.install(monkeypatch)
    plan = find("codl").plan(row(2), bench.context(Profiling(tmp_path)))
    assert (0 < plan.chains[0].gpu_ratio < 1) == is_split


@pytest.mark.parametrize(("each_gains", "rounds"), [(1, 3), (-1, 2)])
def test_a_third_plan_runs_where_the_second_gained(
    each_gains: int, rounds: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(each_gains=each_gains)
    bench.install(monkeypatch)
    find("codl").plan(row(2), bench.context(Profiling(tmp_path)))
    assert bench.loaded == singles() + rounds


def test_what_was_measured_is_kept_and_nothing_runs_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = Bench()
    first.install(monkeypatch)
    plan = find("codl").plan(row(2), first.context(Profiling(tmp_path)))
    assert first.loaded == singles() + 3
    again = Bench()
    again.install(monkeypatch)
    assert find("codl").plan(row(2), again.context(Profiling(tmp_path))).chains == plan.chains
    assert again.loaded == 0


def test_what_another_run_shows_is_kept_and_worth_one_more_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = Bench()
    first.install(monkeypatch)
    context = first.context(Profiling(tmp_path))
    plan = find("codl").plan(row(2), context)
    engine = SimpleNamespace(network=row(2), plan=plan)
    rehearsal.keep_run(engine, context, 99.0)  # type: ignore[arg-type]
    (file,) = tmp_path.rglob("*.json")
    kept = load_profile(file).run_of(plan)
    assert kept is not None
    assert kept.latency_ms < 10  # as it was in turns with the others
    again = Bench()
    again.install(monkeypatch)
    monkeypatch.setattr(rehearsal, "search", lambda *how, **more: one_percent(plan))
    find("codl").plan(row(2), again.context(Profiling(tmp_path)))
    assert again.loaded == 2  # that plan, and the fastest before


def one_percent(plan: Plan) -> Plan:
    (chain,) = plan.chains
    return replace(plan, chains=(replace(chain, gpu_ratio=0.01),))


@pytest.mark.parametrize("unlike", ["driver", "network", "tuning"])
def test_a_profile_of_something_else_is_refused_by_name_and_made_anew_where_it_lies(
    unlike: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench()
    bench.install(monkeypatch)
    find("codl").plan(row(2), bench.context(Profiling(tmp_path)))
    (file,) = tmp_path.rglob("*.json")
    profile = load_profile(file)
    other = replace(profile, tuning="other") if unlike == "tuning" else profile
    other = replace(other, network="other") if unlike == "network" else other
    other.save(file)
    bench = Bench(driver="2.0" if unlike == "driver" else "1.0")
    bench.install(monkeypatch)
    with pytest.raises(MismatchError, match=f"is of the {unlike} "):
        find("codl").plan(row(2), bench.context(Profiling(file=file)))
    find("codl").plan(row(2), bench.context(Profiling(tmp_path)))
    assert bench.loaded == singles() + 3
    assert any(f"is of the {unlike} " in note for note in bench.notes)


def test_a_profile_of_a_busy_device_is_told_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(anchors=1.5)
    bench.install(monkeypatch)
    find("codl").plan(row(2), bench.context(Profiling(tmp_path)))
    assert not [*tmp_path.rglob("*.json")]
    assert any("anchors of the cpu take 1.50 times" in note for note in bench.notes)


@pytest.mark.parametrize("run_s", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("build_s", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("budget_s", [30.0, 300.0])
def test_a_budget_is_kept(
    budget_s: float, build_s: float, run_s: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(build_s=build_s, run_s=run_s)
    bench.install(monkeypatch)
    begin = bench.now
    find("codl-refined").plan(row(2), bench.context(Profiling(tmp_path), budget_s=budget_s))
    assert bench.now - begin <= budget_s


def test_ctrl_c_takes_the_best_so_far_and_ends_it_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for runs in (singles() + 1, 1):
        bench = Bench()
        bench.install(monkeypatch)

        def interrupted(*how: Any, bench: Bench = bench, most: int = runs) -> Any:
            if bench.loaded == most:
                raise KeyboardInterrupt
            return bench.engine(*how)

        monkeypatch.setattr(rehearsal, "Engine", interrupted)
        context = bench.context(Profiling(tmp_path / str(runs)))
        if runs > 1:
            assert 0 < find("codl-refined").plan(row(2), context).chains[0].gpu_ratio < 1
        else:
            with pytest.raises(KeyboardInterrupt):
                find("codl-refined").plan(row(2), context)


def test_what_it_cannot_compare_is_refused(first_soc: Soc) -> None:
    target: Any = here(first_soc)  # type: ignore[arg-type]
    context = Context(first_soc, objective=Objective("energy", None), target=target)
    with pytest.raises(UnsupportedError, match="the objective 'energy'"):
        find("codl-refined").plan(row(1), context)
    replayed = Mistaken(replace(first_soc, source="replayed"), target=target)
    with pytest.raises(UnsupportedError, match="its file says source: replayed"):
        find("codl-refined").plan(row(1), replayed)
