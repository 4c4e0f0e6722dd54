"""Conditions in rows, pauses while a machine is hot or held down, and a low battery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.device_doubles import DeviceDouble
from support.phone import make_phone
from support.simulated import conv_tasks
from support.whole_way import EACH

from codl.ir import parse
from codl.ir.records.results import Conditions
from codl.machine.placement import LocalSoc
from codl.measure.collector import Collected, Collection
from codl.measure.cool_down import CoolDown, low_battery
from codl.measure.dataset import CsvTable, Dataset, OpRow, SharingRow
from codl.measure.tasks import BatchResult, MeasureBatch, make_tasks
from codl.targets.local import LocalTarget

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


@dataclass
class Warm(DeviceDouble):
    """A device whose rows are measured under the conditions that come."""

    machine: Machine = field(default_factory=Machine)

    def conditions(self) -> Conditions:
        return self.machine.read()

    def measure(self, batch: MeasureBatch) -> BatchResult:
        now = self.machine.read()
        result = super().measure(replace(batch, tasks=batch.tasks[: self.each]))
        rows = tuple(replace(one, row=one.row.under(now)) for one in result.measurements)
        return replace(result, measurements=rows, conditions=now)


def collected(
    folder: Path, coming: Sequence[Conditions], tasks: int = 8, **options: bool
) -> tuple[Collected, Warm]:
    target = Warm("phone", each=4, machine=Machine(list(coming)))
    cooling = target.machine.cool_down(longest_s=10)
    dataset = Dataset.of("phone", folder)
    return Collection(
        target, dataset, conv_tasks()[:tasks], cooling=cooling, **options
    ).run(), target


def rows(folder: Path) -> dict[object, str]:
    """What of every row is said to be throttled, by its key, in any table."""
    tables = Dataset.of("phone", folder).tables().values()
    return {(table.path.name, row.key): row.throttled for table in tables for row in table.read()}


CPU_HELD = Conditions(throttled=("cpu",))


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


def test_what_is_always_throttled_is_measured_once(tmp_path: Path) -> None:
    done, target = collected(tmp_path, [CPU_HELD])
    assert (done.again, done.left, len(target.batches)) == (0, 0, 2)
    assert {*rows(tmp_path).values()} == {"cpu"}


KNOWN = Conditions(
    temperature_c=81.5, cpu_mhz=2419.2, gpu_mhz=587.0, battery_percent=83.0, throttled=("cpu",)
)
ROW = OpRow(op="a", dim="H", share=1.0, part="b", latency_ms=1.0, run="run1")
OLD_OPS = "op,dim,share,part,latency_ms,p20_ms,p80_ms,runs,status,reason,source,run\n"
OLD_SHARING = (
    "direction,shape,transform_ms,map_ms,sync_ms,unmap_ms,copy_ms,"
    "latency_ms,p20_ms,p80_ms,runs,status,reason,source,run\n"
)


@pytest.mark.parametrize("rows", [0, 1])
def test_older_files_are_read_and_extended(tmp_path: Path, rows: int) -> None:
    table = CsvTable(tmp_path / "t_x.csv", OpRow)
    table.path.write_text(OLD_OPS + rows * "a,H,1.0,b,1.0,0.0,0.0,0,ok,,measured,run1\n")
    assert table.read() == rows * [ROW]
    assert table.repair()
    table.append(ROW.under(KNOWN))
    assert table.read() == [*(rows * [ROW]), ROW.under(KNOWN)]
    assert not table.repair()


def test_files_of_each_age_are_read(tmp_path: Path) -> None:
    """Without the layout, without conditions, and with only some of them, but in their order."""
    table = CsvTable(tmp_path / "t_data_sharing.csv", SharingRow)
    values = "load,1x1x1x1,0,0,0,0,0,1.0,0,0,0,ok,,measured,run1"
    table.path.write_text(OLD_SHARING + values + "\n")
    (row,) = table.read()
    assert (row.layout, row.temperature_c) == ("blocked float32", None)
    table.path.write_text(f"{OLD_SHARING.strip()},cpu_mhz,throttled\n{values},2000,cpu gpu\n")
    (row,) = table.read()
    assert (row.cpu_mhz, row.throttled) == (2000, "cpu gpu")


def test_a_collection_reads_conditions_with_every_batch(
    first_soc: LocalSoc, tmp_path: Path
) -> None:
    target = LocalTarget(first_soc, files=make_phone(tmp_path))
    dataset = Dataset.of("test", tmp_path / "lat_datasets")
    tasks = make_tasks([parse("fc in=1x32x5x5 oc=40")], first_soc, [1.0])
    Collection(target, dataset, tasks, rounds=EACH).run()
    rows = [row for table in dataset.tables().values() for row in table.read()]
    assert rows
    for row in rows:
        assert row.temperature_c == pytest.approx(43.6)
        assert (row.battery_percent, row.throttled) == (83, "")
