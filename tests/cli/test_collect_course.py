"""What `codl collect` hands to the collector: the tasks, and what ends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.plans import row
from support.simulated import SOC

from codl.errors import CodlError
from codl.jobs.collect import Agenda, Collect
from codl.kernels.tuning import Tuning
from codl.measure.dataset import Dataset
from codl.measure.measurement_order import TaskFilter, everything

SCOPE = TaskFilter([layer.op for layer in row(2).layers], [0.5, 1.0])


def agenda(job: Collect) -> Agenda:
    return job.agenda(SCOPE, SOC, Dataset(Path("none")), Tuning(), job.budget_s)


@pytest.mark.parametrize("job", [Collect(), Collect(samples=3)])
def test_without_a_budget_everything_is_on_the_agenda(job: Collect) -> None:
    found = agenda(job)
    assert list(found.tasks) == list(everything(SCOPE, SOC))
    assert (found.learner, found.time_s) == (None, None)


@pytest.mark.parametrize(("budget_s", "measured_s"), [(20, 10), (60, 40), (3600, 0.97 * 3600)])
def test_a_part_of_a_budget_is_left_for_the_last_look(budget_s: float, measured_s: float) -> None:
    assert agenda(Collect(budget_s=budget_s)).time_s == pytest.approx(measured_s)


def test_a_budget_of_no_time_is_refused() -> None:
    with pytest.raises(CodlError, match="--budget must be above 0, got 0 s"):
        Collect(budget_s=0.0)
