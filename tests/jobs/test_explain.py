"""Waterfalls of runs: what a profile says more than the predictions, in the right terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import fsum
from pathlib import Path
from typing import Any

import pytest
from support.devices import here
from support.plans import row
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticContext, SyntheticPredictors

from codl.engine.engine import Engine
from codl.ir import Network
from codl.ir.executable import Copy, Executable, Launch, RunNet, Unmap, Wait
from codl.ir.plan import Plan
from codl.ir.records.profile import span_of
from codl.ir.records.results import Latency, TimeSpan
from codl.ir.records.waterfall import MEASURED_TERMS, TERMS
from codl.jobs.explain import Explanation, explain_measured, explain_predicted
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.machine.placement import LocalSoc
from codl.measure.dataset import Dataset
from codl.measure.timing import AnchorTime, TimedTogether
from codl.plan.build_plan import chain_of
from codl.plan.cost_model import CostModel
from codl.plan.predicted_plan import make_plan
from codl.plan.price import StageTimes, price, stage_times

#: Both processors alike, nothing but computing and exchanges, and a copy takes 0.01 ms.
PLAIN = SyntheticPredictors(least_ms=0.0, flops=1e6, exchange=Line(0.01))
ANCHOR = "conv2d in=1x8x4x4 oc=8 kernel=1x1"


#: A context whose predictors need no file.
Known = partial(SyntheticContext, predictors=PLAIN)


class Profiled(SyntheticContext):
    """A context whose profiles say that the GPU is twice as slow as predicted."""

    def default_cost(self, network: Network, *, profiled: bool = True) -> CostModel:
        return CostModel(self.soc, replace(PLAIN, gpu=0.5, asked=[]))


@dataclass
class Scripted:
    """An engine, and the target that times it: its profiles are of given times, and what it takes.

    `run_ms` is the latency of plain runs, `anchors` what anchors took in milliseconds.
    """

    network: Network
    plan: Plan
    executable: Executable
    times: Sequence[StageTimes]
    run_ms: float
    anchors: tuple[AnchorTime, ...] = ()
    gap_ms: float = 0.0
    loaded: object = field(default_factory=object)
    runs: int = 0

    def feed(self, inputs: Any) -> None:
        assert set(inputs) == set(self.network.inputs)

    def run(self) -> None:
        self.runs += 1

    def profile(self, runs: int = 5) -> list[TimeSpan]:
        return list(spans_of(self.executable, self.times, self.gap_ms))

    def time(self, models: Any, effort: Any, *, anchors: Any = None) -> TimedTogether:
        assert models == {"run": self.loaded}
        latency = Latency(self.run_ms, self.run_ms, self.run_ms, effort.min_rounds * effort.warm)
        return TimedTogether({"run": latency}, anchors=self.anchors if anchors else ())


def spans_of(
    executable: Executable, times: Sequence[StageTimes], gap_ms: float = 0.0
) -> Iterator[TimeSpan]:
    """As two clocks go; the CPU does nothing for `gap_ms` before each net."""
    cpu = gpu = 0.0
    ends: dict[int, float] = {}
    # What the CPU receives is launched a stage before the one that it counts in.
    transfers_ms = {number: parts for own in times for number, parts in own.transfers_ms.items()}
    for stage, own in zip(executable.stages, times, strict=True):
        seen: set[int] = set()
        for command in stage.commands:
            name = span_of(executable, command)
            if name is None:
                continue
            if isinstance(command, Launch):
                is_first = command.step not in seen
                seen.add(command.step)
                parts = transfers_ms.get(command.step)
                all_ms = parts.get("transform", 0.0) if parts else own.kernels_ms[command.step]
                ms = all_ms if is_first else 0.0
                start, gpu = max(cpu, gpu), max(cpu, gpu) + ms
                ends[command.step] = gpu
                yield TimeSpan("gpu", name.kind, name.label, start, gpu)
                continue
            start, ms = cpu, 0.0
            if isinstance(command, RunNet):
                start, ms = cpu + gap_ms, own.nets_ms[command.net]
            elif isinstance(command, Copy | Unmap):
                ms = transfers_ms[command.step].get(name.kind, 0.0)
            elif isinstance(command, Wait):
                ms = max(0.0, ends.get(command.step, 0.0) - cpu)
            cpu = start + ms
            yield TimeSpan("cpu", name.kind, name.label, start, cpu)


def slower(
    times: Sequence[StageTimes], *, cpu: float = 1.0, gpu: float = 1.0, sharing: float = 1.0
) -> list[StageTimes]:
    return [
        replace(
            own,
            nets_ms={n: cpu * ms for n, ms in own.nets_ms.items()},
            kernels_ms={n: gpu * ms for n, ms in own.kernels_ms.items()},
            transfers_ms={
                n: {part: sharing * ms for part, ms in parts.items()}
                for n, parts in own.transfers_ms.items()
            },
        )
        for own in times
    ]


def planned(network: Network, soc: Any = SOC, gpu_ratio: float = 0.5) -> Plan:
    chains = [chain_of(network.layers, "H", gpu_ratio)]
    cost = CostModel(soc, PLAIN)
    return make_plan(network, cost, chains, strategy="test", sharing="missing")


def explained(
    folder: Path,
    *,
    run_ms: float | None = None,
    anchors: tuple[AnchorTime, ...] = (),
    gap_ms: float = 0.0,
    **more: float,
) -> Explanation:
    """Of two convolutions in halves: a run whose parts take so many times what was predicted."""
    network = row(2)
    plan = planned(network)
    executable = lower(network, plan, SOC, Tuning())
    cost = CostModel(SOC, PLAIN)
    times = slower(stage_times(executable, cost), **more)
    run_ms = price(executable, cost).latency_ms if run_ms is None else run_ms
    engine: Any = Scripted(network, plan, executable, times, run_ms, anchors, gap_ms)
    found = explain_measured(engine, Known(SOC, dataset_root=folder, target=engine), rounds=20)
    assert engine.runs > 0
    return found


def measured_terms(found: Explanation) -> dict[str, float]:
    adds_up(found)
    return {term.name: term.ms for term in found.terms if term.name in MEASURED_TERMS}


def adds_up(found: Explanation) -> None:
    """The model's bound and terms, each chain's, and the chains together."""
    last_ms = found.predicted_ms if found.measured_ms is None else found.measured_ms
    assert found.bound_ms + fsum(t.ms for t in found.terms) == pytest.approx(last_ms, rel=1e-9)
    for chain in found.chains:
        own = chain.predicted_ms if chain.measured_ms is None else chain.measured_ms
        assert chain.bound_ms + fsum(t.ms for t in chain.terms) == pytest.approx(own, rel=1e-9)
        assert [t.name for t in chain.terms] == [t.name for t in found.terms]
    for at, term in enumerate(found.terms):
        own = fsum(chain.terms[at].ms for chain in found.chains)
        assert own == pytest.approx(term.ms, abs=1e-9)


OP_MS = row(1).layers[0].op.flops / PLAIN.flops
#: What either side computes of both convolutions.
SIDE_MS = 25 / 24 * OP_MS
PREDICTED_MS = SIDE_MS + 0.02
NOTHING = dict.fromkeys(("cpu", "gpu", "exchange", "engine", "profiling"), 0.0)


def test_a_run_as_predicted_adds_nothing(tmp_path: Path) -> None:
    found = explained(tmp_path)
    assert measured_terms(found) == pytest.approx(NOTHING)
    assert found.measured_ms == pytest.approx(PREDICTED_MS)
    chain = found.chains[0]
    sides = pytest.approx({"cpu": SIDE_MS, "gpu": SIDE_MS})
    assert chain.work_ms == sides
    assert chain.measured_work_ms == sides


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"cpu": 2.0}, {"cpu": SIDE_MS}),
        ({"gpu": 2.0}, {"gpu": SIDE_MS}),
        ({"cpu": 2.0, "gpu": 2.0}, {"cpu": SIDE_MS}),  # the GPU's hides behind the CPU's
        ({"cpu": 0.5, "gpu": 0.5}, {"gpu": -SIDE_MS / 2}),
        ({"sharing": 3.0}, {"exchange": 0.04}),
    ],
)
def test_what_takes_longer_has_its_term(
    tmp_path: Path, more: dict[str, float], wanted: dict[str, float]
) -> None:
    terms = measured_terms(explained(tmp_path, **more))
    # What plain runs take stays as predicted: all that was profiled is gone from them.
    rest = {"profiling": -fsum(wanted.values())}
    assert terms == pytest.approx({**NOTHING, **wanted, **rest})


def test_gaps_are_the_engines(tmp_path: Path) -> None:
    """Before its net, and so before it takes over the GPU's rows, the CPU does nothing."""
    found = explained(tmp_path, gap_ms=0.5, run_ms=PREDICTED_MS + 0.5)
    assert measured_terms(found) == pytest.approx({**NOTHING, "engine": 0.5})
    first, last = found.chains
    assert {term.name: term.ms for term in first.terms}["engine"] == pytest.approx(0.5)
    assert last.measured_ms == pytest.approx(0.01)


def test_what_plain_runs_take_more_is_shared_out(tmp_path: Path) -> None:
    found = explained(tmp_path, run_ms=2 * PREDICTED_MS)
    assert measured_terms(found) == pytest.approx({**NOTHING, "profiling": PREDICTED_MS})
    assert found.latency_ms is not None
    assert found.latency_ms.runs == 20
    chains_ms = [chain.measured_ms for chain in found.chains]
    assert chains_ms == pytest.approx([2 * (SIDE_MS + 0.01), 2 * 0.01])


def test_a_slower_machine_is_no_wrong_prediction(tmp_path: Path) -> None:
    usual = {"cpu": {ANCHOR: 1.0}, "gpu": {ANCHOR: 2.0}}
    Dataset(tmp_path / SOC.name).write_manifest(
        {"source": "measured", "runs": {"first": {"anchors_ms": usual}}}
    )
    anchors = (AnchorTime(ANCHOR, "cpu", 1.5), AnchorTime(ANCHOR, "gpu", 2.0))
    found = explained(tmp_path, anchors=anchors, cpu=1.5, run_ms=PREDICTED_MS + SIDE_MS / 2)
    assert found.slowdown == {"cpu": 1.5, "gpu": 1.0}
    assert measured_terms(found) == pytest.approx({"pace": SIDE_MS / 2, **NOTHING})
    assert list(TERMS) == [term.name for term in found.terms]


def test_a_plan_is_explained_without_a_device(tmp_path: Path) -> None:
    network = row(3)
    found = explain_predicted(network, planned(network), Known(SOC, dataset_root=tmp_path))
    adds_up(found)
    assert (found.measured_ms, found.slowdown, found.chains[0].measured_work_ms) == (None,) * 3
    assert found.bound_ms == pytest.approx(found.side_by_side_ms)


def test_what_ops_left_whole_would_save_is_by_the_profile_of_a_run(tmp_path: Path) -> None:
    network = row(2)
    plan = planned(network, gpu_ratio=1.0)
    names = [layer.name for layer in network.layers]
    executable = lower(network, plan, SOC, Tuning())
    times = stage_times(executable, CostModel(SOC, PLAIN))
    engine: Any = Scripted(network, plan, executable, times, 1.0)
    context = Profiled(SOC, dataset_root=tmp_path, predictors=PLAIN, target=engine)
    ran = explain_measured(engine, context, rounds=20)
    predicted = explain_predicted(network, plan, context)
    for found, gpu, best in ((ran, 0.5, 2 / 3), (predicted, 1.0, 0.5)):
        assert sorted(op.op for op in found.whole) == names
        for op in found.whole:
            assert op.whole_ms == pytest.approx(OP_MS / gpu)
            assert op.best_ms == pytest.approx(best * OP_MS)


def test_a_run_on_a_device_adds_up(first_soc: LocalSoc, tmp_path: Path) -> None:
    network, target = row(3), here(first_soc)
    context = Known(first_soc, dataset_root=tmp_path, target=target)
    with Engine(network, planned(network, first_soc), target) as engine:
        found = explain_measured(engine, context, rounds=3)
    adds_up(found)
    assert found.measured_ms is not None
    assert found.measured_ms > 0
    work_ms = found.chains[0].measured_work_ms
    assert work_ms is not None
    assert min(work_ms.values()) > 0
