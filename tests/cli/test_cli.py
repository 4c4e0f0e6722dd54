"""The command line: what it answers, where, and how it ends on bad input."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import warnings
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from support import command_line
from support.whole_way import QUICK
from typer.testing import CliRunner

from codl.cli import app as cli
from codl.cli.app import app
from codl.frontend.models.builder import ModelBuilder
from codl.ir.records import soc as socs
from codl.ir.records.soc import Soc
from codl.jobs import collect as collect_command
from codl.measure.closeness import max_rel_err
from codl.report.verdict import library_snippet, strategy_snippet


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, first_soc: Soc) -> Path:
    """A folder with a SoC, a small ONNX model, a dataset and predictors of it.

    Made by one of the processes that tests run in; each has a copy.
    """
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (common / "workplace.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (common / "workplace").exists():
            made = make_workplace(tmp_path_factory.mktemp("made"), first_soc)
            made.rename(common / "workplace")
    folder = tmp_path_factory.mktemp("workplace") / "copy"
    return Path(shutil.copytree(common / "workplace", folder))


def make_workplace(folder: Path, first_soc: Soc) -> Path:
    first_soc.save(folder / "socs" / "test.yaml")
    b = ModelBuilder("small")
    x = b.input("image", (1, 3, 32, 32))
    for oc in (32, 48):
        x = b.max_pool(b.relu(b.conv(x, oc, 3, pad=1)), 2, 2)
    b.output(b.fully_connected(b.flatten(x), 10))
    (folder / "small.onnx").write_bytes(b.build().SerializeToString())
    some = ["--models", "small.onnx", "--shares", "0.5,1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codl.measure.collector.Rounds", lambda: QUICK)
        run(folder, "collect", "--soc", "test", *some)
    run(folder, "train", "--soc", "test")
    return folder


def run(folder: Path, *arguments: str, code: int = 0) -> command_line.Ended:
    """A command in this process."""
    done = command_line.run(folder, *arguments)
    assert done.code == code, done.stderr
    return done


def answer(folder: Path, *arguments: str) -> dict[str, Any]:
    return dict(json.loads(run(folder, *arguments, "--json").stdout))


def answer_apart(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """What a command answers in a process of its own, as a user runs it."""
    done = command_line.python(command_line.MAIN, *arguments, "--json", ends=code, cwd=folder)
    return dict(json.loads(done.stdout)) if done.stdout else {}


def test_devices_shows_disjoint_cores(workplace: Path) -> None:
    answered = answer_apart(workplace, "devices")
    found = answered["processors"]
    assert {"energy_sensors", "unreadable_sensors"} <= answered.keys()
    used = {p["kind"]: p for p in found if p["used"]}
    assert set(used) == {"cpu", "gpu"}
    assert used["cpu"]["cores"]
    assert set(used["cpu"]["cores"]).isdisjoint(used["gpu"]["cores"])


def test_detect_writes_a_soc_that_show_reads(workplace: Path) -> None:
    made = answer(workplace, "soc", "detect", "--serial", "local", "--name", "made")
    assert answer(workplace, "soc", "show", "made")["cpu"] == made["cpu"]
    listed = {soc["name"] for soc in answer(workplace, "soc", "list")["socs"]}
    assert {"made", "test"} <= listed


def test_detect_measures_what_no_driver_tells(workplace: Path) -> None:
    made = answer(workplace, "soc", "detect", "--serial", "process", "--name", "measured")
    shown = answer(workplace, "soc", "show", "measured")
    told = {"wave_size", "opencl_version", "half"}
    assert told <= shown["gpu"].keys() <= made["gpu"].keys()
    assert shown["cpu"]["caches"] == made["cpu"]["caches"] != []


def test_the_dataset_and_the_predictors_say_what_they_are(workplace: Path) -> None:
    info = answer(workplace, "dataset", "info", "--soc", "test")
    assert info["source"] == "measured"
    assert info["rows"] > 50
    trained = answer(workplace, "train", "--soc", "test", "--predictor", "codl_linear")
    assert {p["split"] for p in trained["predictors"]} == {"row", "shape"}
    assert trained["digests"]["dataset"]


def test_search_run_and_the_same_outputs(workplace: Path) -> None:
    found = answer(workplace, "search", "small.onnx", "--soc", "test", "-o", "plan.json")
    assert found["chains"][0]["ops"][0] == "conv1"
    assert found["predicted_ms"] > 0
    assert found["origin"]["dataset"]
    x = np.random.default_rng(0).random((1, 3, 32, 32), np.float32)
    np.savez(workplace / "in.npz", image=x)
    common = ["--soc", "test", "--inputs", "in.npz", "--rounds", "3"]
    by_plan = [*common, "--plan", "plan.json", "--outputs", "a.npz"]
    planned = answer_apart(workplace, "run", "small.onnx", *by_plan)
    assert planned["latency_ms"]["runs"] == 3
    assert planned["fallbacks"] == []
    assert planned["adaptation"] is None
    assert planned["digests"]["dataset"] == found["origin"]["dataset"]
    adapting = answer(workplace, "run", "small.onnx", *by_plan, "--adapt")["adaptation"]
    assert adapting["runs"] >= 3
    assert adapting["changes"] == []
    run(workplace, "run", "small.onnx", *common, "--strategy", "cpu", "--outputs", "b.npz")
    with np.load(workplace / "a.npz") as a, np.load(workplace / "b.npz") as b:
        np.testing.assert_allclose(a["fc1"], b["fc1"], rtol=1e-3, atol=1e-4)


def test_a_bundle_runs_by_itself(workplace: Path) -> None:
    made = answer(workplace, "package", "small.onnx", "--soc", "test", "-o", "small.codl")
    assert made["bytes"] == (workplace / "small.codl").stat().st_size
    assert made["cold_start_ms"] > made["without_interpreter_ms"] > made["load_ms"] > 0
    found = answer(workplace, "run", "small.codl", "--rounds", "3", "--outputs", "c.npz")
    assert (found["soc"], found["strategy"]) == ("test", "codl")
    with_soc = ["--soc", "test", "--threads", "1", "--rounds", "1", "--outputs", "d.npz"]
    run(workplace, "run", "small.codl", *with_soc)
    with np.load(workplace / "c.npz") as c, np.load(workplace / "d.npz") as d:
        np.testing.assert_array_equal(c["fc1"], d["fc1"])
    refused = run(workplace, "run", "small.codl", "--strategy", "cpu", code=1)
    assert "--strategy cannot change small.codl" in refused.stderr


def test_eval_and_report(workplace: Path) -> None:
    strategies = "cpu,gpu,gpu-image,mulayer,codl-paper,ideal"
    result = answer(workplace, "eval", "--soc", "test", "--models", "small.onnx", "--peers", "ort",
                    "--strategies", strategies, "--time", "0.1s", "-o", "eval.json")  # fmt: skip
    rows = {row["strategy"]: row for row in result["rows"]}
    soc = result["soc"]
    others = ["ort", "opencl-all"] if soc["gpu"]["type"] == "cpu" else ["ort"]
    assert list(rows) == [*strategies.split(","), *others]
    for name in others:
        assert rows[name]["cosine"] >= 0.99999
        assert rows[name]["latency_ms"]["median"] > 0
        assert rows[name]["peer"]["threads"] == len({*soc["cpu"]["cores"], *soc["gpu"]["cores"]})
    assert rows["gpu-image"]["gpu_storage"] == ["image float32"]
    for name, row in rows.items():
        assert (row["energy_mj"] is None) == (name == "ideal" or not result["energy_sensors"])
        if name in others:
            continue
        assert row["status"] == "ok", row["reason"]
        assert row["source"] == ("computed" if name == "ideal" else "measured")
        if name != "ideal":
            assert row["cosine"] >= 0.99999
            assert row["fallbacks"] == []
            assert row["max_rel_err"] <= 1e-3
            assert set(row["slowdown"]) == {"cpu", "gpu"}
            assert (row["predicted_over_measured"] is None) == (row["predicted_ms"] is None)
            assert row["memory_bytes"]["cpu_bytes"] > 0
    run(workplace, "report", "eval.json", "-o", "report.html")
    page = (workplace / "report.html").read_text()
    (verdict,) = result["verdicts"]
    timed = {name: row for name, row in rows.items() if name != "ideal" and not row["same_as"]}
    fastest = min(timed, key=lambda name: timed[name]["latency_ms"]["p20"])
    assert (verdict["use"], verdict["latency_ms"]) == (
        fastest, rows[fastest]["latency_ms"]["p20"],
    )  # fmt: skip
    assert page.index(verdict["sentence"].split(":")[0].replace("'", "&#39;")) < page.index("<svg")
    (model,) = answer(workplace, "models", "small.onnx", "--soc", "test")["models"]
    assert model["verdict"]["verdict"] == verdict


def test_the_lines_of_a_verdict_run(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In codl, and in the libraries that are installed."""
    monkeypatch.chdir(workplace)
    image = np.random.default_rng(3).random((1, 3, 32, 32), np.float32)
    session = ort.InferenceSession("small.onnx", providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"image": image})
    lines = {"codl": strategy_snippet("small.onnx", "test", "gpu", {"check": False})}
    for name in ("ort", "openvino"):
        if name != "openvino" or find_spec("openvino"):
            lines[name] = library_snippet("small.onnx", name, 2)
    for name, text in lines.items():
        values: dict[str, Any] = {"inputs": {"image": image}}
        exec(text, values)
        outputs = values["outputs"]
        found = outputs[0] if name in ("ort", "openvino") else next(iter(outputs.values()))
        assert max_rel_err(found.reshape(expected.shape), expected) <= 1e-3, name
        if "engine" in values:
            values["engine"].close()


def test_explain_adds_up_with_a_device_and_without(workplace: Path) -> None:
    common = ["explain", "small.onnx", "--soc", "test"]
    predicted = answer(workplace, *common, "--predicted")
    assert predicted["measured_ms"] is None
    assert predicted["source"] == "computed"
    found = answer(workplace, "search", "small.onnx", "--soc", "test", "-o", "explained.json")
    assert predicted["predicted_ms"] == pytest.approx(found["predicted_ms"])
    by_plan = ["--plan", "explained.json", "--rounds", "4", "-o", "explain.json"]
    measured = answer(workplace, *common, *by_plan)
    for one, last in ((predicted, "predicted_ms"), (measured, "measured_ms")):
        total_ms = one["bound_ms"] + sum(term["ms"] for term in one["terms"])
        assert total_ms == pytest.approx(one[last])
        alone = (each["ops"] for each in one["chains"] if each["gpu_ratio"] in (0, 1))
        assert sorted(row["op"] for row in one["whole"]) == sorted(chain.from_iterable(alone))
    assert measured["latency_ms"]["runs"] == 4
    assert [term["name"] for term in measured["terms"]][-2:] == ["engine", "profiling"]


def test_tune_keeps_what_it_found(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODL_CACHE", str(tmp_path))
    pooling = "pooling in=1x32x10x10 kernel=2x2 stride=2"
    tune = ["tune", "--soc", "test", "--datasets", str(tmp_path / "datasets")]
    command = [*tune, "--serial", "local", "--ops", pooling]
    first = answer(workplace, *command, "-o", "tune.json")
    assert first["measured"] == len(first["rows"]) > 0
    assert all(row["best_ms"] <= row["default_ms"] for row in first["rows"])
    again = answer(workplace, *command)
    assert (again["measured"], again["cached"]) == (0, len(first["rows"]))
    assert (tmp_path / "datasets" / "test" / "tuning.json").is_file()
    hasty = answer(workplace, *tune, "--models", "small.onnx", "--budget", "0.001s")
    assert (hasty["left"] > 0, hasty["stopped"]) == (True, "budget")
    one = ["--ops", "fc in=1x32x5x5 oc=40", "--variants", "gpu_direct"]
    (row,) = answer(workplace, *tune, *one)["rows"]
    assert (row["op"], row["variant"]) == ("fc in=1x32x5x5 oc=40", "gpu_direct")
    assert answer(workplace, *command, "--anew")["cached"] == 0, "all is forgotten"


def test_the_cache_is_pruned_and_cleared(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODL_CACHE", str(tmp_path))
    op = ["--ops", "fc in=1x32x5x5 oc=40"]
    run(workplace, "bench", "ops", "--soc", "test", *op)
    kept = answer(workplace, "cache", "prune")
    assert kept["files"] > 0
    assert answer(workplace, "cache", "show")["bytes"] == kept["bytes"] > 0
    assert answer(workplace, "cache", "clear")["files"] == 0
    assert answer(workplace, "cache", "show")["files"] == 0


def test_bench_has_every_variant_of_every_processor(workplace: Path) -> None:
    text = "conv2d in=1x16x12x12 oc=32 kernel=3x3 stride=1 pad=1 groups=1"
    result = answer(workplace, "bench", "ops", "--soc", "test", "--ops", text)
    assert {row["processor"] for row in result["ops"]} == {"cpu", "gpu"}
    assert {"gpu_depthwise"} <= {row["variant"] for row in result["refused"]}
    assert all(row["reason"] for row in result["refused"])
    both = answer(workplace, "bench", "ops", "small.onnx", "--soc", "test")
    assert len({row["op"] for row in both["ops"]}) == 5


def test_an_interface_is_drawn_beside_a_model(workplace: Path) -> None:
    limits = ("--gpu-duty", "0.8", "--time", "0.1s")
    command = ("bench", "ui", "small.onnx", "--soc", "test", "--strategy", "gpu", *limits)
    result = answer(workplace, *command)
    assert result["limits"] == {"max_kernel_ms": None, "gpu_duty": 0.8}
    nothing, without, limited = result["rows"]
    assert nothing["latency_ms"] is None
    assert without["limited"] is None
    assert limited["limited"]["enqueued"] == limited["limited"]["launches"] > 0
    assert all(0 < row["frames"]["on_time"] <= 1 for row in result["rows"])
    assert result["price"] > 0
    found = answer(workplace, *command[:7], "--frame-rate", "1", "--time", "0.1s")
    assert found["limits"] == found["tried"][-1]["limits"] == {"max_kernel_ms": 4, "gpu_duty": 1}
    assert all(step["frames_per_s"] >= 1 for step in found["tried"])


def test_a_stream_is_measured_beside_each_processor(workplace: Path) -> None:
    command = ("bench", "stream", "small.onnx", "--soc", "test", "--no-profile", "--time", "0.6s")
    result = answer(workplace, *command)
    assert {row["name"] for row in result["alone"]} >= {"cpu", "gpu"}
    alone = {row["name"]: row["frames_per_s"] for row in result["alone"]}
    assert result["sum_per_s"] == pytest.approx(alone["cpu"] + alone["gpu"])
    assert result["share_of_sum"] == pytest.approx(result["frames_per_s"] / result["sum_per_s"])
    latency_ms = result["latency_ms"]
    assert 0 < latency_ms["p20"] <= latency_ms["median"] <= latency_ms["p95"] <= latency_ms["p99"]
    assert sum(result["taken"].values()) > 0
    named = answer(workplace, *command, "--strategy", "gpu", "--in-flight", "3")
    assert (named["lanes"], named["in_flight"]) == (["gpu"], 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bench", "stream", "small.onnx", "--soc", "test", "--peers", "openvin-throughput"],
            "Unknown throughput peer 'openvin-throughput'. Did you mean 'openvino-throughput'?",
        ),
        (["search", "small.onnx", "--soc", "tset"], "Unknown SoC 'tset'. Did you mean 'test'?"),
        (["collect", "--soc", "test", "--ops", "small.onnx"], "holds a dataset. Go on with it"),
        (["run", "small.onnx", "--soc", "test", "--inputs", "small.onnx"], "expected an .npz file"),
        (["search", "small.onnx", "--soc", "test", "--plan-time", "0s"], "must be above 0"),
        (["bench", "ops", "--soc", "test"], "Name a model, or an op by --ops"),
        (["search", "socs", "--soc", "test"], "socs: this is a folder, and a model is a file"),
        (["search", "small.onnx", "--soc", "test", "-o", "/proc/no/p.json"], "cannot be written"),
        (
            ["train", "--soc", "test", "-o", "small.onnx"],
            "small.onnx is there, and no result or plan in JSON",
        ),
        (["soc", "detect", "--name", "../../evil"], "'../../evil' cannot be the name of a file"),
    ],
)
def test_bad_input_ends_with_a_message_and_code_1(
    workplace: Path, arguments: list[str], message: str
) -> None:
    said = run(workplace, *arguments, code=1)
    assert "Error: " in said.stderr
    assert message in said.stderr
    assert said.stdout == ""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "Error: Interrupted."),
        (EOFError("no data"), 1, "ended too early: no data"),
        (PermissionError(13, "Permission denied", "socs/x.yaml"), 1, "x.yaml: Permission denied."),
        (KeyError("oops"), 1, "This is a defect of codl, KeyError: 'oops' ("),
    ],
)
def test_no_traceback_reaches_a_user(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["codl", "soc", "list"])
    monkeypatch.setattr(socs, "names", fails)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.delenv(cli.VARIABLE, raising=False)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code
    written = capsys.readouterr().err
    assert said in written
    assert "Traceback" not in written


def test_an_interrupted_collection_says_how_to_go_on(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(workplace)
    monkeypatch.setattr(collect_command.Collection, "run", interrupted)
    command = ["collect", "--soc", "test", "--ops", "small.onnx", "--resume"]
    found = CliRunner().invoke(app, command)
    assert "All rows so far are kept" in str(found.exception)
    assert "--resume goes on" in str(found.exception)


def test_a_soc_file_is_not_lost_when_it_is_detected_anew(workplace: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(workplace / "socs" / "test.yaml", tmp_path / "mine.yaml"))
    path.write_text(path.read_text().replace("description: ", "description: my own "))
    mine = path.read_text()
    run(workplace, "soc", "detect", "--name", "mine", "-o", str(path))
    assert path.read_text() != mine
    assert (tmp_path / "mine.yaml.before1").read_text() == mine


def test_a_model_runs_behind_an_agent_as_it_does_here(workplace: Path) -> None:
    x = np.random.default_rng(1).random((1, 3, 32, 32), np.float32)
    np.savez(workplace / "x.npz", image=x)
    common = ["small.onnx", "--soc", "test", "--inputs", "x.npz", "--rounds", "3"]
    outputs = {}
    for serial in ("local", "process"):
        how = ["--serial", serial, "--strategy", "codl", "--outputs", "y.npz"]
        done = answer(workplace, "run", *common, *how)
        assert done["latency_ms"]["runs"] == 3
        assert done["spans"]
        with np.load(workplace / "y.npz") as content:
            outputs[serial] = content["fc1"]
    np.testing.assert_allclose(outputs["process"], outputs["local"], rtol=1e-4, atol=1e-5)
    by = ["--serial", "process"]
    found = answer(workplace, "search", "small.onnx", "--soc", "test", *by)
    assert "that ran" in found["method"]


def test_a_bundle_is_made_and_runs_behind_an_agent(workplace: Path) -> None:
    by = ["--soc", "test", "--serial", "process"]
    run(workplace, "package", "small.onnx", *by, "-o", "there.codl")
    done = answer(workplace, "run", "there.codl", "--serial", "process", "--rounds", "2")
    assert done["latency_ms"]["runs"] == 2


def test_strategies_and_peers_are_compared_behind_an_agent(workplace: Path) -> None:
    how = ["--strategies", "cpu,gpu", "--peers", "ort", "--time", "0.1s", "--serial", "process"]
    rows = answer(workplace, "eval", "--soc", "test", "--models", "small.onnx", *how)["rows"]
    assert {row["strategy"] for row in rows} >= {"cpu", "gpu", "ort"}
    assert all(row["status"] == "ok" and row["latency_ms"]["median"] > 0 for row in rows)


def test_traces_of_a_run_behind_an_agent_and_of_none(workplace: Path) -> None:
    pytest.importorskip("perfetto")
    common = ["small.onnx", "--soc", "test", "--no-profile"]
    apart = ["trace", *common, "--runs", "2", "--serial", "process", "-o", "a.pftrace"]
    traced = answer(workplace, *apart)
    assert (traced["runs"], traced["source"]) == (2, "measured")
    assert traced["bytes"] == (workplace / "a.pftrace").stat().st_size
    predicted = answer(workplace, "trace", *common, "--predicted", "-o", "b.pftrace")
    assert (predicted["runs"], predicted["source"]) == (0, "computed")
    assert predicted["predicted_ms"] == pytest.approx(traced["predicted_ms"])
