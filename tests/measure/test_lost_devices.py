"""A device that is lost, or a disk that is full, loses and doubles no row."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.device_doubles import (
    DeviceDouble,
    SteppingClock,
    keys,
    measured,
    wanted,
)
from support.simulated import conv_tasks

from codl.errors import CodlError, CodlWarning, DeviceError, MismatchError, UnwritableFileError
from codl.ir.environment import Environment
from codl.kernels.tuning import Tuning
from codl.measure.collector import Collected, Collection
from codl.measure.dataset import CsvTable, Dataset, OpRow, dataset_digest
from codl.measure.tasks import NEVER_AGAIN, BatchResult, MeasureBatch
from codl.measure.timing import Rounds

TASKS = conv_tasks()[:40]
QUICK = Rounds(span_s=1.0)
LOST = BatchResult((), (), lost="The agent of 'b' ended with code 255: cut off")


def collected(
    device: DeviceDouble, dataset: Dataset, clock: SteppingClock, budget_s: float | None = None
) -> Collected:
    return Collection(
        device,
        dataset,
        TASKS,
        rounds=QUICK,
        budget_s=budget_s,
        cooling=clock.cooling(device.conditions),
    ).run()


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset.of("board", tmp_path)


def test_the_budget_ends_while_a_device_is_away(dataset: Dataset) -> None:
    def door(number: int) -> None:
        if number > 1:
            raise DeviceError("Connection refused.")

    device = DeviceDouble("b", before=lambda n: LOST if n > 1 else None, at_door=door)
    clock = SteppingClock()
    with pytest.warns(CodlWarning, match="is tried again"):
        done = collected(device, dataset, clock, budget_s=10.0)
    assert (done.stopped, clock.waits) == ("budget", [1, 2, 4, 3])


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

    done = Collection(Deadly("a"), dataset, TASKS, rounds=QUICK).run()
    assert (done.left, done.failed, len(deaths)) == (0, 1, tries)
    assert keys(dataset) == wanted(TASKS)
    rows = [row for table in dataset.tables().values() for row in table.read()]
    assert {row.reason for row in rows if row.status == "failed"} == {f"crashed. {NEVER_AGAIN}"}


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
    Collection(device, dataset, TASKS, rounds=QUICK, samples=20, environment=first).run()
    (run,) = dataset.manifest()["runs"].values()
    assert run["environment"]["driver"] == "1"
    assert run["environment"]["protocol"]["statistic"]
    before = dataset_digest(dataset)

    def go_on() -> int:
        second = replace(first, **changed)
        again = Collection(device, dataset, TASKS, rounds=QUICK, resume=True, environment=second)
        return again.run().left

    if not message:
        assert go_on() == 0
        assert dataset_digest(dataset) != before
        return
    with pytest.raises(MismatchError, match=message):
        go_on()
    assert dataset_digest(dataset) == before


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
        Collection(device, dataset, TASKS, rounds=QUICK).run()
    assert len(keys(dataset)) == 3
    (run,) = dataset.manifest()["runs"].values()
    assert "ended" in run


@pytest.mark.filterwarnings("ignore:.* is tried again")
@pytest.mark.parametrize("first", [1, 2])
def test_what_can_be_opened_but_measures_nothing_is_no_loop(dataset: Dataset, first: int) -> None:
    device = DeviceDouble("b", before=lambda n: LOST if n >= first else None)
    with pytest.raises(DeviceError, match="cut off"):
        collected(device, dataset, SteppingClock())


ROW = OpRow(op="a", dim="H", share=1.0, part="b", latency_ms=1.0)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file gets larger than so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_rows_are_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    table = CsvTable(tmp_path / "t_x.csv", OpRow)
    table.append(ROW)
    before = table.path.read_bytes()
    with room_for(len(before) + 60), pytest.raises(UnwritableFileError, match=r"t_x\.csv cannot"):
        table.append(*[ROW] * 9)
    assert table.path.read_bytes() == before
    table.append(ROW)
    assert table.read() == [ROW, ROW]


def test_a_full_disk_is_named() -> None:
    with pytest.raises(UnwritableFileError, match=r"No space left on device\. .* make room, and"):
        CsvTable(Path("/dev/full"), OpRow).append(ROW)


def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    """A dataset from a stranger has no way to write outside its folder."""
    folder, outside = tmp_path / "host", tmp_path / "outside"
    folder.mkdir()
    for name in ("t_x.csv", "manifest.json"):
        (folder / name).symlink_to(outside)
    dataset = Dataset(folder)
    with pytest.raises(UnwritableFileError, match="Too many levels of symbolic links"):
        dataset.table("x").append(ROW)
    dataset.write_manifest({})
    assert not outside.exists()


@pytest.mark.parametrize("size", [0, 1500, 2500])
def test_a_collection_goes_on_when_there_is_room(tmp_path: Path, size: int) -> None:
    """The manifest, a table's first rows, or later ones are what is too large."""
    dataset, quick = Dataset.of("board", tmp_path), Rounds(span_s=1.0)
    with room_for(size), pytest.raises(UnwritableFileError, match="--resume"):
        Collection(DeviceDouble("a"), dataset, TASKS, rounds=quick).run()
    done = Collection(DeviceDouble("a"), dataset, TASKS, rounds=quick, resume=True).run()
    assert done.left == 0
    assert keys(dataset) == wanted(TASKS)
