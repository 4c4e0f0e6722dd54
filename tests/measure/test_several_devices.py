"""Several devices share a collection; what goes wrong with one loses and doubles nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support.device_doubles import (
    BOARD,
    LONGEST_S,
    DeviceDouble,
    SteppingClock,
    keys,
    measured,
    wanted,
)
from support.simulated import conv_tasks

import codl
from codl.errors import CodlError, CodlWarning, DeviceError, MismatchError
from codl.ir.environment import Environment
from codl.kernels.tuning import Tuning
from codl.measure import collector as collection
from codl.measure.batch import BatchResult, MeasureBatch
from codl.measure.collector import PATIENCE_S, collect
from codl.measure.dataset import Dataset, dataset_digest
from codl.measure.tasks import NEVER_AGAIN
from codl.measure.timing import Rounds

TASKS = conv_tasks()[:40]
QUICK = Rounds(span_s=1.0)
LOST = BatchResult((), (), lost="The agent of 'b' ended with code 255: cut off")
#: What may look at a clock that people set: when something was, and how old a file is.
MAY_LOOK = {"provenance.py", "cache.py"}
WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\b|from time import .*\btime\b|datetime\.(utc)?now\b")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset.of("board", tmp_path)


def check_makers(dataset: Dataset, *devices: DeviceDouble) -> None:
    """Every row says by its run which device it is of."""
    runs = dataset.manifest()["runs"]
    latency_ms = {device.serial: device.latency_ms for device in devices}
    for table in dataset.tables().values():
        for row in table.read():
            assert row.latency_ms == latency_ms[runs[row.run]["serial"]]


def until(event: Event) -> None:
    assert event.wait(LONGEST_S)


def test_devices_share_the_tasks(dataset: Dataset) -> None:
    """Neither begins its second batch before the other has done its first."""
    first, second = Event(), Event()
    one = DeviceDouble("a", 1.0, before=lambda n: first.set() if n == 1 else until(second))
    two = DeviceDouble("b", 2.0, before=lambda n: second.set() if n == 1 else until(first))
    done = collect([one, two], dataset, TASKS, rounds=QUICK)
    assert (done.left, done.failed, done.stopped) == (0, 0, "done")
    assert keys(dataset) == wanted(TASKS)
    check_makers(dataset, one, two)
    assert sum(own.measured for own in done.devices) == len(TASKS)
    assert all(own.measured and not own.problem for own in done.devices)
    runs = dataset.manifest()["runs"]
    assert {run["serial"] for run in runs.values()} == {"a", "b"}
    assert all("ended" in run for run in runs.values())
    slower = {run["serial"]: run["calibration"]["cpu"] for run in runs.values()}
    assert slower["b"] == pytest.approx(2 * slower["a"])


def test_nobody_measures_what_another_is_at(dataset: Dataset) -> None:
    both = [Event(), Event()]

    def at_work(own: int) -> None:
        both[own].set()
        until(both[1 - own])

    devices = [
        DeviceDouble(f"{own}", each=99, before=lambda n, own=own: at_work(own) if n == 1 else None)
        for own in (0, 1)
    ]
    collect(devices, dataset, TASKS, rounds=QUICK)
    first, second = (device.batches[0] for device in devices)
    assert not {*first} & {*second}


def test_a_slower_device_gets_less(dataset: Dataset) -> None:
    """Its first batch lasts until the other one has measured all that it may."""
    enough = Event()
    slow = DeviceDouble("slow", 2.0, each=2, before=lambda n: until(enough))
    fast = DeviceDouble("fast", before=lambda n: enough.set() if n == 5 else None)
    done = collect([slow, fast], dataset, TASKS, rounds=QUICK)
    assert keys(dataset) == wanted(TASKS)
    news = {own.serial: own.measured for own in done.devices}
    assert 0 < news["slow"] < news["fast"]


def test_a_dead_device_holds_nobody_up(dataset: Dataset) -> None:
    def refuse(number: int) -> None:
        raise DeviceError("No route to host.")

    dead, alive = DeviceDouble("b", 2.0, at_door=refuse), DeviceDouble("a")
    with pytest.warns(CodlWarning, match=r"No route to host\. 'b' is tried again while others"):
        done = collect([dead, alive], dataset, TASKS, rounds=QUICK, clock=SteppingClock())
    assert done.left == 0
    assert keys(dataset) == wanted(TASKS)
    news = {own.serial: own for own in done.devices}
    assert news["b"].state in ("away", "joining")
    assert (news["b"].problem, news["b"].run, dead.batches) == ("No route to host.", "", [])
    assert [run["serial"] for run in dataset.manifest()["runs"].values()] == ["a"]


def test_all_dead_is_an_error_with_each_reason(dataset: Dataset) -> None:
    def refuse(number: int) -> None:
        raise DeviceError("No route to host.")

    dead = [DeviceDouble(serial, at_door=refuse) for serial in "ab"]
    with (
        pytest.warns(CodlWarning, match="is tried again"),
        pytest.raises(DeviceError, match=r"No route to host\. No route to host\."),
    ):
        collect(dead, dataset, TASKS, rounds=QUICK, clock=SteppingClock())
    assert not dataset.manifest_path.exists()


def test_a_device_that_comes_back_goes_on(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost in its second batch, not there twice, and then works again."""
    back = Event()
    monkeypatch.setattr(collection, "FEW", 0)  # there is always some work for both

    def door(number: int) -> None:
        if number in (2, 3):
            raise DeviceError("Connection refused.")

    def flaky(number: int) -> BatchResult | None:
        if number > 2:
            back.set()
        return LOST if number == 2 else None

    one = DeviceDouble("a", before=lambda n: until(back) if n == 4 else None)
    two = DeviceDouble("b", 2.0, before=flaky, at_door=door)
    with pytest.warns(CodlWarning, match=r"cut off\. 'b' is tried again while others go on"):
        done = collect([one, two], dataset, TASKS, rounds=QUICK, clock=SteppingClock())
    assert (done.left, done.failed) == (0, 0)
    assert keys(dataset) == wanted(TASKS)
    check_makers(dataset, one, two)
    news = {own.serial: own for own in done.devices}
    assert (news["b"].lost, news["b"].problem, two.reached) == (1, "", 4)
    assert len(dataset.manifest()["runs"]) == 2  # it goes on with the run that it had


def test_pauses_grow_until_patience_ends(dataset: Dataset) -> None:
    """A device that went away for good ends the collection, and another goes on with it."""

    def gone(number: int) -> None:
        if number > 1:
            raise DeviceError("Connection refused.")

    lost = DeviceDouble("b", before=lambda n: LOST if n > 1 else None, at_door=gone)
    clock = SteppingClock()
    with (
        pytest.warns(CodlWarning, match="'b' is tried again"),
        pytest.raises(DeviceError, match=r"No device has answered for 3\d\d s: Connection refused"),
    ):
        collect(lost, dataset, TASKS, rounds=QUICK, clock=clock)
    assert clock.waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert sum(clock.waits) >= PATIENCE_S
    assert len(keys(dataset)) == len(wanted(lost.batches[0][:3]))
    rest = DeviceDouble("a")
    done = collect(rest, dataset, TASKS, rounds=QUICK, resume=True)
    assert (done.skipped, done.left) == (3, 0)
    assert keys(dataset) == wanted(TASKS)


def test_what_can_be_opened_but_measures_nothing_is_no_loop(dataset: Dataset) -> None:
    with pytest.raises(DeviceError, match="cut off"):
        collect(DeviceDouble("b", before=lambda n: LOST), dataset, TASKS, clock=SteppingClock())


def test_a_device_with_another_driver_is_left_out(dataset: Dataset) -> None:
    one, two = DeviceDouble("a"), DeviceDouble("b", driver="2.0")
    message = r"'b' is not the SoC 'simulated': its driver is '2\.0', expected 'none'"
    with pytest.warns(CodlWarning, match=message):
        done = collect([one, two], dataset, TASKS, rounds=QUICK)
    assert keys(dataset) == wanted(TASKS)
    assert {own.serial: own.state for own in done.devices} == {"a": "idle", "b": "out"}
    assert not two.batches


def test_devices_of_two_socs_are_refused(dataset: Dataset) -> None:
    other = replace(BOARD, description="another")
    with pytest.raises(MismatchError, match="'a' and 'b' are of different SoCs"):
        collect([DeviceDouble("a"), DeviceDouble("b", soc=other)], dataset, TASKS)


@pytest.mark.parametrize(("hung", "tries"), [(False, 2), (True, 1)])
def test_what_takes_an_agent_down_twice_is_one_failed_row(
    dataset: Dataset, hung: bool, tries: int
) -> None:
    """Once may have been a cable; what hangs is not tried again."""
    deadly, deaths = TASKS[4], []

    class Deadly(DeviceDouble):
        def measure(self, batch: MeasureBatch) -> BatchResult:
            some = replace(batch, tasks=batch.tasks[: self.each])
            if deadly not in some.tasks:
                return super().measure(batch)
            deaths.append(deadly)
            before = replace(some, tasks=some.tasks[: some.tasks.index(deadly)])
            result = measured(before, self.latency_ms, self.each)
            return replace(result, anchors=(), lost="crashed", suspects=(deadly,), has_hung=hung)

    done = collect(Deadly("a"), dataset, TASKS, rounds=QUICK)
    assert (done.left, done.failed, len(deaths)) == (0, 1, tries)
    assert keys(dataset) == wanted(TASKS)
    rows = [row for table in dataset.tables().values() for row in table.read()]
    assert {row.reason for row in rows if row.status == "failed"} == {f"crashed. {NEVER_AGAIN}"}


def test_rows_that_had_arrived_are_kept_when_a_device_goes_away(dataset: Dataset) -> None:
    class Cut(DeviceDouble):
        def measure(self, batch: MeasureBatch) -> BatchResult:
            result = super().measure(batch)
            if len(self.batches) != 2:
                return result
            first = result.measurements[:1]
            return BatchResult(first, (), lost="cut off", suspects=tuple(batch.tasks[1:3]))

    device = Cut("a")
    done = collect(device, dataset, TASKS, rounds=QUICK)
    assert (done.left, done.failed) == (0, 0)
    assert keys(dataset) == wanted(TASKS)
    arrived = device.batches[1][0]
    assert not any(arrived in batch for batch in device.batches[2:])


@pytest.mark.parametrize("step_s", [-1e6, 1e6])
def test_a_clock_that_jumps_changes_nothing(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    def jumps() -> Iterator[float]:
        now_s = 1.7e9
        while True:
            now_s += step_s
            yield now_s

    monkeypatch.setattr(time, "time", jumps().__next__)
    done = collect(DeviceDouble("a"), dataset, TASKS, rounds=QUICK, budget_s=1000.0)
    assert (done.stopped, done.left) == ("done", 0)
    assert 0 <= done.seconds < 1000
    assert keys(dataset) == wanted(TASKS)


def test_intervals_are_measured_by_clocks_that_nobody_sets() -> None:
    folder = Path(codl.__file__).parent
    found = {path.name for path in folder.rglob("*.py") if WALL_CLOCK.search(path.read_text())}
    assert found <= MAY_LOOK


def test_a_device_that_fails_otherwise_is_left_out(dataset: Dataset) -> None:
    def fail(number: int) -> None:
        raise CodlError("The model was not sent.")

    one, two = DeviceDouble("a"), DeviceDouble("b", before=fail)
    with pytest.warns(CodlWarning, match="The model was not sent. 'b' is left out"):
        collect([one, two], dataset, TASKS, rounds=QUICK)
    assert keys(dataset) == wanted(TASKS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, ""),
        ({"clocks": {"gpu": "powersave"}, "cpu_cores": (3,)}, ""),  # anchors tell how fast it was
        ({"driver": "2"}, "driver: 1 and 2"),
        ({"libraries": {"ncnn": "2"}}, "libraries ncnn: none and 2"),
    ],
)
def test_rows_of_another_driver_are_not_mixed(
    dataset: Dataset, changed: dict[str, Any], message: str
) -> None:
    first = Environment(machine="board", system="Linux", device="Mali", driver="1")
    device = DeviceDouble("a")
    collect(device, dataset, TASKS, rounds=QUICK, samples=20, tells=lambda own: first)
    (run,) = dataset.manifest()["runs"].values()
    assert run["environment"]["driver"] == "1"
    assert run["environment"]["protocol"]["statistic"]
    before = dataset_digest(dataset)

    def go_on() -> int:
        second = replace(first, **changed)
        again = {"rounds": QUICK, "resume": True, "tells": lambda own: second}
        return collect(device, dataset, TASKS, **again).left

    if not message:
        assert go_on() == 0
        assert dataset_digest(dataset) != before
        return
    with pytest.raises(MismatchError, match=message):
        go_on()
    assert dataset_digest(dataset) == before


def test_no_dataset_has_no_digest(tmp_path: Path) -> None:
    assert dataset_digest(Dataset.of("board", tmp_path)) == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt, CodlError, ValueError])
def test_rows_that_wait_to_be_measured_again_are_kept_whatever_ends_a_collection(
    error: type[BaseException], dataset: Dataset
) -> None:
    def before(number: int) -> BatchResult | None:
        if number > 1:
            raise error
        batch = device.batches[-1]
        result = measured(MeasureBatch(tuple(batch), "run1", QUICK, Tuning(), 1.0, {}, {}), 1.0, 3)
        disturbed = tuple(replace(one, is_disturbed=True) for one in result.measurements)
        return replace(result, measurements=disturbed)

    device = DeviceDouble("a", before=before)
    with pytest.raises(error):
        collect(device, dataset, TASKS, rounds=QUICK)
    assert len(keys(dataset)) == 3
    (run,) = dataset.manifest()["runs"].values()
    assert "ended" in run
