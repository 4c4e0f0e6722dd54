"""A disk that is full takes no part of a row, and a collection goes on once there is room."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.device_doubles import DeviceDouble, keys, wanted
from support.simulated import conv_tasks

from codl.errors import UnwritableFileError
from codl.measure.collector import Collection
from codl.measure.dataset import CsvTable, Dataset, OpRow
from codl.measure.timing import Rounds

TASKS = conv_tasks()[:30]
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
        dataset.ops("x").append(ROW)
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
