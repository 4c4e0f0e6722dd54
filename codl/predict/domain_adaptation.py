"""Domain adaptation: predictors of a new SoC have latencies on known SoCs as features.

A few dozen samples of a new SoC cannot show which kernel a library chooses at which size; SoCs that
run the same kernels have it in their latencies. So an item's features on the new SoC are what it
computes and moves, and for every known SoC the microseconds that it takes there: measured, where
that very item was, else predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from codl.errors import MismatchError
from codl.kernels.tuning import Tuning
from codl.predict import features
from codl.predict.estimators import LatencyEstimator, run_effects
from codl.predict.estimators.numerics import rounded
from codl.predict.features import FeatureTable, Item
from codl.records.soc import Soc

if TYPE_CHECKING:
    from codl.predict.training_set import Samples

E = TypeVar("E", bound=LatencyEstimator)

#: The features that stay beside the known SoCs' latencies, as far as a variant has them. More of
#: them fit noise: there are few samples.
KEPT = ("padded_macs", "macs", "input_bytes", "output_bytes", "weight_bytes", "bytes")
#: Significant digits of measured latencies.
DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class SourceDomain(Generic[E]):
    """A SoC that a new one learns from: latencies of one target, and the estimator fitted there.

    `measured_ms` are latencies in the typical run, by the item's text; `names` the features of
    `estimator`, of untuned kernels; `tables` the digests of the files that it was learned from, by
    name.
    """

    soc: Soc
    target: str
    names: tuple[str, ...]
    measured_ms: dict[str, float]
    tables: dict[str, str]
    estimator: E

    @classmethod
    def of(cls, estimator: type[E], soc: Soc, samples: Samples) -> SourceDomain[E]:
        """Learn a target from all its samples on a known SoC."""
        items, y, runs = samples.items, samples.latency_ms, samples.runs
        table = features.table(estimator.feature_set, samples.target, items, soc)
        fitted = estimator.fit(table.values, y, runs=runs, groups=samples.groups, by_terms=True)
        texts: dict[str, list[float]] = {}
        typical_ms = run_effects.remove(fitted.runs, y, runs).tolist()
        for item, latency_ms in zip(items, typical_ms, strict=True):
            texts.setdefault(features.write(item), []).append(latency_ms)
        medians = rounded([float(np.median(values)) for values in texts.values()], DIGITS)
        return cls(
            soc=soc,
            target=samples.target,
            names=table.names,
            measured_ms=dict(zip(texts, medians.tolist(), strict=True)),
            tables=samples.tables,
            estimator=fitted,
        )

    def latency_us(self, items: Sequence[Item]) -> NDArray[np.float64]:
        """Microseconds that the items take on this SoC, shaped (items)."""
        texts = [features.write(item) for item in items]
        latency_us = np.array([1e3 * self.measured_ms.get(text, 0.0) for text in texts])
        is_new = [text not in self.measured_ms for text in texts]
        if any(is_new):
            new = [item for item, new in zip(items, is_new, strict=True) if new]
            table = features.table(self.estimator.feature_set, self.target, new, self.soc)
            if table.names != self.names:
                raise MismatchError(
                    f"{self.target} on {self.soc.name} was learned from {', '.join(self.names)}, "
                    f"but has the features {', '.join(table.names)} now: train it again."
                )
            latency_us[is_new] = 1e3 * self.estimator.predict(table.values)
        return latency_us


def table(
    target: str,
    items: Sequence[Item],
    soc: Soc,
    sources: Sequence[SourceDomain[Any]],
    tuning: Tuning = Tuning(),
) -> FeatureTable:
    """The features of some items (at least one) on a new SoC beside known ones.

    Raises `MismatchError` where a known SoC's latencies are of another target.
    """
    for other in sources:
        if other.target != target:
            raise MismatchError(
                f"{other.soc.name} is known by {other.target}, asked for {target}: train it again."
            )
    alone = features.table("variant", target, items, soc, tuning)
    kept = [name for name in KEPT if name in alone.names]
    columns = [other.latency_us(items) for other in sources]
    columns += [alone.values[:, alone.names.index(name)] for name in kept]
    names = (*(f"us_on_{other.soc.name}" for other in sources), *kept)
    return FeatureTable(names, np.column_stack(columns))
