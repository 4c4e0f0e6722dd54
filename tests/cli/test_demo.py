"""`codl demo`: from what ships, and how its second half goes on, fails and is interrupted."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest
from support import command_line

from codl.cli import demo
from codl.measure.budget import Budget

#: A command that tells what it was asked, and does as it is told.
STEP = """
import json, pathlib, signal, sys, time, os
home = pathlib.Path(os.environ["CODL_HOME"])
def told():
    with (home / "steps").open("a") as steps:
        steps.write(json.dumps(sys.argv[2:]) + "\\n")
if sys.argv[1] != "waits":
    told()
if sys.argv[2] == sys.argv[1]:
    sys.exit(1)
if sys.argv[1] == "waits":
    try:
        told()
        time.sleep(60)
    except KeyboardInterrupt:
        (home / "kept").write_text("rows")
        sys.exit(130)
if sys.argv[1] == "ignores":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(60)
if sys.argv[1] == "cut" and sys.argv[2] == "eval":
    (home / "eval.json").write_text("{}")
    time.sleep(60)
if sys.argv[2] == "soc":
    (home / "socs").mkdir(exist_ok=True)
    (home / "socs" / "host.yaml").write_text("")
if sys.argv[2] == "collect":
    (home / "lat_datasets" / "host").mkdir(parents=True, exist_ok=True)
"""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[demo.DemoRow, ...]]:
    """The first half of a small network, and what it writes."""
    folder = tmp_path_factory.mktemp("planned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "MODELS", ("alexnet",))
        return folder, demo._predicted(folder, Budget())


@pytest.fixture(autouse=True)
def _planned(
    planned: tuple[Path, tuple[demo.DemoRow, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planned once for all tests."""

    def copied(folder: Path, budget: Budget) -> tuple[demo.DemoRow, ...]:
        shutil.copytree(planned[0], folder, dirs_exist_ok=True)
        return planned[1]

    monkeypatch.setattr(demo, "_predicted", copied)


def steps(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "codl-demo/steps").read_text().splitlines()]


def does(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(demo, "COMMAND", (sys.executable, "-c", STEP, what))


def test_what_ships_makes_a_table_and_a_page(tmp_path: Path) -> None:
    done = command_line.run(tmp_path, "demo", "--json")
    assert done.code == 0, done.stderr
    answered = json.loads(done.stdout)
    (row,) = answered["rows"]
    assert row["source"] == "computed"
    assert 0 < row["codl_ms"] < min(row["cpu_ms"], row["gpu_ms"])
    page = (tmp_path / answered["page"]).read_text()
    assert "alexnet" in page
    assert "epyc2" in page


def test_a_step_that_fails_leaves_the_first_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    does(monkeypatch, "collect")
    done = command_line.run(tmp_path, "demo", "--measure")
    assert done.code == 1
    assert "codl collect --soc host" in done.stderr
    assert "nothing ran" in done.stdout
    assert (tmp_path / "codl-demo/report.html").is_file()
    does(monkeypatch, "train")
    assert command_line.run(tmp_path, "demo", "--measure").code == 1
    words = [step[0] for step in steps(tmp_path)]
    assert words == ["soc", "collect", "collect", "train"]  # the SoC stays as it was
    assert "--resume" in steps(tmp_path)[1]


def test_what_is_interrupted_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    does(monkeypatch, "waits")
    begun = tmp_path / "codl-demo/steps"

    def interrupt() -> None:
        while not begun.exists():
            sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    done = command_line.run(tmp_path, "demo", "--measure", "-o", "codl-demo/a.html")
    assert done.code == 130
    assert "Interrupted" in done.stderr
    assert "`codl demo --measure -o codl-demo/a.html` goes on" in done.stderr
    assert (tmp_path / "codl-demo/kept").read_text() == "rows"


@pytest.mark.parametrize("what", ["waits", "ignores"])
def test_a_step_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    does(monkeypatch, what)
    monkeypatch.setattr(demo, "END_S", 0.5)
    begin = monotonic()
    done = command_line.run(tmp_path, "demo", "--measure", "--budget", "3s")
    assert done.code == 1
    assert "The time is over, and `CODL_HOME=codl-demo codl soc detect" in done.stderr
    assert "`codl demo --measure` goes on from there" in done.stderr
    assert monotonic() - begin < 20
    assert (tmp_path / "codl-demo/kept").exists() == (what == "waits")
    assert [step[0] for step in steps(tmp_path)] == ["soc"]


def test_an_evaluation_that_is_cut_short_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is told how long it may take, and all of them together do not take more."""
    does(monkeypatch, "cut")
    monkeypatch.setattr(demo, "END_S", 0.5)
    monkeypatch.setattr(demo, "_measured", lambda file, show: demo.DemoRow("m", 2, 2, 1, file.name))
    monkeypatch.setattr(demo, "write_report", lambda files, output, apart: output)
    begin = monotonic()
    done = command_line.run(tmp_path, "demo", "--measure", "--budget", "6s", "--json")
    assert done.code == 0, done.stderr
    assert monotonic() - begin < 12  # what each process takes to start and to end comes on top
    assert json.loads(done.stdout)["rows"][-1]["source"] == demo.EVALUATION
    _, collect, _, evaluate = steps(tmp_path)
    budgets = [float(step[step.index("--budget") + 1][:-1]) for step in (collect, evaluate)]
    assert 0 < budgets[0] <= 6
    assert 0 < budgets[1] < 5


def test_a_network_is_measured_beside_libraries_on_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"model": "resnet50", "strategy": name, "source": "measured", "predicted_ms": None,
         "latency_ms": {"median": ms, "p20": ms, "p80": ms, "runs": 9}}
        for name, ms in {"cpu": 8.0, "gpu": 6.0, "codl": 4.0, "ort": 5.0, "ncnn": 4.5}.items()
    ]  # fmt: skip
    part = {"name": "some CPU", "type": "cpu"}

    def evaluated(output: Path, limit: object, keep_s: float) -> None:
        soc = {"name": "host", "cpu": {"name": "some CPU"}, "gpu": part}
        content = {"soc": soc, "rows": rows, "serial": "local"}
        (output.parent / demo.EVALUATION).write_text(demo.document("eval", content))

    monkeypatch.setattr(demo, "_measure", evaluated)
    shown = command_line.run(tmp_path, "demo", "--measure").stdout
    assert "1.50" in shown
    assert "ncnn" in shown
    rows[2] |= {"latency_ms": None, "status": "failed", "reason": "no driver"}
    failed = command_line.run(tmp_path, "demo", "--measure")
    assert failed.code == 1
    assert "did not run by codl: no driver" in failed.stderr
