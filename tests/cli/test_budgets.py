"""Budgets, and commands whose time is over, that Ctrl-C ends, or whose driver never returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
from support import command_line
from support.clocks import Hands
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError, InterruptedCommandError
from codl.ir.records.results import EvalRow, Latency
from codl.ir.records.soc import Soc
from codl.jobs import bench
from codl.jobs import evaluate as api
from codl.jobs.interleaved import Evaluation
from codl.jobs.options import result_file
from codl.machine.placement import LocalSoc
from codl.measure.budget import Budget
from codl.plan.strategies import Context
from codl.runtime.guard import END_S
from codl.targets import kernel_runs
from codl.targets.local import LocalTarget

OPS = [f"pooling in=1x{channels}x8x8 kernel=2x2 stride=2" for channels in (8, 16, 24)]
SMALL = "fc in=1x8x2x2 oc=4"
STEP_S = 4.0


@pytest.fixture
def soc_file(tmp_path: Path, first_soc: Soc) -> str:
    return str(first_soc.save(tmp_path / "soc.yaml"))


class Steps:
    """Replaces a method: each call takes `STEP_S` by a clock, and Ctrl-C comes in the last one."""

    def __init__(self, clock: Hands, *, calls: int | None = None) -> None:
        self.clock, self.left = clock, calls

    def after(self, own: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            if self.left == 0:
                raise KeyboardInterrupt
            self.clock.now += STEP_S
            self.left = None if self.left is None else self.left - 1
            return own(*given, **more)

        return call


def limited(patch: pytest.MonkeyPatch, command: Any, clock: Hands) -> None:
    """Let a command's budget go by a clock."""
    patch.setattr(command, "Budget", lambda seconds=None: Budget(seconds, clock))


def ended(folder: Path, *words: str, code: int) -> tuple[dict[str, Any], str]:
    done = command_line.run(folder, *words, "--json")
    assert done.code == code, done.stderr
    return json.loads(done.stdout), " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("calls", "more", "code", "ending"),
    [
        (None, ["--budget", "9"], 0, "1 ops left: the budget of 9 s is over."),
        (2, [], 128 + signal.SIGINT, "Interrupted. What was measured before is kept."),
    ],
    ids=["budget", "interrupted"],
)
def test_bench_keeps_what_was_measured_before_its_end(
    calls: int | None, more: list[str], code: int, ending: str,
    tmp_path: Path, soc_file: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    clock = Hands()
    limited(monkeypatch, bench, clock)
    monkeypatch.setattr(LocalTarget, "bench", Steps(clock, calls=calls).after(LocalTarget.bench))
    words = ["bench", "ops", "--soc", soc_file, *(f"--ops={op}" for op in OPS)]
    found, said = ended(tmp_path, *words, *more, code=code)
    assert (found["stopped"], found["left"]) == ("budget" if more else "interrupted", 1)
    assert len({row["op"] for row in found["ops"]}) == 2
    assert found["environment"]["driver"]
    assert ending in said


def test_tune_prints_what_it_kept_before_ctrl_c(
    tmp_path: Path, soc_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODL_CACHE", str(tmp_path / "cache"))
    words = ["tune", "--soc", soc_file, "--datasets", str(tmp_path / "sets"), "--ops", SMALL]
    with monkeypatch.context() as patch:
        patch.setattr(kernel_runs, "tune", ended_by_ctrl_c(kernel_runs.tune))
        found, said = ended(tmp_path, *words, code=128 + signal.SIGINT)
    assert found["stopped"] == "interrupted"
    assert (found["measured"], len(found["rows"])) == (1, 1)
    assert "Interrupted. All results so far are kept in" in said
    again, _ = ended(tmp_path, *words, code=0)
    assert again["cached"] == 1


def ended_by_ctrl_c(own: Any) -> Any:
    """Tuning that ends by Ctrl-C behind its first result."""

    def tune(*given: Any, keep: Any, **more: Any) -> Any:
        def then_end(result: Any) -> None:
            keep(result)
            raise KeyboardInterrupt

        return own(*given, keep=then_end, **more)

    return tune


MODELS = ("matmul", "op_chain", "bert")


def evaluated(model: str, strategies: Any, context: Context, **how: Any) -> Evaluation:
    """One row that is told, not measured: the milliseconds are the seconds of the budget."""
    ms = how["budget"].seconds or 1.0
    row = EvalRow(model, "cpu", Latency(ms, ms, ms, 9), None, "measured")
    return Evaluation(model, "abc", [row], {}, {})


def test_models_of_an_evaluation_share_its_time(
    tmp_path: Path, soc_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Hands()
    limited(monkeypatch, api, clock)
    monkeypatch.setattr(api, "evaluate_model", Steps(clock).after(evaluated))
    words = ["eval", "--soc", soc_file, "--models", ",".join(MODELS), "--strategies", "cpu"]
    found, _ = ended(tmp_path, *words, "--budget", "24", code=0)
    levels = [row["latency_ms"]["p20"] for row in found["rows"]]
    assert levels == [24 / 3, (24 - STEP_S) / 2, 24 - 2 * STEP_S]
    assert (found["stopped"], found["left"]) == ("done", 0)
    found, said = ended(tmp_path, *words, "--budget", "7", code=0)
    assert (found["stopped"], found["left"], len(found["rows"])) == ("budget", 1, 2)
    assert "1 models left: the budget of 7 s is over." in said


@pytest.mark.parametrize(
    "words",
    [
        "collect --soc host --hot nan",
        "collect --soc host --cool-down soon",
        "bench ui op_chain --soc host --time -1",
        "run op_chain --soc host --rounds 99999999999999999999",
    ],
)
def test_a_number_that_cannot_be_is_refused_by_its_option_before_anything_is_done(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where there is no SoC, which nothing gets to miss
    done = CliRunner().invoke(app, words.split(), env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert f"Invalid value for '{words.split()[-2]}'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_plan_replaces_no_model_and_goes_where_a_link_leads(tmp_path: Path) -> None:
    model, plan, link = (tmp_path / name for name in ("m.onnx", "plan.json", "link.json"))
    model.write_bytes(b"\x08\x08")
    with pytest.raises(CodlError, match=r"m\.onnx is there, and no result or plan in JSON"):
        result_file(model)
    assert result_file(plan) == plan
    plan.write_text("{}")
    link.symlink_to(plan)
    assert result_file(link) == plan.resolve()


PLUGIN = Path(__file__).parent.parent / "support" / "hanging_driver"
#: What a busy machine may take beside the guard's own time.
SLOW_S = 5.0
FIRST_S = 120.0


@contextmanager
def hanging(folder: Path, call: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that has come to the OpenCL call that never returns."""
    hung = folder / "hung"
    settings = {"CODL_PLUGINS": str(PLUGIN), "CODL_HANGS": call, "CODL_HUNG": str(hung)}
    process = subprocess.Popen(
        [sys.executable, "-c", "from codl.cli import main; main()", *words],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + FIRST_S
        while not hung.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert hung.exists(), process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("serial", "call", "code"),
    [
        ("local", "get_platforms held", -signal.SIGKILL),
        ("local", "Program.build free", -signal.SIGKILL),
        ("process", "get_platforms held", 128 + signal.SIGINT),
        ("process", "Program.build free", 128 + signal.SIGINT),
    ],
)
def test_ctrl_c_ends_a_command_whose_driver_hangs(
    serial: str, call: str, code: int, first_soc: LocalSoc, tmp_path: Path
) -> None:
    soc = str(first_soc.save(tmp_path / "soc.yaml"))
    words = ("bench", "ops", "--soc", soc, "--ops=fc in=1x8x2x2 oc=4", "--serial", serial)
    with hanging(tmp_path, call, *words) as process:
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert time.monotonic() - begin < END_S + SLOW_S
    assert process.returncode == code
    assert "Error: Interrupted." in said
    assert not hung_agents(process.pid)


@pytest.mark.parametrize(("serial", "code"), [("local", -signal.SIGKILL), ("process", 1)])
def test_a_collection_ends_soon_after_its_budget_where_the_driver_hangs(
    serial: str, code: int, first_soc: LocalSoc, tmp_path: Path
) -> None:
    soc = str(first_soc.save(tmp_path / "soc.yaml"))
    words = ("collect", "--soc", soc, "--serial", serial, "--budget", "4")
    call = "enqueue_nd_range_kernel free"
    with hanging(tmp_path, call, *words, "--datasets", str(tmp_path / "data")) as process:
        begin = time.monotonic()
        process.communicate(timeout=120)
        assert time.monotonic() - begin < 4 + 15 + 15 + SLOW_S
    assert process.returncode == code


def hung_agents(session: int) -> list[str]:
    """The processes of a session that are neither ended nor about to be taken note of."""
    listed = subprocess.run(
        ["ps", "-o", "stat=,args=", "-s", str(session)], capture_output=True, text=True
    ).stdout
    return [line for line in listed.splitlines() if not line.startswith("Z")]


def worked(seconds: float | None, takes: Iterable[float]) -> tuple[Budget, list[int], list[float]]:
    """Steps that take so many seconds each: those that were done, and what was said to be left."""
    clock, done, told = Hands(), [], []
    budget, takes = Budget(seconds, clock), list(takes)
    for at in budget.steps(range(len(takes)), lambda done, total, left_s: told.append(left_s)):
        clock.now += takes[at]
        done.append(at)
    return budget, done, told


def test_without_an_end_all_is_done_and_the_pace_says_how_long_it_takes() -> None:
    budget, done, told = worked(None, [2.0, 4.0, 3.0])
    assert (done, told, budget.ended) == ([0, 1, 2], [4.0, 3.0, 0.0], "done")
    assert (budget.left_s, budget.seconds, budget.share(2).seconds) == (inf, None, None)


def test_a_step_that_would_end_too_late_is_not_begun() -> None:
    budget, done, told = worked(10.0, [2.0, 4.0, 1.0, 1.0])
    assert (done, budget.ended) == ([0, 1, 2], "budget")  # 3 s are left, and a step took 4
    assert told == [6.0, 4.0, pytest.approx(7 / 3)]


def test_the_first_step_is_done_if_there_is_any_time_at_all() -> None:
    assert worked(0.1, [5.0, 5.0])[1] == [0]
    assert worked(0.0, [5.0, 5.0])[1] == []


def test_shares_are_of_what_is_left() -> None:
    clock = Hands()
    budget = Budget(10.0, clock)
    clock.now += 4
    part = budget.share(3)
    assert (part.seconds, part.left_s) == (2.0, 2.0)
    budget.skip(5)
    assert (budget.spent_s, budget.left_s) == (9.0, 1.0)
    clock.now += 20
    assert budget.left_s == 0
    assert budget.is_over()
    assert budget.share().seconds == 0


def test_ctrl_c_ends_what_has_kept_something() -> None:
    kept: list[int] = []
    budget = Budget()
    with budget.keeping(kept):
        for one in budget.steps([1, 2, 3]):
            kept.append(one)
            raise KeyboardInterrupt
    assert (kept, budget.ended) == ([1], "interrupted")
    with pytest.raises(InterruptedCommandError, match=r"Interrupted\. One is kept\."):
        budget.check("One is kept.")


def test_ctrl_c_before_anything_is_kept_is_raised() -> None:
    budget = Budget()
    with pytest.raises(KeyboardInterrupt), budget.keeping([]):
        raise KeyboardInterrupt
    budget.check("Nothing.")
