"""The fastest tiles and work-groups of GPU kernels, kept beside a SoC's dataset."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from codl.api.job import recorded
from codl.api.reporter import SILENT, Reporter
from codl.errors import UnknownNameError
from codl.frontend.models import MEASURED
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.measure.tasks import load_ops
from codl.measure.tuner import FINAL, TuneTask, cut_short, tune_tasks
from codl.records.results import Digests
from codl.records.tuned import Tuned
from codl.runtime import cache
from codl.runtime.placement import LocalSoc
from codl.targets.base import Target
from codl.targets.connect import connect


def tune(
    soc: LocalSoc,
    serial: str,
    dataset: Dataset,
    *,
    sources: Sequence[str],
    variants: Sequence[str],
    shares: Sequence[float],
    anew: bool,
    budget: Budget,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Tune kernels, and return what `codl tune --json` holds; the words are those of that command.

    Without `sources` it tunes for the models that are measured, without `variants` all of theirs.
    """
    tasks = _only(tune_tasks(load_ops(sources or MEASURED), soc, shares), variants)
    if anew:
        tuning_file.forget(dataset)
    with closing(connect(serial, soc)) as target:
        result = _tuned(target, tasks, dataset, budget, reporter)
    return {**result, "cache": asdict(cache.prune())}


def _tuned(
    target: Target,
    tasks: Sequence[TuneTask],
    dataset: Dataset,
    budget: Budget,
    reporter: Reporter,
) -> dict[str, Any]:
    """Of a search that Ctrl-C ended, what was found until then."""
    soc = target.soc
    tuning = tuning_file.read(dataset, soc)
    results: list[Tuned] = []

    def keep(result: Tuned) -> None:
        tuning_file.add(dataset, soc, [result])
        results.append(result)

    origin = recorded(target, Digests(), **asdict(FINAL))
    with reporter.progress(f"Tuning on {soc.name}") as update, budget.keeping(results):
        done = target.tune(
            tasks, tuning, keep=keep, budget_s=budget.share().seconds, progress=update
        )
    if budget.ended == "interrupted":
        done = cut_short(tasks, tuning, soc, results, seconds=budget.spent_s)
    elif done.left:
        budget.ended = "budget"
    reporter.note(f"Results are kept in {tuning_file.path_of(dataset)}")
    of = {"soc": soc.name, "device": soc.gpu.name, "driver": soc.gpu.driver, "source": "measured"}
    digests = Digests(tuning=tuning_file.read(dataset, soc).fingerprint)
    return {**of, "stopped": budget.ended, **done.to_json(), **origin, "digests": asdict(digests)}


def _only(tasks: Sequence[TuneTask], wanted: Sequence[str]) -> Sequence[TuneTask]:
    if not wanted:
        return tasks
    names = {task.variant.name for task in tasks}
    for name in wanted:
        if name not in names:
            raise UnknownNameError("GPU kernel variant of these ops", name, names)
    return [task for task in tasks if task.variant.name in wanted]
