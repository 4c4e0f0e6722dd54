"""What `codl collect` hands to the collector: the order, what ends it, and what it says then."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.plans import row
from support.simulated import SOC
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError
from codl.evaluation.plan_convergence import LOOKS, TOLERANCE, Look
from codl.ir import parse, to_text
from codl.jobs import collect as command
from codl.jobs.collect import Agenda, Collect
from codl.kernels.tuning import Tuning
from codl.measure.collector import Collected
from codl.measure.dataset import Dataset
from codl.measure.measurement_order import Scope, everything, wholes_first
from codl.predict.active_learning import ActiveLearner

NETWORK = row(2)
SCOPE = Scope([layer.op for layer in NETWORK.layers], [0.5, 1.0])


def agenda(job: Collect, networks: Any = (NETWORK,)) -> Agenda:
    return job.agenda(SCOPE, networks, SOC, Dataset(Path("none")), Tuning(), job.budget_s)


def test_plans_end_it_where_nothing_else_is_said() -> None:
    found = agenda(Collect())
    assert list(found.tasks) == list(wholes_first(SCOPE, SOC).tasks)
    plans = found.plans
    assert plans is not None
    assert (found.chooser, found.time_s, found.learner) == (plans, None, None)
    assert (plans.tolerance, plans.total) == (TOLERANCE, len(found.tasks))
    assert [*plans.models()] == [NETWORK]
    assert agenda(Collect(tolerance=5)).plans.tolerance == 0.05  # type: ignore[union-attr]


@pytest.mark.parametrize("limits", [Collect(everything=True), Collect(samples=3)])
def test_everything_and_so_many_samples_are_not_ended_by_plans(limits: Collect) -> None:
    found = agenda(limits)
    assert list(found.tasks) == list(everything(SCOPE, SOC))
    assert found.chooser is None


def test_a_budget_has_an_active_learner() -> None:
    found = agenda(Collect(budget_s=100.0))
    assert isinstance(found.chooser, ActiveLearner)
    assert (found.time_s, found.plans) == (80.0, None)


@pytest.mark.parametrize(("budget_s", "measured_s"), [(20, 10), (60, 40), (3600, 0.97 * 3600)])
def test_a_part_of_a_budget_is_left_for_the_last_look(budget_s: float, measured_s: float) -> None:
    assert agenda(Collect(budget_s=budget_s)).time_s == pytest.approx(measured_s)


def test_built_in_models_are_planned_where_no_model_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codl.jobs.collect.MEASURED", ("op_chain",))
    found = agenda(Collect(), [])
    assert found.plans is not None
    assert [network.name for network in found.plans.models()] == ["op_chain"]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"budget_s": 9.0, "everything": True}, "--all measures everything: leave out --budget"),
        ({"samples": 9, "everything": True}, "leave out --samples"),
        ({"samples": 9, "tolerance": 1.0}, "which --samples does instead"),
        ({"everything": True, "tolerance": 1.0}, "which --all does instead"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(limits: Any, message: str) -> None:
    with pytest.raises(CodlError, match=message):
        Collect(**limits)


@pytest.mark.parametrize("stopped", ["settled", "done"])
def test_the_command_says_why_it_ended(
    stopped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector is stood in for by looks that find all plans unchanged."""
    (tmp_path / "ops.csv").write_text("op\n" + f'"{to_text(parse("fc in=1x32x5x5 oc=40"))}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("codl.jobs.collect.MEASURED", ("op_chain",))

    def collected(targets: Any, dataset: Dataset, tasks: Any, *how: Any, **more: Any) -> Collected:
        plans = more["chooser"]
        assert plans.tolerance == 0.01
        assert "plans are looked at" in plans.describe()
        for unchanged in range(LOOKS + 1):
            plans.looks.append(Look(50 + unchanged, {"m": 1.0}, {"m": 0.0}, unchanged))
        return Collected(9, 0, 0, 3, 0, 1.0, stopped, ())

    monkeypatch.setattr(command, "collect_tasks", collected)
    monkeypatch.setattr(command, "_described", lambda name, serials, precision: SOC)
    target = SimpleNamespace(serial="local", close=lambda: None)
    monkeypatch.setattr(command, "connect", lambda serial, soc: target)
    words = ["collect", "--soc", "simulated", "--ops", "ops.csv", "--tolerance", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    caption = " ".join(done.stdout.split())
    assert ("more would change no plan" in caption) is (stopped == "settled")
    assert "plans of 1 model unchanged for 3 of 3 looks" in " ".join(done.stderr.split())
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    plans = answer["plans"]
    assert (plans["tolerance"], plans["wanted"], plans["has_settled"]) == (0.01, LOOKS, True)
    assert [look["unchanged"] for look in plans["looks"]] == [*range(LOOKS + 1)]
