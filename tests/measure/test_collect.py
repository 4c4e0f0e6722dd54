"""Collection: rows are complete, survive kills, and are refused where they do not belong."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.device_doubles import DeviceDouble
from support.simulated import conv_tasks
from support.whole_way import QUICK

from codl import files
from codl.errors import CodlError, InvalidFileError, MismatchError
from codl.files import BusyError
from codl.ir import parse, to_text
from codl.ir.records.soc import Soc
from codl.jobs.options import read_duration, read_shares
from codl.measure.collector import Collection, RowWriter
from codl.measure.dataset import CsvTable, Dataset, OpRow
from codl.measure.measurement_order import context_tasks
from codl.measure.tasks import (
    OpTask,
    check_sources,
    crash_row,
    failed_row,
    load_ops,
    make_tasks,
    read_csv,
)
from codl.measure.timing import Rounds
from codl.targets.base import Target
from codl.targets.local import LocalTarget

#: The command with little effort and nothing repeated; it prints an empty line for every row.
QUICKLY = """
from codl.cli import main
from codl.measure import collector, dataset, drift
QUICK = collector.Rounds(warm_up=1, visits=1, samples=1, settle=0, span_s=0.002, more=1)
collector.Rounds = lambda: QUICK
drift.SCATTER = float("inf")
append = dataset.CsvTable.append
def told(table, *rows):
    append(table, *rows)
    print("\\n" * len(rows), end="", flush=True)
dataset.CsvTable.append = told
main()
"""
OPS = [
    parse("conv2d in=1x16x10x10 oc=64 kernel=3x3 pad=1 act=relu"),
    parse("pooling in=1x32x10x10 kernel=2x2 stride=2"),
    parse("fc in=1x32x5x5 oc=40"),
]


def keys(dataset: Dataset) -> dict[str, list[Any]]:
    return {name: sorted(row.key for row in t.read()) for name, t in dataset.tables().items()}


def test_every_variant_and_share_is_measured(target: Target, tmp_path: Path) -> None:
    dataset = Dataset.of("test", tmp_path)
    tasks = make_tasks(OPS, target.soc, [0.5, 1.0])
    sharing = [task for task in tasks if not isinstance(task, OpTask)]
    tasks = [task for task in tasks if isinstance(task, OpTask)] + sharing[:: len(sharing) // 9]
    done = Collection(target, dataset, tasks, rounds=QUICK).run()
    assert done.failed == done.left == 0
    names = set(dataset.tables())
    assert {"conv2d_cpu_winograd", "conv2d_cpu_gemm", "conv2d_cpu_direct"} <= names
    assert {"conv2d_gpu_direct", "pooling_cpu_direct_max", "pooling_gpu_direct_max"} <= names
    assert {"fc_cpu_gemv", "fc_gpu_direct", "data_sharing"} <= names
    rows = dataset.table("conv2d_cpu_gemm").read()
    assert {(r.dim, r.share) for r in rows} == {("H", 0.5), ("OC", 0.5), ("H", 1.0)}
    assert all(r.source == "measured" and r.latency_ms > 0 for r in rows)
    half = next(r for r in rows if (r.dim, r.share) == ("H", 0.5))
    assert parse(half.part).output.h == 5
    manifest = dataset.manifest()
    assert manifest["source"] == "measured"
    assert manifest["soc"]["gpu"]["driver"] == target.soc.gpu.driver
    assert sum(manifest["files"].values()) == done.rows


def test_a_dataset_is_neither_overwritten_nor_mixed(target: Target, tmp_path: Path) -> None:
    dataset = Dataset.of("test", tmp_path)
    tasks = make_tasks(OPS[2:], target.soc, [1.0])
    first = Collection(target, dataset, tasks, rounds=QUICK, samples=1).run()
    with pytest.raises(CodlError, match="--resume"):
        Collection(target, dataset, tasks, rounds=QUICK).run()
    again = Collection(target, dataset, tasks, rounds=QUICK, resume=True).run()
    assert first.left + 1 == len(tasks)
    assert (again.skipped, again.left) == (1, 0)
    other = replace(target.soc, cpu=replace(target.soc.cpu, name="another"))
    with pytest.raises(MismatchError, match="another SoC"):
        Collection(LocalTarget(other), dataset, tasks, rounds=QUICK, resume=True).run()


def test_two_collectors_do_not_share_a_dataset(tmp_path: Path) -> None:
    """They would measure the same rows, and disturb each other."""
    dataset, tasks = Dataset.of("board", tmp_path), conv_tasks()[:3]
    with files.locked(dataset.folder), pytest.raises(BusyError, match="Another process of codl"):
        Collection(DeviceDouble("a"), dataset, tasks, rounds=Rounds(span_s=1.0)).run()
    assert not dataset.folder.exists()
    assert Collection(DeviceDouble("a"), dataset, tasks, rounds=Rounds(span_s=1.0)).run().left == 0


@pytest.mark.long
def test_kills_lose_and_repeat_nothing(
    first_soc: Soc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection killed twice at random has every row once."""
    first_soc.save(tmp_path / "socs" / "test.yaml")
    (tmp_path / "ops.csv").write_text("op\n" + "\n".join(f'"{to_text(op)}"' for op in OPS) + "\n")
    options = ["--soc", "test", "--ops", "ops.csv", "--shares", "1", "--resume"]
    options += ["--datasets", "."]
    command = [sys.executable, "-c", QUICKLY, "collect", *options]
    tasks = [*context_tasks(OPS, first_soc), *make_tasks(OPS, first_soc, [1.0])]
    wanted: dict[str, list[Any]] = {}
    for task in tasks:
        for name in task.tables:
            wanted.setdefault(name, []).append(task.key)
    dice, killed = random.Random(7), Dataset.of("test", tmp_path)
    for stop in sorted(dice.sample(range(1, len(tasks)), 2)):
        more = stop - lines(killed)
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            assert child.stdout is not None
            child.stdout.read(more)
            child.send_signal(signal.SIGKILL)
        assert 0 < lines(killed) < sum(map(len, wanted.values()))
    done = Collection(LocalTarget(first_soc), killed, tasks, resume=True, rounds=QUICK).run()
    assert done.skipped > 0
    assert keys(killed) == {name: sorted(own) for name, own in wanted.items()}


def lines(dataset: Dataset) -> int:
    return sum(path.read_bytes().count(b"\n") - 1 for path in dataset.folder.glob("t_*.csv"))


def test_a_line_cut_short_is_dropped(tmp_path: Path) -> None:
    table = CsvTable(tmp_path / "t_x.csv", OpRow)
    rows = [OpRow(op="a", dim="H", share=s, part="b", latency_ms=1.0) for s in (0.5, 1.0)]
    for row in rows:
        table.append(row)
    whole = table.path.read_bytes()
    table.path.write_bytes(whole[:-7])
    assert table.repair()
    assert table.read() == rows[:1]
    assert not table.repair()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,H,half,b,1,1,1,5,ok,,measured,run1,,,,,", "share: expected float, got 'half'"),
        (
            "a,H,0.5,b,-1,1,1,5,ok,,measured,run1,,,,,",
            "latency_ms must be positive, and no more than a day",
        ),
        ("a,H,0.5,b,1", "expected 17 values"),
        ("a,H,7,b,1,1,1,5,ok,,measured,run1,,,,,", "share: expected float <= 1.0, got '7'"),
    ],
)
def test_a_broken_row_is_named_by_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    table = CsvTable(tmp_path / "t_x.csv", OpRow)
    table.append(OpRow(op="a", dim="H", share=1.0, part="b", latency_ms=1.0))
    table.path.write_text(table.path.read_text() + line + "\n")
    with pytest.raises(InvalidFileError) as error:
        table.read()
    assert str(error.value).startswith(f"{table.path}, line 3")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("op,dim", "the columns share, part, latency_ms"),
    ],
)
def test_of_wrong_columns_the_difference_is_named(
    tmp_path: Path, columns: str, message: str
) -> None:
    table = CsvTable(tmp_path / "t_x.csv", OpRow)
    table.path.write_text(columns + "\n")
    with pytest.raises(InvalidFileError) as error:
        table.read()
    assert message in str(error.value)


def test_a_row_is_of_a_run_of_the_manifest(tmp_path: Path) -> None:
    dataset = Dataset.of("test", tmp_path)
    rows = [
        OpRow(op="a", dim="H", share=1.0, part="b", latency_ms=1.0, run=run)
        for run in ("", "run1", "run77")
    ]
    dataset.table("x").append(*rows)
    assert dataset.tables()["x"].read() == rows, "without a manifest nothing is known of runs"
    dataset.write_manifest({"source": "measured", "runs": {"run1": {}}})
    with pytest.raises(InvalidFileError, match=r"line 4: run must be .*, got 'run77'"):
        dataset.tables()["x"].read()


def test_a_failed_measurement_is_a_row_with_a_reason(
    first_soc: Soc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("out of resources")

    target = LocalTarget(first_soc)
    assert target.device  # opening it builds a kernel too
    monkeypatch.setattr("codl.runtime.program_cache.Programs.build_text", fail)
    dataset = Dataset.of("test", tmp_path)
    tasks = [t for t in make_tasks(OPS[2:], first_soc, [1.0]) if isinstance(t, OpTask)]
    done = Collection(target, dataset, tasks, rounds=QUICK).run()
    assert done.failed == sum(task.processor == "gpu" for task in tasks)
    (row,) = dataset.table("fc_gpu_direct").read()
    assert (row.status, row.reason) == ("failed", "out of resources")
    (row,) = dataset.table("fc_cpu_gemv").read()
    assert row.status == "ok"

    def again() -> int:
        return Collection(target, dataset, tasks, resume=True, rounds=QUICK).run().rows

    assert again()
    monkeypatch.undo()
    assert again()
    assert [row.status for row in dataset.table("fc_gpu_direct").read()] == [
        "failed",
        "failed",
        "ok",
    ]
    assert again() == 0


@pytest.mark.parametrize(("is_deadly", "tries"), [(False, 3), (True, 1)])
def test_what_fails_is_tried_a_few_times(tmp_path: Path, is_deadly: bool, tries: int) -> None:
    dataset, (task,) = Dataset.of("board", tmp_path), conv_tasks()[:1]
    failed = (crash_row if is_deadly else failed_row)(task, "r", "out of resources.")
    for _ in range(tries):
        writer = RowWriter(dataset)
        assert writer.lacks(task)
        writer.write([(task, failed)])
    assert not RowWriter(dataset).lacks(task)


def test_ops_of_a_table_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    path.write_text('op,name\n"fc in=1x32x1x1 oc=8",a\n,\n"fc in=many oc=8",b\n')
    with pytest.raises(InvalidFileError, match=r"ops.csv, line 4: not an op.*'many'"):
        read_csv(path)
    path.write_text("IH,IW\n1,2\n")
    with pytest.raises(InvalidFileError, match=r"ops.csv, line 1: expected a column 'op', got"):
        read_csv(path)


def test_an_op_as_text_stands_among_models(tmp_path: Path) -> None:
    text, table = "fc in=1x32x5x5 oc=40", tmp_path / "two words.csv"
    table.write_text("op\nfc in=1x32x5x5 oc=41\n")
    check_sources([text, str(table), "op_chain"])
    assert load_ops([text, str(table), text]) == [parse(text), *read_csv(table)]
    with pytest.raises(CodlError):
        load_ops(["fc in=1x32x5x5 nap=40"])


def test_durations_and_shares() -> None:
    assert [read_duration(t) for t in ("90s", "10m", "1.5h", "7")] == [90, 600, 5400, 7]
    with pytest.raises(ValueError, match="'soon'"):
        read_duration("soon")
    assert read_shares("0.2,1") == (0.2, 1.0)
    for wrong in ("0,1", "1.5", "half"):
        with pytest.raises(CodlError, match=wrong):
            read_shares(wrong)
