"""A collection that ends when more would change no plan: when it looks, and what it makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.plans import row
from support.simulated import SOC, conv_tasks
from support.synthetic_predictors import SyntheticPredictors

from codl.errors import CodlError
from codl.evaluation import plan_convergence
from codl.evaluation.plan_convergence import FILE, LOOKS, NEWS, PlanConvergence
from codl.ir import Network
from codl.measure.dataset import Dataset
from codl.measure.measurement_order import Tier
from codl.measure.tasks import Task
from codl.plan.build_plan import make_plan
from codl.plan.cost_model import CostModel
from codl.predict import DEFAULT, training
from codl.strategies import find
from codl.strategies.base import Context

TASKS: Sequence[Task] = conv_tasks()
FIRST, BATCH = 20, 5


@dataclass
class Collecting:
    """Measures nothing, `BATCH` tasks at a time; predictors say what `gpu` says of the GPU.

    `looks` are the counts of measured tasks at which predictors were fitted.
    """

    folder: Path
    patch: pytest.MonkeyPatch
    gpu: Callable[[int], float] = lambda measured: 1.0
    networks: Sequence[Network] = field(default_factory=lambda: [row(3)])
    tolerance: float = 0.02
    looks: list[int] = field(default_factory=list)
    measured: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.patch.setattr(training, "fitted", self._fitted)

    def _fitted(self, *given: Any) -> SyntheticPredictors:
        self.looks.append(self.measured)
        return SyntheticPredictors(name=DEFAULT, flops=1e7, gpu=self.gpu(self.measured))

    def chooser(self) -> PlanConvergence:
        return PlanConvergence(
            models=lambda: self.networks,
            context=Context(SOC),
            dataset=Dataset(self.folder),
            tiers=dict.fromkeys(TASKS[:FIRST], Tier.WHOLE),
            total=len(TASKS),
            tolerance=self.tolerance,
        )

    def run(self, most: int = 1000) -> PlanConvergence:
        """Until it ends, or so many tasks are measured."""
        chooser = self.chooser()
        while self.measured < min(most, len(TASKS)):
            chosen = chooser.choose(TASKS[self.measured :], 0.0)
            if not chosen:
                break
            assert chosen[0] == TASKS[self.measured]
            self.measured += min(BATCH, len(chosen))
        return chooser


@pytest.fixture
def collecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Collecting]:
    return lambda **how: Collecting(tmp_path, monkeypatch, **how)


def test_whole_ops_are_measured_before_any_look(collecting: Callable[..., Collecting]) -> None:
    one = collecting()
    chooser = one.chooser()
    assert chooser.choose(TASKS, 0.0) == TASKS[:FIRST]
    assert chooser.choose(TASKS[FIRST - 1 :], 0.0) == TASKS[FIRST - 1 : FIRST]
    assert one.looks == []
    assert "plans are looked at after 1 more measurements" in chooser.describe()


def test_it_ends_after_looks_in_a_row_without_change(
    collecting: Callable[..., Collecting],
) -> None:
    one = collecting()
    chooser = one.run()
    assert chooser.has_settled
    assert one.looks[0] == FIRST
    assert len(one.looks) == 1 + LOOKS  # the first has nothing to compare with
    for before, later in zip(one.looks, one.looks[1:], strict=False):
        assert (1 + NEWS) * before - 1 <= later <= (1 + NEWS) * before + BATCH
    assert one.measured == one.looks[-1] < len(TASKS)
    assert [look.unchanged for look in chooser.looks] == [*range(LOOKS + 1)]
    assert chooser.describe() == f"plans of 1 model unchanged for {LOOKS} of {LOOKS} looks"


def test_a_plan_that_changes_begins_the_count_anew(collecting: Callable[..., Collecting]) -> None:
    one = collecting(gpu=lambda measured: 1.0 if measured < 40 else 3.0)
    chooser = one.run()
    changed = next(look for look in chooser.looks if look.measured >= 40)
    assert changed.unchanged == 0
    (behind,) = changed.behind.values()
    assert behind > 0.2
    assert [look.unchanged for look in chooser.looks[-LOOKS - 1 :]] == [*range(LOOKS + 1)]
    assert chooser.looks[-LOOKS - 1] is changed


def test_how_far_a_kept_plan_is_behind_is_its_latency_by_the_new_predictors(
    collecting: Callable[..., Collecting],
) -> None:
    one = collecting(gpu=lambda measured: 1.0 if measured < 40 else 3.0)
    changed = next(look for look in one.run().looks if look.measured >= 40)
    network, name = one.networks[0], one.networks[0].name
    costs = [
        CostModel(SOC, SyntheticPredictors(name=DEFAULT, flops=1e7, gpu=gpu)) for gpu in (1.0, 3.0)
    ]
    context = Context(SOC)
    old, new = (
        find("codl").plan(network, context.with_predictors(cost.predictors)) for cost in costs
    )
    as_before = make_plan(network, costs[1], old.chains, strategy="test", sharing=old.sharing)
    assert as_before.predicted_ms is not None
    assert new.predicted_ms is not None
    assert changed.behind[name] == pytest.approx(as_before.predicted_ms / new.predicted_ms - 1)
    assert changed.predicted_ms[name] == pytest.approx(new.predicted_ms)


@pytest.mark.parametrize(("tolerance", "ends"), [(0.5, True), (0.001, False)])
def test_the_tolerance_says_what_a_change_is(
    tolerance: float, ends: bool, collecting: Callable[..., Collecting]
) -> None:
    """The GPU gets faster with every measurement; plans creep along."""
    one = collecting(gpu=lambda measured: 1 + measured / 100, tolerance=tolerance)
    assert one.run().has_settled is ends
    assert (one.measured < len(TASKS)) is ends


def test_small_changes_add_up(collecting: Callable[..., Collecting]) -> None:
    """No look finds more than 2 % since the look before, but many do since the plan kept."""
    one = collecting(gpu=lambda measured: 1.0 * 1.04 ** (measured / 10), tolerance=0.02)
    chooser = one.run()
    assert max(look.unchanged for look in chooser.looks[:-1]) < LOOKS
    assert any(look.unchanged == 0 for look in chooser.looks[1:])


def test_all_models_must_be_unchanged(collecting: Callable[..., Collecting]) -> None:
    networks = [replace(row(2), name="one"), replace(row(3), name="two")]
    one = collecting(networks=networks)
    chooser = one.run()
    assert chooser.describe().startswith(f"plans of 2 models unchanged for {LOOKS} of")
    assert all(look.behind.keys() == {"one", "two"} for look in chooser.looks)


def test_a_collection_that_was_killed_goes_on_with_its_looks(
    collecting: Callable[..., Collecting],
) -> None:
    whole = collecting()
    settled_at = whole.run().looks[-1].measured
    (whole.folder / FILE).unlink()
    one = collecting()
    assert one.run(most=settled_at - BATCH).looks[-1].unchanged == LOOKS - 1
    looks = len(one.looks)
    chooser = one.run()
    assert (chooser.has_settled, one.measured) == (True, settled_at)
    assert len(one.looks) == looks + 1
    # Once it has settled, it measures nothing more, and looks at nothing.
    again = one.run()
    assert (again.has_settled, one.measured, len(one.looks)) == (True, settled_at, looks + 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text("{"),
        lambda file: file.write_bytes(b"\xff\x00"),
        lambda file: file.write_text("[" * 100_000),
        lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), "version": 2})),
        lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), "plans": []})),
        lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), "looks": 3})),
        lambda file: file.unlink(),
    ],
)
def test_looks_that_cannot_be_read_are_taken_anew(
    change: Callable[[Path], Any], collecting: Callable[..., Collecting]
) -> None:
    one = collecting()
    one.run()
    change(one.folder / FILE)
    chooser = one.run()
    assert [look.unchanged for look in chooser.looks] == [*range(LOOKS + 1)]


def test_looks_of_another_rule_or_model_do_not_count(
    collecting: Callable[..., Collecting],
) -> None:
    collecting().run()
    for how in ({"tolerance": 0.01}, {"networks": [row(2)]}):
        one = collecting(**how, measured=FIRST)
        assert one.run().has_settled
        assert one.looks[0] == FIRST


def test_looks_at_more_rows_than_there_are_do_not_count(
    collecting: Callable[..., Collecting],
) -> None:
    """As where tables were deleted."""
    collecting().run()
    one = collecting(measured=FIRST)
    assert one.run().has_settled
    assert one.looks[0] == FIRST


def test_a_model_without_a_plan_is_never_settled(
    collecting: Callable[..., Collecting], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = collecting()

    def fail(*given: Any) -> float:
        raise CodlError("There is no row yet.")

    monkeypatch.setattr(plan_convergence, "longer", fail)
    chooser = one.run()
    assert not chooser.has_settled
    assert one.measured == len(TASKS)
    assert chooser.describe() == "no plans yet: There is no row yet."
