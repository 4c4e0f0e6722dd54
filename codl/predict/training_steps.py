"""Training steps: one predictor of one target, what it is fitted to, and what that tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np

from codl.errors import MismatchError
from codl.kernels.tuning import Tuning
from codl.measure.dataset import Dataset
from codl.predict import DEFAULT, ESTIMATORS, features
from codl.predict import cross_validation as held_out
from codl.predict import domain_adaptation as transfer
from codl.predict import serialization as store
from codl.predict import training_set as samples
from codl.predict.cross_validation import HeldOut, TrainingRows
from codl.predict.domain_adaptation import Known
from codl.predict.estimators import LatencyEstimator
from codl.predict.features import FeatureTable
from codl.predict.folds import row_folds, shape_folds
from codl.predict.serialization import StoredPredictor
from codl.predict.training_set import Samples
from codl.records.results import Split
from codl.records.soc import Soc

#: How many times as long as others the default predictor takes to fit, and how many times as long
#: as fitting it takes to hold out rows once in five folds.
DEFAULT_COST, FOLDS_COST = 15, 3


@dataclass(frozen=True)
class TrainingTask:
    """An estimator and its rows: all that a worker needs, and nothing of where they are from."""

    estimator: type[LatencyEstimator]
    rows: TrainingRows

    def fitted(self) -> LatencyEstimator:
        """The estimator fitted on all rows."""
        return self.rows.fit(self.estimator, np.arange(len(self.rows.latency_ms)))

    def held_out(self, seeds: int) -> dict[Split, HeldOut]:
        """The accuracy on rows held out, for each split."""
        rows, groups = self.rows, self.rows.groups
        assert groups is not None
        shape = [
            held_out.accuracy(self.estimator, rows, shape_folds(groups, seed))
            for seed in range(seeds)
        ]
        row = held_out.accuracy(self.estimator, rows, row_folds(len(rows.latency_ms)))
        return {"row": row, "shape": held_out.over_seeds(shape)}


@dataclass(frozen=True)
class Step:
    """One predictor of one target, and what it is fitted to."""

    own: Samples
    estimator: type[LatencyEstimator]
    table: FeatureTable
    known: tuple[Known, ...] = ()

    @property
    def task(self) -> TrainingTask:
        own = self.own
        rows = TrainingRows(self.table.values, own.latency_ms, own.runs, own.groups)
        return TrainingTask(self.estimator, rows)

    @property
    def effort(self) -> tuple[bool, int]:
        """What grows with the time that it takes; the default predictor takes longest."""
        return self.estimator.name == DEFAULT, len(self.own.samples)

    @property
    def cost(self) -> int:
        """About how long it takes to fit beside others."""
        return len(self.own.samples) * (DEFAULT_COST if self.estimator.name == DEFAULT else 1)

    def stored(self, soc: Soc, tuning: Tuning, fitted: LatencyEstimator) -> StoredPredictor:
        """The fitted estimator with all that is known about it."""
        own, table = self.own, self.table
        return StoredPredictor(
            predictor=self.estimator.name,
            target=own.target,
            soc=soc.name,
            tuning=tuning.fingerprint,
            features=table.names,
            known=self.known,
            examples=_examples(soc, tuning, self),
            rows=len(own.samples),
            items=len(set(own.items)),
            tables=_digests(own),
            sources=tuple(own.sources),
            held_out={},
            estimator=fitted,
        )


def steps_of(
    soc: Soc, tuning: Tuning, usable: Sequence[Samples], predictors: Sequence[str]
) -> list[Step]:
    """Every predictor of every target; features of a target are computed once for all of them.

    What sharing takes as a whole is for those that know nothing finer; others add its parts.
    """
    steps = []
    summed = {features.whole_of(own.target) for own in usable}
    for own in usable:
        tables: dict[str, FeatureTable] = {}
        for estimator in (ESTIMATORS[name] for name in predictors):
            kind = estimator.feature_set
            if features.is_mulayer(own.target) and kind != "flops":
                continue
            if estimator.is_of_wholes and not features.is_whole(own.target):
                continue
            if not estimator.is_of_wholes and own.target in summed:
                continue
            if kind not in tables:
                tables[kind] = features.table(kind, own.target, own.items, soc, tuning)
            steps.append(Step(own, estimator, tables[kind]))
    return steps


def beside(
    soc: Soc,
    tuning: Tuning,
    steps: Sequence[Step],
    like: Sequence[tuple[Soc, Dataset]],
    told: Callable[[int], None] = lambda cost: None,
) -> tuple[list[Step], list[str]]:
    """The steps with known SoCs' latencies as features where they help, and notes where not.

    `told` hears of the cost of each that is done.

    Raises `MismatchError` for a SoC of `like` that has none of the steps' targets.
    """
    known = _known(soc, like, {step.own.target for step in steps})
    result: list[Step] = []
    unhelped: dict[str, list[str]] = {}
    for step in steps:
        others = tuple(known.get(step.own.target, ()))
        if step.estimator.name != DEFAULT or not others:
            result.append(step)
        elif transfer.helps(step.own, soc, others, tuning, name=DEFAULT):
            table = transfer.table(step.own.target, step.own.items, soc, others, tuning)
            result.append(replace(step, table=table, known=others))
        else:
            names = ", ".join(one.soc.name for one in others)
            unhelped.setdefault(names, []).append(step.own.target)
            result.append(step)
        told(step.cost)
    notes = [
        f"Latencies of {names} do not help to predict {', '.join(targets)}: left out there."
        for names, targets in unhelped.items()
    ]
    return result, notes


def _known(
    soc: Soc, like: Sequence[tuple[Soc, Dataset]], wanted: set[str]
) -> dict[str, list[Known]]:
    """What is known of the wanted targets on other SoCs, by target."""
    known: dict[str, list[Known]] = {}
    for other, dataset in like:
        targets = [own for own in samples.read(dataset)[0] if own.samples and own.target in wanted]
        if other.name == soc.name or not targets:
            raise MismatchError(
                f"{soc.name} cannot start from {other.name}: it must be another SoC with a dataset "
                f"of one of {', '.join(sorted(wanted))}."
            )
        for own in (own for own in targets if not features.is_mulayer(own.target)):
            one = Known.of(other, own, tables=_digests(own))
            known.setdefault(own.target, []).append(one)
    return known


def _examples(soc: Soc, tuning: Tuning, step: Step) -> Mapping[str, str]:
    """Digests of the features of the median and the slowest sample on this SoC; of all of a few.

    For the papers' predictors, whose files are to be small, of one alone: of the middle half the
    one with the shortest text.
    """
    own = step.own
    order = np.argsort(own.latency_ms, kind="stable")
    chosen = list(dict.fromkeys(own.items))
    if len(chosen) >= store.FEW_ITEMS:
        median = len(order) // 2
        chosen = [own.items[at] for at in (order[median], order[-1])]
        if step.estimator.is_of_wholes:
            middle = [own.items[at] for at in order[median // 2 : median + median // 2]]
            chosen = [min(middle, key=lambda item: len(features.write(item)))]
    part = features.table(step.estimator.feature_set, own.target, chosen, soc, tuning)
    return store.examples_of(chosen, part)


def _digests(own: Samples) -> dict[str, str]:
    """The tables that the samples are of, by the start of their SHA-256."""
    files = {path.stem.removeprefix("t_"): path for path in own.files}
    return {name: sha256(path.read_bytes()).hexdigest()[:8] for name, path in files.items()}
