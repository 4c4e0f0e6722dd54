"""Rounds, turns, anchors and calibration, on simulated machines with clocks of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.some import some

from codl.errors import DeviceError
from codl.ir import parse, to_text
from codl.ir.records import statistic
from codl.ir.records.soc import Soc
from codl.ir.records.statistic import level
from codl.measure import drift, runner
from codl.measure import timing as measuring
from codl.measure import timing as rounds
from codl.measure.collector import Collection
from codl.measure.dataset import Dataset, OpRow
from codl.measure.drift import Drift, calibration
from codl.measure.runner import Prepared
from codl.measure.tasks import OpTask, make_tasks
from codl.measure.timing import (
    WHOLE,
    Effort,
    Rounds,
    Timed,
    TimedRun,
    Turns,
    interleave,
    time_together,
    timed,
)
from codl.predict import training_set as samples
from codl.targets.local import LocalTarget

OP = parse("conv2d in=1x16x10x10 oc=64 kernel=3x3 pad=1")


class Machine:
    """A simulated machine: what runs takes its own time, times `slowdown` at that moment."""

    def __init__(self, slowdown: Callable[[float], float] = lambda now: 1.0) -> None:
        self.now = 0.0
        self.slowdown = slowdown

    def sample(self, seconds: float) -> Callable[[int], dict[str, float]]:
        def run(repeats: int) -> dict[str, float]:
            taken = seconds * self.slowdown(self.now)
            self.now += repeats * taken
            return {WHOLE: taken}

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    def use(machine: Machine) -> None:
        monkeypatch.setattr(rounds, "perf_counter", lambda: machine.now)
        monkeypatch.setattr("time.monotonic", lambda: machine.now)

    return use


def test_a_burst_hits_a_few_samples_of_each(clock: Any) -> None:
    """Half as fast for 3 of 10 seconds: in turns, no level moves; one after the other, some do."""
    machine = Machine(lambda now: 2.0 if 4 < now < 7 else 1.0)
    clock(machine)
    latencies = [0.0001 * 1.5**i for i in range(12)]
    effort = Rounds(more=50)
    things = [Timed(machine.sample(seconds), effort) for seconds in latencies]
    rounds.measure(things, effort)
    assert machine.now >= 10
    for thing, seconds in zip(things, latencies, strict=True):
        found = thing.taken_s[WHOLE]
        assert level(found) == pytest.approx(seconds)
        assert max(found) == pytest.approx(2 * seconds)
    machine = Machine(lambda now: 2.0 if 4 < now < 7 else 1.0)
    clock(machine)
    machine.now = 4.5
    alone = Timed(machine.sample(0.001), Rounds(span_s=0.0))
    rounds.measure([alone], Rounds(span_s=0.0))
    assert level(alone.taken_s[WHOLE]) == pytest.approx(0.002)


def test_a_disturbed_batch_goes_on_for_a_while(clock: Any) -> None:
    machine = Machine(lambda now: 1.5 if now < 1.0 else 1.0)
    clock(machine)
    effort = Rounds(span_s=0.1, more=50)
    thing = Timed(machine.sample(0.001), effort)
    rounds.measure([thing], effort, lambda: level(thing.taken_s[WHOLE]) > 0.00103)
    assert level(thing.taken_s[WHOLE]) == pytest.approx(0.001)
    assert machine.now == pytest.approx(1.2, abs=0.1)  # until enough of the samples are quiet
    effort = Rounds(span_s=0.1, more=3)
    thing = Timed(machine.sample(0.001), effort)
    rounds.measure([thing], effort, lambda: True)
    assert len(thing.taken_s[WHOLE]) == 3 * thing.visits * effort.samples


class SimulatedBench:
    """Stands in for a device; every task takes one millisecond of the simulated machine."""

    def __init__(self, machine: Machine, effort: Rounds, soc: Soc) -> None:
        self.machine = machine
        self.rounds = effort
        self.soc = soc
        self.prepared: list[Any] = []
        self.run = ""

    def of_run(self, device: Any, run: str, *how: Any) -> SimulatedBench:
        """The bench, with rows of that run."""
        self.run = run
        return self

    def anchors(self) -> list[Prepared]:
        return [self.prepare(task) for task in anchor_tasks(self.soc)]

    def prepare(self, task: Any) -> Prepared:
        self.prepared.append(task)
        row_template = OpRow(
            op=to_text(task.op),
            dim=task.dim,
            share=task.share,
            part=to_text(task.part),
            run=self.run,
        )

        def fill(found: Any) -> OpRow:
            ms = 1e3 * level(found[WHOLE])
            return OpRow(**{**vars(row_template), "latency_ms": ms})

        return Prepared(task, row_template, Timed(self.machine.sample(0.001), self.rounds), fill)


def simulated(
    soc: Soc, folder: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> tuple[Dataset, SimulatedBench, Callable[..., Any]]:
    effort = Rounds(span_s=1.0)
    bench = SimulatedBench(machine, effort, soc)
    monkeypatch.setattr(runner, "Bench", bench.of_run)
    monkeypatch.setattr("codl.targets.measuring.check_anchors", lambda anchors: None)
    dataset = Dataset.of("test", folder)

    def run(**how: Any) -> Any:
        tasks = [t for t in make_tasks([OP], soc, [0.5, 1.0]) if isinstance(t, OpTask)]
        return Collection(LocalTarget(soc), dataset, tasks, rounds=effort, **how).run()

    return dataset, bench, run


def anchor_tasks(soc: Soc) -> list[OpTask]:
    """One op on either processor."""
    tasks = [t for t in make_tasks([OP], soc, [1.0]) if isinstance(t, OpTask)]
    return [next(t for t in tasks if t.processor == p) for p in ("cpu", "gpu")]


def rows_of(dataset: Dataset) -> list[OpRow]:
    return [row for table in dataset.tables().values() for row in table.read()]


def test_drift_leaves_no_trace_in_rows(
    first_soc: Soc, tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine becomes slower and slower, for good: rows are of the first batch's speed."""
    machine = Machine(lambda now: 1.0 if now < 1 else 1.0 + 0.1 * (now // 2))
    clock(machine)
    dataset, _, run = simulated(first_soc, tmp_path, machine, monkeypatch)
    monkeypatch.setattr(runner, "MEMORY_BYTES", 400_000)  # a few tasks a batch
    done = run()
    assert (done.left, done.failed, done.again, done.stopped) == (0, 0, 0, "done")
    assert machine.slowdown(machine.now) > 1.3
    rows = rows_of(dataset)
    assert [row.latency_ms for row in rows] == pytest.approx([1.0] * len(rows), rel=0.02)
    manifest = dataset.manifest()["runs"]["run1"]
    assert manifest["protocol"]["statistic"] == statistic.NAME
    # Predictors see the speed that was usual, and not that of the first batch.
    (usual,) = manifest["anchors_ms"]["cpu"].values()
    assert usual > 1.05
    assert manifest["calibration"]["cpu"] == pytest.approx(1.0 / usual, rel=0.02)


def test_what_anchors_do_not_agree_on_is_no_drift_and_measured_again(
    first_soc: Soc, tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something hits one op more than another for a while, longer than a batch goes on for."""
    machine = Machine()
    clock(machine)
    dataset, bench, run = simulated(first_soc, tmp_path, machine, monkeypatch)
    monkeypatch.setattr(runner, "MEMORY_BYTES", 400_000)

    def hit(by: float) -> Callable[[int], dict[str, float]]:
        def sample(repeats: int) -> dict[str, float]:
            taken = 0.001 * (by if 5 < machine.now < 8 else 1.0)
            machine.now += repeats * taken
            return {WHOLE: taken}

        return sample

    def prepared(task: Any) -> Prepared:
        one = SimulatedBench.prepare(bench, task)
        one.timed.sample = hit(1.4)
        return one

    def several_anchors() -> list[Prepared]:
        found = []
        for task in anchor_tasks(first_soc):
            for index, by in enumerate((1.0, 1.2, 1.5)):
                op = parse(f"conv2d in=1x16x10x10 oc={8 << index} kernel=3x3 pad=1")
                one = SimulatedBench.prepare(bench, replace(task, op=op, part=op))
                one.timed.sample = hit(by)
                found.append(one)
        return found

    monkeypatch.setattr(bench, "prepare", prepared)
    monkeypatch.setattr(bench, "anchors", several_anchors)
    done = run()
    assert done.again > 0
    assert (done.left, done.failed, done.stopped) == (0, 0, "done")
    rows = rows_of(dataset)
    assert [row.latency_ms for row in rows] == pytest.approx([1.0] * len(rows))
    assert len({(row.op, row.dim, row.share, row.part) for row in rows}) > 1


def test_a_later_run_is_calibrated_by_its_anchors(
    first_soc: Soc, tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same op takes 10 % longer a day later; a predictor sees one latency."""
    machine = Machine()
    clock(machine)
    dataset, _, run = simulated(first_soc, tmp_path, machine, monkeypatch)
    run(samples=5)
    machine.slowdown = lambda now: 1.1
    run(resume=True)
    assert dataset.calibration()["run2"] == pytest.approx({"cpu": 1.1, "gpu": 1.1})
    assert calibration(dataset.manifest()["runs"], "run1") == {"cpu": 1.0, "gpu": 1.0}


def test_an_evaluation_says_how_slow_the_machine_is(
    first_soc: Soc, tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth slower than when the dataset was measured, but for a moment."""
    simulation = Machine()
    clock(simulation)
    dataset, bench, run = simulated(first_soc, tmp_path, simulation, monkeypatch)
    assert drift.first_ms(dataset) == {}
    run(samples=5)
    usual_ms = drift.first_ms(dataset)
    beside = {anchor.anchor: anchor.timed for anchor in bench.anchors()}
    factors = iter((1.1, 1.1, 5.0, 1.1, 1.1))

    def work(runs: int) -> list[float]:
        factor = next(factors, 1.1)
        simulation.slowdown = lambda now: factor
        return [0.001] * runs

    effort = Effort(min_rounds=5, min_seconds=0)
    times = time_together({"one": work}, effort, anchors=beside)
    assert drift.slowdown(times.anchors, usual_ms) == pytest.approx({"cpu": 1.1, "gpu": 1.1})
    assert drift.slowdown(times.anchors, {}) is None


def test_training_divides_by_the_calibration(tmp_path: Path) -> None:
    dataset = Dataset.of("test", tmp_path)
    runs = {"run1": {}, "run2": {"calibration": {"cpu": 1.25, "gpu": 2.0}}}
    dataset.write_manifest({"source": "measured", "runs": runs})
    for run, share in (("run1", 0.5), ("run2", 1.0)):
        row = OpRow(op=to_text(OP), dim="H", share=share, part=to_text(OP), latency_ms=5, run=run)
        dataset.table("conv2d_cpu_gemm").append(row)
    found = {own.target: own for own in samples.read(dataset)[0]}
    assert found["conv2d_cpu_gemm"].latency_ms.tolist() == [5.0, 4.0]


def test_drift_is_what_anchors_agree_on() -> None:
    assert Drift.of([]) == Drift(1.0, 0.0)
    assert Drift.of([1.2, 1.2, 1.2]) == Drift(1.2, 0.0)
    one_off = Drift.of([1.1, 19.0, 1.1])
    assert (one_off.factor, one_off.scatter) == (1.1, 0.0)
    apart = Drift.of([1.0, 2.0, 4.0])
    assert (apart.factor, apart.scatter) == (2.0, 0.5)


def test_everybody_has_one_turn_a_round_in_a_random_order() -> None:
    log: list[str] = []

    def turn(name: str, runs: int) -> list[float]:
        log.append(f"{name}{runs}")
        return [0.001] * runs

    times = time_together(
        {name: partial(turn, name) for name in "abc"},
        Effort(min_rounds=30, min_seconds=0, warm=2),
        before_turn=lambda: log.append("idle"),
        after_round=lambda: log.append("round"),
    )
    rounds = [log[at : at + 7] for at in range(0, len(log), 7)]
    assert len(rounds) == 30
    for own in rounds:
        assert own[0] == own[2] == own[4] == "idle"
        assert ({*own[1::2]}, own[6]) == ({"a3", "b3", "c3"}, "round")
    assert len({tuple(own) for own in rounds}) > 3
    assert (times.cold_ms["a"].runs, times.latency_ms["a"].runs) == (30, 60)


def test_who_fails_leaves_and_the_others_go_on() -> None:
    turns = iter(range(1, 9))

    def fails(runs: int) -> list[float]:
        if next(turns) > 1:
            raise DeviceError("it broke")
        return [0.5] * runs

    runs: dict[str, TimedRun] = {"bad": fails, "good": lambda runs: [0.25] * runs}
    turns, failed = interleave(runs, Effort(min_rounds=3, min_seconds=0))
    assert turns == {"good": Turns([0.25] * 3, [0.25] * 9)}
    assert str(failed["bad"]) == "it broke"


@pytest.mark.parametrize(
    ("least", "least_s", "most_s", "rounds"),
    [(1, 3.0, None, 3), (5, 0.0, 0.0, 1), (5, 0.0, 3.5, 3), (5, 0.0, None, 5)],
)
def test_rounds_fill_the_least_time_and_no_more_than_the_most(
    least: int, least_s: float, most_s: float | None, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    effort = Effort(min_rounds=least, min_seconds=least_s, warm=3, max_seconds=most_s)
    runs: list[None] = []
    monkeypatch.setattr(measuring, "perf_counter", lambda: 0.25 * len(runs))
    found = interleave({"a": timed(lambda: runs.append(None))}, effort)[0]["a"]
    assert (len(found.cold), len(found.warm)) == (rounds, 3 * rounds)


def test_no_sample_is_of_what_the_others_put_out_of_the_caches(clock: Any) -> None:
    """Two things that share a cache, each slower in its first runs after the other one's."""
    machine = Machine()
    clock(machine)
    ran: list[str] = []

    def sample(name: str) -> Callable[[int], dict[str, float]]:
        def run(repeats: int) -> dict[str, float]:
            taken = []
            for _ in range(repeats):
                ran.append(name)
                taken.append(0.002 if len(set(ran[-effort.settle - 1 :])) > 1 else 0.001)
            machine.now += sum(taken)
            return {WHOLE: sum(taken) / repeats}

        return run

    effort = Rounds(span_s=0.0, settle=4, settle_s=1.0)
    things = [Timed(sample(name), effort) for name in "ab"]
    rounds.measure(things, effort)
    for thing in some(things):
        assert set(thing.taken_s[WHOLE]) == {0.001}
