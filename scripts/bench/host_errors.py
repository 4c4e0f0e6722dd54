"""Where predictions of a measured SoC are off: on models' ops or on made-up ones, or on anything.

    python scripts/bench/host_errors.py --soc host [--again OTHER/lat_datasets] [TARGET ...]

For every target the accuracy of the predictor `codl` with whole shapes held out (five folds, median
over three seeds), of all rows, of those of the built-in models' ops, and of the others. With
`--again`, beside it how far the rows of another run of `codl collect` agree with these, divided by
the median of their ratios: no predictor can do better than that on a new run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from codl.frontend.models import BUILT_IN
from codl.ir import Activation, Op
from codl.measure.dataset import FOLDER, Dataset
from codl.measure.tasks import load_ops
from codl.predict import DEFAULT, ESTIMATORS, features
from codl.predict import training_set as samples
from codl.predict.cross_validation import TrainingRows
from codl.predict.folds import shape_folds
from codl.predict.training import SEEDS
from codl.predict.training_set import Samples
from codl.records import soc as socs
from codl.records.soc import Soc

Values = NDArray[np.float64]


def held_out(own: Samples, soc: Soc) -> Values:
    """Relative errors, shaped (seeds, rows)."""
    estimator = ESTIMATORS[DEFAULT]
    table = features.table(estimator.feature_set, own.target, own.items, soc)
    rows = TrainingRows(table.values, own.latency_ms, own.runs, own.groups)
    found = np.zeros((SEEDS, len(own.samples)))
    for seed in range(SEEDS):
        for fold in shape_folds(own.groups, seed):
            fitted = rows.fit(estimator, fold.train)
            runs = rows.runs_at(fold.test)
            found[seed, fold.test] = fitted.predict(rows.values[fold.test], runs=runs)
    return np.abs(found - rows.latency_ms) / rows.latency_ms


def text(errors: Values) -> str:
    """Within 10 %, within 5 %, and the mean error; `errors` are (seeds, rows)."""
    if not errors.size:
        return ""
    figures = [(errors <= 0.1).mean(1), (errors <= 0.05).mean(1), errors.mean(1)]
    near, nearer, mean = (100 * float(np.median(figure)) for figure in figures)
    return f"{near:.0f} / {nearer:.0f} / {mean:.1f}"


def apart(own: Samples, other: Samples | None) -> Values:
    """How far two runs are apart on what both measured, shaped (1, items)."""
    if other is None:
        return np.zeros((1, 0))
    again = dict(zip(other.items, other.latency_ms, strict=True))
    rows = zip(own.items, own.latency_ms, strict=True)
    pairs = [latency_ms / again[item] for item, latency_ms in rows if item in again]
    ratios = np.array(pairs)
    return np.abs(ratios / np.median(ratios) - 1)[None] if pairs else np.zeros((1, 0))


def read(soc: Soc, folder: Path) -> dict[str, Samples]:
    return {own.target: own for own in samples.read(Dataset.of(soc.name, folder))[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", help="all of ops without any")
    parser.add_argument("--soc", default="host")
    parser.add_argument("--again", type=Path, help="datasets of another run")
    chosen: Any = parser.parse_args(arguments)
    soc = socs.load(chosen.soc)
    found = read(soc, FOLDER)
    again = read(soc, chosen.again) if chosen.again else {}
    models = {op.with_activation(Activation()) for op in load_ops(sorted(BUILT_IN))}
    print("| target | rows | all | models' ops | made up | two runs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for target, own in found.items():
        wanted = target in chosen.targets or not chosen.targets
        if not wanted or features.is_mulayer(target) or not isinstance(own.items[0], Op):
            continue
        is_models = np.array([sample.shapes[0] in models for sample in own.samples])
        with threadpool_limits(1, user_api="blas"):
            errors = held_out(own, soc)
        parts = [errors, errors[:, is_models], errors[:, ~is_models], apart(own, again.get(target))]
        print(f"| `{target}` | {len(own.samples)} | " + " | ".join(map(text, parts)) + " |")


if __name__ == "__main__":
    main()
