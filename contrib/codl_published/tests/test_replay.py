"""Replays: a dataset in the place of a device, which answers with its rows and runs nothing."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.simulated import GEMM, REPLAYED, SOC, conv_tasks, write_dataset
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError, InvalidFileError, MismatchError, UnsupportedError
from codl.ir import Shape, parse, to_text
from codl.ir.records.results import Conditions
from codl.kernels import registry
from codl.kernels.tuning import Tuned, Tuning
from codl.measure import tuning_file
from codl.measure.check_variants import CheckTask
from codl.measure.collector import Collected, Collection
from codl.measure.dataset import CsvTable, Dataset, OpRow, Row, SharingRow
from codl.measure.tasks import MeasureBatch, OpTask, SharingTask, Task
from codl.measure.timing import Rounds
from codl.measure.tuner import TuneTask
from codl.predict.features import STORAGES
from codl.targets.base import Target
from codl.targets.connect import connect, transport_of
from codl.targets.kernel_runs import check_kernels, tune
from codl_published.replay import ReplayTarget

#: Where commands put a dataset that is not the one they replay.
OTHER = ("--datasets", "other")
#: What a replay answers; everything else of the protocol has to run, or to look at a machine.
ANSWERED = {
    "serial", "soc", "replays", "can_measure", "conditions",
    "measure",
}  # fmt: skip
#: Two runs; the second one's machine was slower.
RUNS: dict[str, dict[str, Any]] = {
    "run1": {
        "codl": "0",
        "created": "2026-11-01T10:00:00+00:00",
        "ended": "2026-11-01T10:01:40+00:00",
        "placement": {"icd": "some-driver", "cpu_cores": [0, 1]},
        "conditions": asdict(Conditions(temperature_c=95.0, throttled=("cpu",))),
        "calibration": {"cpu": 1.0, "gpu": 1.0},
    },
    "run2": {"created": "2026-11-02T10:00:00+00:00", "calibration": {"cpu": 1.25, "gpu": 1.75}},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The simulated dataset as one that a collection wrote."""
    dataset = write_dataset(tmp_path_factory.mktemp("recorded") / SOC.name)
    dataset.write_manifest({"source": "simulated", "soc": SOC.to_dict(), "runs": {}})
    return dataset


@pytest.fixture
def tasks(recorded: Dataset) -> list[Task]:
    return tasks_of(recorded)


def tasks_of(dataset: Dataset) -> list[Task]:
    """What its rows of convolutions and of data sharing were measured for."""
    known = {(to_text(t.op), t.dim, t.share): t for t in conv_tasks()}
    found: list[Task] = [replace(known[row.key], tables=(GEMM,)) for row in ok(dataset.table(GEMM))]
    for row in dataset.table("data_sharing").read():
        storage = STORAGES[row.layout]
        found.append(SharingTask(row.direction, shape_of(row.shape), storage))  # type: ignore[arg-type]
    return found


def shape_of(text: str) -> Shape:
    return Shape(*map(int, text.split("x")))


def ok(table: CsvTable[OpRow]) -> list[OpRow]:
    return [row for row in table.read() if row.status == "ok"]


def replayed(recorded: Dataset) -> ReplayTarget:
    return ReplayTarget(f"replay:{recorded.folder}", SOC)


def again(
    recorded: Dataset, folder: Path, tasks: list[Task], **options: Any
) -> tuple[Collected, Dataset]:
    """Collect through the replay."""
    dataset = Dataset.of(SOC.name, folder)
    return Collection(replayed(recorded), dataset, tasks, **options).run(), dataset


def plain(rows: list[Any]) -> dict[tuple[Any, ...], Row]:
    return {row.key: replace(row, source="", run="") for row in rows if row.status == "ok"}


def copied(recorded: Dataset, folder: Path, runs: dict[str, Any], run: str = "run1") -> Dataset:
    """The recording with runs in its manifest; every second row is of the second run."""
    dataset = Dataset(folder / SOC.name)
    rows = [replace(row, run=run) for row in ok(recorded.table(GEMM))]
    dataset.table(GEMM).append(*rows)
    dataset.write_manifest({"source": "measured", "soc": SOC.to_dict(), "runs": runs})
    return dataset


def test_a_collection_writes_the_same_rows_again(
    recorded: Dataset, tasks: list[Task], tmp_path: Path
) -> None:
    done, dataset = again(recorded, tmp_path, tasks)
    assert (done.rows, done.failed, done.left, done.stopped) == (len(tasks), 0, 0, "done")
    assert plain(dataset.table(GEMM).read()) == plain(recorded.table(GEMM).read())
    assert plain(dataset.table("data_sharing").read()) == plain(
        recorded.table("data_sharing").read()
    )
    rows = [*dataset.table(GEMM).read(), *dataset.table("data_sharing").read()]
    assert {(row.source, row.run) for row in rows} == {("replayed", "run1")}


def test_the_manifest_says_what_was_replayed(
    recorded: Dataset, tasks: list[Task], tmp_path: Path
) -> None:
    _, dataset = again(recorded, tmp_path, tasks[:3])
    manifest = dataset.manifest()
    run = manifest["runs"]["run1"]
    assert (manifest["source"], manifest["soc"]) == ("replayed", SOC.to_dict())
    assert run["replays"] == {"folder": str(recorded.folder), "source": "simulated", "runs": {}}
    assert run["serial"] == f"replay:{recorded.folder}"
    assert {"codl", "commit", "created", "ended"} <= run.keys()
    assert not {"placement", "protocol"} & run.keys()


def test_what_the_dataset_lacks_is_a_failed_row(
    recorded: Dataset, tasks: list[Task], tmp_path: Path
) -> None:
    first = tasks[0]
    assert isinstance(first, OpTask)
    lacking = [replace(first, share=0.123), replace(first, part=first.op, share=0.25, dim="H")]
    done, dataset = again(recorded, tmp_path, [first, *lacking])
    rows = {row.key: row for row in dataset.table(GEMM).read()}
    assert (done.rows, done.failed, done.left) == (3, 2, 0)
    assert [rows[task.key].status for task in lacking] == ["failed"] * 2
    assert "no row of this" in rows[lacking[0].key].reason
    assert "another part" in rows[lacking[1].key].reason
    assert {row.source for row in rows.values()} == {"replayed"}
    again_done, _ = again(recorded, tmp_path, [first, *lacking], resume=True)
    assert (again_done.rows, again_done.skipped) == (0, 3)


def test_samples_and_resuming(recorded: Dataset, tasks: list[Task], tmp_path: Path) -> None:
    done, dataset = again(recorded, tmp_path, tasks, samples=7)
    assert (done.rows, done.stopped) == (7, "samples")
    with pytest.raises(CodlError, match="--resume"):
        again(recorded, tmp_path, tasks)
    rest, _ = again(recorded, tmp_path, tasks, resume=True)
    assert (rest.rows, rest.skipped, rest.left) == (len(tasks) - 7, 7, 0)
    assert plain(dataset.table(GEMM).read()) == plain(recorded.table(GEMM).read())


def test_a_budget_counts_what_measuring_took(recorded: Dataset, tmp_path: Path) -> None:
    """The first run took 100 s: half of its rows come in 50 s, of which none passes here."""
    dataset = copied(recorded, tmp_path / "a", {"run1": RUNS["run1"]})
    tasks = [task for task in tasks_of(dataset) if isinstance(task, OpTask)]
    wanted: list[Task] = [*tasks]
    done, _ = again(dataset, tmp_path / "b", wanted, budget_s=50.0)
    assert done.stopped == "budget"
    assert done.rows == pytest.approx(len(tasks) / 2, rel=0.1)
    assert done.seconds == pytest.approx(50.0, abs=4.0)
    whole, _ = again(dataset, tmp_path / "c", wanted, budget_s=110.0)
    assert (whole.stopped, whole.left) == ("done", 0)


def test_rows_are_those_of_the_first_runs_machine(recorded: Dataset, tmp_path: Path) -> None:
    dataset = copied(recorded, tmp_path / "a", RUNS, run="run2")
    task = conv_tasks()[0]
    batch = MeasureBatch((task,), "new", Rounds(), Tuning(), 10.0, {}, {})
    (found,) = replayed(dataset).measure(batch).measurements
    recorded_ms = {row.key: row.latency_ms for row in dataset.table(GEMM).read()}[task.key]
    assert found.row.latency_ms == pytest.approx(recorded_ms / 1.25)


def test_conditions_clocks_and_anchors_are_the_recorded_ones(
    recorded: Dataset, tmp_path: Path
) -> None:
    runs = {"run1": {**RUNS["run1"], "anchors_ms": {"cpu": {"a": 1.5}}}}
    dataset = copied(recorded, tmp_path / "a", runs)
    hot = [replace(row, temperature_c=91.0, cpu_mhz=900.0) for row in dataset.table(GEMM).read()]
    dataset.table(GEMM).path.unlink()
    dataset.table(GEMM).append(*hot)
    target = replayed(dataset)
    assert (target.conditions().temperature_c, target.conditions().throttled) == (None, ())
    tasks: list[Task] = [t for t in tasks_of(dataset) if isinstance(t, OpTask)]
    _, first = again(dataset, tmp_path / "b", tasks, samples=100)
    _, _ = again(dataset, tmp_path / "b", tasks, resume=True)
    rows = first.table(GEMM).read()
    assert {(row.temperature_c, row.cpu_mhz) for row in rows} == {(91.0, 900.0)}
    found = first.manifest()["runs"].values()
    assert [run["anchors_ms"] for run in found] == [{"cpu": {"a": 1.5}}] * 2
    assert [run["calibration"] for run in found] == [{"cpu": 1.0}] * 2


def test_measured_and_replayed_rows_are_not_mixed(
    recorded: Dataset, tasks: list[Task], tmp_path: Path
) -> None:
    done, dataset = again(recorded, tmp_path, tasks[:2])
    manifest = dataset.manifest()
    dataset.write_manifest({**manifest, "source": "measured"})
    with pytest.raises(MismatchError, match="are measured, new ones are replayed"):
        again(recorded, tmp_path, tasks, resume=True)
    assert done.rows == 2


def test_another_soc_is_refused(recorded: Dataset, tasks: list[Task], tmp_path: Path) -> None:
    other = replace(SOC, gpu=replace(SOC.gpu, compute_units=7))
    target = ReplayTarget(f"replay:{recorded.folder}", other)
    with pytest.raises(MismatchError, match="another SoC"):
        Collection(target, Dataset.of("other", tmp_path), tasks).run()
    assert not (tmp_path / "other").exists()
    described = replace(SOC, description="said otherwise")
    assert ReplayTarget(target.serial, described).conditions().cpu_mhz is None


def protocol_methods() -> list[str]:
    return [name for name in vars(Target) if not name.startswith("_")]


def test_the_protocol_has_what_is_answered() -> None:
    assert {*protocol_methods()} > {*ANSWERED, "close"}


#: Methods with work on the host, too; they ask for the rest.
WITH_TASKS = {"tune", "check_kernels"}


@pytest.mark.parametrize(
    "name", sorted({*protocol_methods()} - ANSWERED - WITH_TASKS - {"close", "within", "cooling"})
)
def test_everything_else_is_refused_in_one_sentence(recorded: Dataset, name: str) -> None:
    given = inspect.signature(getattr(Target, name)).parameters.values()
    needed = [p for p in given if p.default is p.empty and p.name != "self"]
    target = replayed(recorded)
    with pytest.raises(UnsupportedError) as raised:
        getattr(target, name)(*([] for _ in needed))
    text = str(raised.value)
    assert text.startswith(f"{target.serial!r} cannot ")
    assert "runs nothing" in text
    assert "--serial" in text


def test_tasks_to_tune_or_check_are_refused(recorded: Dataset) -> None:
    target, op = replayed(recorded), parse("fc in=1x4x1x1 oc=2")
    cpu, gpu = (registry.find(op, name) for name in ("cpu_gemv", "gpu_direct"))
    with pytest.raises(UnsupportedError, match="cannot answer Check"):
        check_kernels(target, [CheckTask(op, cpu)])
    with pytest.raises(UnsupportedError, match="cannot answer Tune"):
        tune(target, [TuneTask(op, gpu)], Tuning(), keep=lambda result: None)


def test_it_has_no_soc_of_its_own(recorded: Dataset) -> None:
    target = connect(f"replay:{recorded.folder}")
    with pytest.raises(CodlError, match="without a SoC"):
        target.soc  # noqa: B018
    target.close()


def _cut(dataset: Dataset) -> None:
    path = dataset.table(GEMM).path
    path.write_bytes(path.read_bytes()[:-9])


def _in_quotes(dataset: Dataset) -> None:
    path = dataset.table(GEMM).path
    path.write_bytes(path.read_bytes() + b'"conv2d\n')


def _rewrite(**changes: Any) -> Callable[[Dataset], None]:
    return lambda own: own.write_manifest({**own.manifest(), **changes})


def _columns(dataset: Dataset) -> None:
    path = dataset.table(GEMM).path
    path.write_text(path.read_text().replace("latency_ms", "latency_us", 1))


def _no_rows(dataset: Dataset) -> None:
    for table in dataset.tables().values():
        table.path.unlink()


BROKEN: dict[str, tuple[Callable[[Dataset], Any], str]] = {
    "no folder": (lambda own: shutil.rmtree(own.folder), "no dataset here"),
    "no manifest": (lambda own: own.manifest_path.unlink(), "no dataset here"),
    "no rows": (_no_rows, "no rows"),
    "cut": (_cut, "last line is cut"),
    "cut in quotes": (_in_quotes, "not CSV"),
    "binary": (lambda own: own.table(GEMM).path.write_bytes(b"\xff\xfe\n"), "not CSV"),
    "columns": (_columns, "the columns latency_ms are missing; it has"),
    "cut manifest": (lambda own: own.manifest_path.write_text('{"soc": {'), "not JSON"),
    "binary manifest": (lambda own: own.manifest_path.write_bytes(b"\xff"), "not JSON"),
    "deep manifest": (lambda own: own.manifest_path.write_text("[" * 200_000), "not JSON"),
    "list": (lambda own: own.manifest_path.write_text("[1]"), "expected object"),
    "soc": (_rewrite(soc=[]), "not a dataset's manifest"),
    "newer soc": (_rewrite(soc={**SOC.to_dict(), "npu": {}}), "npu"),
    "runs": (_rewrite(runs=["run1"]), "runs: expected object"),
    "calibration": (_rewrite(runs={"run1": {"calibration": {"cpu": 0}}}), "calibration"),
    "time": (_rewrite(runs={"run1": {"created": "yesterday"}}), "created"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_dataset_is_one_clear_error(
    recorded: Dataset, tasks: list[Task], tmp_path: Path, kind: str
) -> None:
    dataset = Dataset(Path(shutil.copytree(recorded.folder, tmp_path / "in" / SOC.name)))
    spoil, message = BROKEN[kind]
    spoil(dataset)
    with pytest.raises(InvalidFileError, match=message) as raised:
        again(dataset, tmp_path / "out", tasks)
    assert str(dataset.folder) in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_to_the_recording(
    recorded: Dataset, tasks: list[Task], tmp_path: Path
) -> None:
    before = {path.name: path.read_bytes() for path in recorded.folder.iterdir()}
    again(recorded, tmp_path, tasks[:5])
    assert {path.name: path.read_bytes() for path in recorded.folder.iterdir()} == before


@pytest.mark.parametrize("text", ["", "\0", "a\0b"])
def test_what_is_no_folder_is_refused(text: str) -> None:
    with pytest.raises(CodlError, match="must be like replay:"):
        connect(f"replay:{text}")


@pytest.mark.parametrize(
    "text", ["--help", "-rf", "$(id)", "a;b", "x\ny", "[bold]", "../../x", "s3a9:1", "\udcff"]
)
def test_hostile_folders_are_paths(
    recorded: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    serial = f"replay:{text}"
    assert transport_of(serial).pattern == "replay:DIR"
    with pytest.raises(InvalidFileError, match="no dataset here"):
        connect(serial).conditions()
    if ".." in text:
        return
    shutil.copytree(recorded.folder, Path(text))
    lacking = replace(conv_tasks()[0], share=0.123)
    Collection(connect(serial, SOC), Dataset(Path("out")), [lacking, conv_tasks()[0]]).run()
    assert [row.status for row in Dataset(Path("out")).table(GEMM).read()] == ["failed", "ok"]


# The command line.


@pytest.fixture
def place(recorded: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the recording, its SoC, and a file of some of its ops."""
    monkeypatch.chdir(tmp_path)
    SOC.save(tmp_path / "socs" / f"{SOC.name}.yaml")
    shutil.copytree(recorded.folder, tmp_path / "lat_datasets" / SOC.name)
    ops = dict.fromkeys(to_text(task.op) for task in conv_tasks())
    lines = [f'"{op}"' for op in list(ops)[:4]]
    (tmp_path / "ops.csv").write_text("\n".join(["op", *lines]) + "\n")
    return tmp_path


def command(*words: str) -> Any:
    serial = f"replay:lat_datasets/{SOC.name}"
    return CliRunner().invoke(app, [*words, "--serial", serial, "--json"])


def test_collect_by_command(place: Path) -> None:
    words = ["collect", "--soc", SOC.name, "--ops", "ops.csv", "--shares", "1", *OTHER]
    result = command(*words, "--samples", "3")
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    assert (done["rows"], done["stopped"]) == (3, "samples")
    assert "left out: the replay has no row of them" in " ".join(result.stderr.split())
    result = command(*words, "--resume", "--budget", "10m")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["left"] == 0
    written = Dataset.of(SOC.name, Path("other"))
    good = written.table(GEMM).read()
    assert [*written.tables()] == [GEMM]
    assert {(row.status, row.source) for row in good} == {("ok", "replayed")}
    assert len(good) == 4
    known = plain(Dataset.of(SOC.name).table(GEMM).read())
    assert plain(good) == {row.key: known[row.key] for row in good}


def test_kernels_are_taken_to_be_tuned_as_in_the_recording(place: Path) -> None:
    result = Tuned(
        op="conv2d in=1x16x12x12 oc=32 kernel=3x3 pad=1",
        variant="gpu_direct",
        source="0123",
        choice={"block": 4},
        default_ms=2.0,
        best_ms=1.0,
        complete=True,
        trials=(),
        measured="2026-01-01",
        codl="0",
    )
    tuning = tuning_file.add(Dataset.of(SOC.name), SOC, [result])
    words = ["collect", "--soc", SOC.name, "--ops", "ops.csv", "--samples", "5", *OTHER]
    assert command(*words).exit_code == 0
    written = Dataset.of(SOC.name, Path("other"))
    assert tuning_file.read(written, SOC) == tuning
    assert written.manifest()["runs"]["run1"]["tuning"] == tuning.fingerprint != ""


@pytest.mark.parametrize(
    "words",
    [
        ["run", "yolov2", "--soc", SOC.name],
        ["eval", "--soc", SOC.name, "--models", "yolov2"],
        ["bench", "ops", "yolov2", "--soc", SOC.name],
        ["tune", "--soc", SOC.name],
        ["doctor"],
        ["devices"],
        ["soc", "detect", "--name", "copy"],
        ["agent", "install"],
        ["collect-original", "--soc", SOC.name],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands_that_run_something_refuse(place: Path, words: list[str]) -> None:
    result = command(*words)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, UnsupportedError)
    assert "runs nothing" in str(result.exception)
    assert not (place / "socs" / "copy.yaml").exists()


def test_an_imported_soc_is_replayed_too(recorded: Dataset, tmp_path: Path) -> None:
    dataset = Dataset(tmp_path / "in")
    row = SharingRow(direction="to_gpu", shape="1x8x8x8", latency_ms=1.0, source="replayed")
    dataset.table("data_sharing").append(row)
    dataset.write_manifest({"source": "replayed", "soc": REPLAYED.to_dict(), "runs": {}})
    target = ReplayTarget(f"replay:{dataset.folder}", REPLAYED)
    task = SharingTask("to_gpu", shape_of("1x8x8x8"))
    done = Collection(target, Dataset(tmp_path / "out"), [task]).run()
    assert (done.rows, done.failed) == (1, 0)
