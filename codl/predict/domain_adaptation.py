"""Domain adaptation: predictors of a new SoC have latencies on known SoCs as features.

A few dozen samples of a new SoC cannot show which kernel a library chooses at which size; SoCs that
run the same kernels have it in their latencies. So an item's features on the new SoC are what it
computes and moves, and for every known SoC the microseconds that it takes there: measured, where
that very item was, else predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import MismatchError
from codl.kernels.tuning import Tuning
from codl.predict import ESTIMATORS, features
from codl.predict import cross_validation as held_out
from codl.predict.cross_validation import TrainingRows
from codl.predict.estimators import (
    LatencyEstimator,
)
from codl.predict.estimators import run_effects as run_terms
from codl.predict.estimators.json_arrays import rounded
from codl.predict.features import FeatureTable, Item
from codl.predict.folds import shape_folds
from codl.predict.training_set import Samples
from codl.records.soc import Soc

#: The features that stay beside the known SoCs' latencies, as far as a variant has them. More of
#: them fit noise: there are few samples.
KEPT = ("padded_macs", "macs", "input_bytes", "output_bytes", "weight_bytes", "bytes")
#: Significant digits of measured latencies.
DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of one target on one SoC.

    `measured` are latencies in milliseconds, in the typical run, by the item's text; `names` the
    features of `estimator`, of untuned kernels; `tables` the digests of the files that it was
    learned from, by name.
    """

    soc: Soc
    target: str
    names: tuple[str, ...]
    estimator: LatencyEstimator
    measured: Mapping[str, float]
    tables: Mapping[str, str]

    @classmethod
    def of(
        cls, soc: Soc, own: Samples, *, name: str = "codl", tables: Mapping[str, str] | None = None
    ) -> Known:
        """Learn a target from all its samples on a known SoC."""
        estimator = ESTIMATORS[name].by_terms()
        table = features.table(estimator.feature_set, own.target, own.items, soc)
        labels = own.runs
        estimator.fit(table.values, own.latency_ms, runs=labels, groups=own.groups)
        typical = run_terms.remove(estimator.runs_, own.latency_ms, labels)
        texts: dict[str, list[float]] = {}
        for item, latency_ms in zip(own.items, typical.tolist(), strict=True):
            texts.setdefault(features.write(item), []).append(latency_ms)
        medians = rounded([float(np.median(values)) for values in texts.values()], DIGITS)
        return cls(
            soc=soc,
            target=own.target,
            names=table.names,
            estimator=estimator,
            measured=dict(zip(texts, medians.tolist(), strict=True)),
            tables=dict(tables or {}),
        )

    def latency_us(self, items: Sequence[Item]) -> NDArray[np.float64]:
        """Microseconds that the items take on this SoC, shaped (items)."""
        texts = [features.write(item) for item in items]
        latency_us = np.array([1e3 * self.measured.get(text, 0.0) for text in texts])
        new = [item for item, text in zip(items, texts, strict=True) if text not in self.measured]
        if new:
            table = features.table(self.estimator.feature_set, self.target, new, self.soc)
            if table.names != self.names:
                raise MismatchError(
                    f"{self.target} on {self.soc.name} was learned from {', '.join(self.names)}, "
                    f"but has the features {', '.join(table.names)} now: train it again."
                )
            latency_us[[text not in self.measured for text in texts]] = (
                1e3 * self.estimator.predict(table.values)
            )
        return latency_us

    def state(self) -> dict[str, Any]:
        """JSON values that hold all of it but the SoC, which is named."""
        return {
            "soc": self.soc.name,
            "target": self.target,
            "predictor": self.estimator.name,
            "features": list(self.names),
            "tables": dict(self.tables),
            "measured_ms": dict(self.measured),
            "state": self.estimator.state(self.names),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], soc: Soc) -> Known:
        """Read back; raises `ValueError` with what is wrong, `MismatchError` for another SoC."""
        if state.get("soc") != soc.name:
            raise MismatchError(f"The latencies are of {state.get('soc')!r}, not of {soc.name!r}.")
        names, measured = state.get("features"), state.get("measured_ms")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"features must be a list of names, got {names!r:.80}.")
        if not isinstance(measured, Mapping) or not all(_is_positive(v) for v in measured.values()):
            raise ValueError("measured_ms must hold positive numbers by item.")
        if not isinstance(tables := state.get("tables"), Mapping):
            raise ValueError(f"tables must hold digests by file, got {tables!r:.80}.")
        if state.get("predictor") not in ESTIMATORS:
            raise ValueError(f"predictor must be of {', '.join(ESTIMATORS)}.")
        if not isinstance(state.get("state"), Mapping):
            raise ValueError("state must be a mapping.")
        estimator = ESTIMATORS[state["predictor"]].from_state(state["state"], names)
        return cls(
            soc=soc,
            target=str(state.get("target")),
            names=tuple(names),
            estimator=estimator,
            measured={text: float(value) for text, value in measured.items()},
            tables={str(name): str(digest) for name, digest in tables.items()},
        )


def helps(
    own: Samples,
    soc: Soc,
    known: Sequence[Known],
    tuning: Tuning = Tuning(),
    *,
    name: str = "codl",
) -> bool:
    """Whether known SoCs make predictions of held-out shapes better than a SoC's samples alone.

    True where there are too few shapes to hold any out.
    """
    folds = shape_folds(own.groups)
    beside = table(own.target, own.items, soc, known, tuning)
    alone = features.table(ESTIMATORS[name].feature_set, own.target, own.items, soc, tuning)
    acc10 = [
        held_out.accuracy(
            ESTIMATORS[name], TrainingRows(one.values, own.latency_ms, own.runs, own.groups), folds
        ).acc10
        for one in (beside, alone)
    ]
    return acc10[0] is None or acc10[1] is None or acc10[0] > acc10[1]


def table(
    target: str,
    items: Sequence[Item],
    soc: Soc,
    known: Sequence[Known],
    tuning: Tuning = Tuning(),
) -> FeatureTable:
    """The features of some items (at least one) on a new SoC beside known ones.

    Raises `MismatchError` where a known SoC's latencies are of another target.
    """
    for one in known:
        if one.target != target:
            raise MismatchError(f"{one.soc.name} is known by {one.target}, asked for {target}.")
    own = features.table("variant", target, items, soc, tuning)
    kept = [name for name in KEPT if name in own.names]
    columns = [one.latency_us(items) for one in known]
    columns += [own.values[:, own.names.index(name)] for name in kept]
    names = (*(f"us_on_{one.soc.name}" for one in known), *kept)
    return FeatureTable(names, np.column_stack(columns))


def _is_positive(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < float("inf")  # type: ignore[operator]
