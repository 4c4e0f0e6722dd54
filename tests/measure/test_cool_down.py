"""Pauses while a machine is hot or held down, a low battery, and whether a pace holds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.simulated import SOC, conv_tasks

from codl.measure.batch import BatchResult, MeasureBatch, Measurement
from codl.measure.collector import Collected, collect
from codl.measure.cool_down import CoolDown, held, low_battery, pace, tolerance
from codl.measure.dataset import AnchorRow, Dataset
from codl.measure.tasks import OpTask
from codl.measure.timing import TOLERANCE
from codl.records.results import Conditions
from codl.runtime.placement import LocalSoc, Placement

PHONE = LocalSoc.of(SOC, Placement("none", cpu_cores=(0,)))
COOL = Conditions(temperature_c=45.0)
HOT = Conditions(temperature_c=84.0)
HELD = Conditions(temperature_c=60.0, throttled=("gpu",))


@dataclass
class Machine:
    """Of which conditions come one after the other; the last stays. Sleeping moves its clock."""

    coming: list[Conditions] = field(default_factory=lambda: [COOL])
    now_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    def read(self) -> Conditions:
        return self.coming.pop(0) if len(self.coming) > 1 else self.coming[0]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def cool_down(self, **limits: float) -> CoolDown:
        return CoolDown(
            self.read, self.notes.append, clock=lambda: self.now_s, sleep=self.sleep, **limits
        )


def temperatures(*celsius: float) -> list[Conditions]:
    return [Conditions(temperature_c=own) for own in celsius]


def test_a_hot_machine_is_waited_for_until_it_is_near_where_it_began() -> None:
    machine = Machine(temperatures(79, 70, 51, 49, 20))
    cooling = machine.cool_down()
    cooling.wait(COOL)
    assert machine.notes == []
    cooling.wait(HOT)
    assert cooling.paused_s == machine.now_s == 8  # four looks, to 49 degrees
    assert machine.notes == [
        "The processors have 84 °C, 80 °C is hot: pausing until that is over, 120 s at most.",
        "Paused for 8 s, at 49 °C now.",
    ]


def test_one_that_began_hot_cools_down_too() -> None:
    machine = Machine(temperatures(85, 75, 70))
    machine.cool_down().wait(HOT)
    assert machine.now_s == 6


def test_warm_is_not_hot() -> None:
    machine = Machine()
    cooling = machine.cool_down()
    cooling.wait(COOL)
    for celsius in (60, 79.9):
        cooling.wait(Conditions(temperature_c=celsius))
    cooling.wait(Conditions())
    assert machine.notes == []
    machine.cool_down(hot_c=60).wait(Conditions(temperature_c=60.0))
    assert machine.notes[0].startswith("The processors have 60 °C, 60 °C is hot")


def test_a_pause_ends_after_its_time_and_what_it_waited_for_is_ordinary_then() -> None:
    machine = Machine([HOT])
    cooling = machine.cool_down(longest_s=60)
    cooling.wait(COOL)
    cooling.wait(HOT)
    assert machine.now_s == 60
    cooling.wait(HOT)
    cooling.wait(Conditions(temperature_c=88.0))  # not above 84 by more than is near
    assert machine.now_s == 60
    machine.coming = temperatures(88)
    cooling.wait(Conditions(temperature_c=95.0))
    assert machine.now_s == 62


def test_a_pause_is_no_longer_than_the_budget_and_may_be_none() -> None:
    machine = Machine([HOT])
    machine.cool_down().wait(HOT, 5)
    assert machine.now_s >= 5
    assert machine.now_s <= 5 + 2
    for cooling, most_s in ((machine.cool_down(longest_s=0), 60), (machine.cool_down(), 0)):
        machine.notes.clear()
        cooling.wait(HOT, most_s)
        assert machine.notes == []


def test_a_clock_that_is_held_down_is_waited_for() -> None:
    machine = Machine([HELD, replace(HELD, throttled=()), COOL])
    cooling = machine.cool_down()
    cooling.wait(COOL)
    cooling.wait(HELD)
    assert machine.now_s == 6
    assert machine.notes[0].startswith("The clock of the GPU is held down")
    assert cooling.throttled("cpu gpu") == {"cpu", "gpu"}


def test_a_clock_that_stays_down_is_ordinary() -> None:
    machine = Machine([HELD])
    cooling = machine.cool_down()
    cooling.wait(HELD)
    assert machine.now_s == 120
    cooling.wait(HELD)
    assert machine.now_s == 120
    assert cooling.throttled("cpu gpu") == {"cpu"}


@pytest.mark.parametrize(
    ("conditions", "is_low"),
    [
        (Conditions(), False),
        (Conditions(battery_percent=20, is_charging=False), False),
        (Conditions(battery_percent=19, is_charging=False), True),
        (Conditions(battery_percent=5, is_charging=True), False),
    ],
)
def test_a_battery_runs_out_below_20_percent(conditions: Conditions, is_low: bool) -> None:
    assert bool(low_battery(conditions)) == is_low


def test_the_sentence_has_the_value() -> None:
    assert low_battery(Conditions(battery_percent=17, is_charging=False)) == (
        "The battery is at 17 % and does not charge; below 20 % nothing is measured."
    )


@dataclass
class Double:
    """A target that measures nothing: rows of 1 ms, under the conditions that come."""

    machine: Machine
    each: int = 4
    serial: str = "double"
    soc: LocalSoc = PHONE
    replays: None = None
    batches: list[list[OpTask]] = field(default_factory=list)

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def clocks_mhz(self) -> dict[str, float]:
        return {}

    def conditions(self) -> Conditions:
        return self.machine.read()

    def measure(self, batch: MeasureBatch) -> BatchResult:
        now = self.machine.read()
        tasks = [task for task in batch.tasks[: self.each] if isinstance(task, OpTask)]
        self.batches.append(tasks)
        rows = [
            replace(t.row_template, run=batch.run, latency_ms=1.0, runs=1).under(now) for t in tasks
        ]
        measured = tuple(Measurement(t, r) for t, r in zip(tasks, rows, strict=True))
        anchors = tuple(
            AnchorRow(op="a", processor=side, batch=0, latency_ms=1.0, run=batch.run)
            for side in ("cpu", "gpu")
        )
        return BatchResult(measured, anchors, conditions=now)


def collected(
    folder: Path, coming: Sequence[Conditions], tasks: int = 8, **options: bool
) -> tuple[Collected, Double]:
    target = Double(Machine(list(coming)))
    cooling = target.machine.cool_down(longest_s=10)
    dataset = Dataset.of("phone", folder)
    return collect(
        target, dataset, conv_tasks()[:tasks], cooling=lambda target: cooling, **options
    ), target


def rows(folder: Path) -> dict[object, str]:
    """What of every row is said to be throttled, by its key, in any table."""
    tables = Dataset.of("phone", folder).tables().values()
    return {(table.path.name, row.key): row.throttled for table in tables for row in table.read()}


CPU_HELD = Conditions(throttled=("cpu",))
GPU_HELD = Conditions(throttled=("gpu",))


def test_throttled_rows_are_measured_again_after_a_pause(tmp_path: Path) -> None:
    """The first batch was; its tasks come behind the others."""
    calm = Conditions()
    done, target = collected(tmp_path, [calm, CPU_HELD, CPU_HELD, calm])
    first, second, third = target.batches
    assert first == third
    assert not {*first} & {*second}
    assert (done.again, done.left, done.rows, done.paused_s) == (4, 0, 8, 4)
    assert {*rows(tmp_path).values()} == {""}


def test_rows_that_are_throttled_again_are_marked(tmp_path: Path) -> None:
    """Every batch is, and every pause helps."""
    calm = Conditions()
    done, target = collected(
        tmp_path, [calm, CPU_HELD, calm, CPU_HELD, calm, CPU_HELD, calm, CPU_HELD]
    )
    assert len(target.batches) == 4
    assert (done.again, done.left) == (8, 0)
    assert {*rows(tmp_path).values()} == {"cpu"}


def test_the_other_processors_heat_disturbs_nobody(tmp_path: Path) -> None:
    done, _ = collected(tmp_path, [Conditions(), GPU_HELD, Conditions()])
    assert done.again == 0
    assert sorted({*rows(tmp_path).values()}) == ["", "gpu"]


def test_what_is_always_throttled_is_measured_once(tmp_path: Path) -> None:
    done, target = collected(tmp_path, [CPU_HELD])
    assert (done.again, done.left, len(target.batches)) == (0, 0, 2)
    assert {*rows(tmp_path).values()} == {"cpu"}


def test_a_low_battery_ends_a_collection_that_goes_on_later(tmp_path: Path) -> None:
    full, low = (Conditions(battery_percent=own, is_charging=False) for own in (50, 19))
    done, target = collected(tmp_path, [full, low])
    assert (done.stopped, done.rows, done.left, len(target.batches)) == ("battery", 4, 4, 1)
    assert done.reason.startswith("The battery is at 19 %")
    dataset = Dataset.of("phone", tmp_path)
    assert dataset.manifest()["runs"]["run1"]["ended"]
    assert dataset.manifest()["runs"]["run1"]["conditions"]["battery_percent"] == 50
    none, target = collected(tmp_path, [low], resume=True)
    assert (none.stopped, none.rows, target.batches) == ("battery", 0, [])
    rest, _ = collected(tmp_path, [replace(low, is_charging=True)], resume=True)
    assert (rest.stopped, rest.skipped, rest.left) == ("done", 4, 0)
    assert len(rows(tmp_path)) == 8


def test_rows_to_be_measured_again_are_kept_when_the_battery_ends_it(tmp_path: Path) -> None:
    low = replace(CPU_HELD, battery_percent=19, is_charging=False)
    done, _ = collected(tmp_path, [Conditions(battery_percent=50), low])
    assert (done.stopped, done.left) == ("battery", 4)
    assert {*rows(tmp_path).values()} == {"cpu"}


def test_rounds_last_as_long_as_they_were_asked_to() -> None:
    samples = pace(0.0)
    assert len(samples) >= 3
    assert min(samples) > 0


def test_half_the_pace_at_the_end_is_half() -> None:
    falling = [1.0] * 30 + [2.0] * 30
    assert held(falling) == pytest.approx(0.5)
    assert tolerance(falling) == TOLERANCE


def test_a_clock_that_falls_bit_by_bit_does_not_hold() -> None:
    falling = [1.02**index for index in range(60)]
    assert held(falling) < 1 - tolerance(falling)


def test_single_rounds_that_are_slow_do_not_matter() -> None:
    disturbed = [5.0 if index % 2 else 1.0 for index in range(60)]
    assert held(disturbed) == pytest.approx(1.0)
    assert tolerance(disturbed) == TOLERANCE


def test_a_machine_that_is_never_quiet_may_differ_more() -> None:
    restless = [1.0 + 0.2 * (index // 6 % 2) for index in range(54)]
    assert tolerance(restless) > 0.3
