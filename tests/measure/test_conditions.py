"""Rows say under which conditions they were measured; files without the columns stay readable."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.phone import make_phone
from support.whole_way import EACH

from codl.ir import parse
from codl.ir.records.results import Conditions
from codl.machine.placement import LocalSoc
from codl.measure.collector import Collection
from codl.measure.dataset import CsvTable, Dataset, OpRow, SharingRow
from codl.measure.tasks import make_tasks
from codl.targets.local import LocalTarget

HOT = Conditions(
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
    table.append(ROW.under(HOT))
    assert table.read() == [*(rows * [ROW]), ROW.under(HOT)]
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
    anchors = dataset.anchors().read()
    assert rows
    assert anchors
    for row in (*rows, *anchors):
        assert row.temperature_c == pytest.approx(43.6)
        assert (row.battery_percent, row.throttled) == (83, "")
