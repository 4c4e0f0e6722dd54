"""The trained predictors of a SoC: what a planner asks for latencies, many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codl.errors import InvalidFileError, UnknownNameError
from codl.ir import Shape
from codl.ir.types import BLOCKED, Direction
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.predict import ESTIMATORS, FOLDER
from codl.predict import serialization as store
from codl.predict.features import SHARING_PARTS, Item, sharing_target
from codl.predict.in_network_cost import InNetworkCosts
from codl.predict.serialization import FEW_ITEMS, StoredPredictor
from codl.records import shipped
from codl.records.soc import Soc


@dataclass(frozen=True)
class Predictors:
    """The stored predictors of one name (such as `codl_linear`) for one SoC, by target."""

    name: str
    soc: Soc
    path: Path
    stored: Mapping[str, StoredPredictor]
    tuning: Tuning = Tuning()
    #: What ops take more inside a network; of a processor without stages there is nothing.
    inside: InNetworkCosts = field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that there is a predictor for."""
        return tuple(self.stored)

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        """The items of the targets that were measured at fewer than `FEW_ITEMS` different ones."""
        return {
            name: frozenset(own.examples)
            for name, own in self.stored.items()
            if own.items < FEW_ITEMS
        }

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> dict[str, NDArray[np.float64]]:
        """Milliseconds to share a region of every shape, by part: shaped (shapes), all positive.

        All of it is a `copy` where no part has a predictor. Raises `UnknownNameError` where the
        direction has none.
        """
        usual, *others = registry.storages(self.soc)
        of_way = {"load": BLOCKED, "store": BLOCKED, "relayout": [usual, *others][-1]}
        storage = of_way.get(direction, usual)
        parts = {part: sharing_target(direction, storage, part) for part in SHARING_PARTS}
        known = {part: target for part, target in parts.items() if target in self.stored}
        known = known or {"copy": sharing_target(direction, storage)}
        return {part: self.latency_ms(target, shapes) for part, target in known.items()}

    def latency_ms(self, target: str, items: Sequence[Item]) -> NDArray[np.float64]:
        """Milliseconds that items of one target take, shaped (items), all positive.

        Raises `UnknownNameError` for a target without a predictor, or that the items do not have.
        """
        if target not in self.stored:
            fix = f"They are in {self.path}; `codl train --soc {self.soc.name}` trains them."
            raise UnknownNameError(f"target of {self.name}", target, self.stored, fix=fix)
        if not items:
            return np.empty(0)
        stored = self.stored[target]
        # `table` has checked the features: no need to have scikit-learn look at them again.
        return stored.estimator.typical(stored.table(items, self.soc, self.tuning).values)


def load(soc: Soc, name: str, folder: Path = FOLDER, tuning: Tuning = Tuning()) -> Predictors:
    """Load and check all predictors of one name for a SoC whose kernels were tuned so.

    In the usual folder also those that come with codl.

    Raises `UnknownNameError` for an unknown name, `InvalidFileError` where none is stored or a
    file cannot be read, and `MismatchError` for one that belongs to something else.
    """
    ESTIMATORS.find(name)
    own = shipped.found(soc.name, folder, FOLDER)
    path = store.path_of(own.parent, soc.name, name)
    if not path.exists():
        fix = f"`codl train --soc {soc.name} --predictor {name}` trains them."
        raise InvalidFileError(path, "there are no predictors here.", fix=fix)
    stored, inside = store.read(path, soc, tuning)
    return Predictors(name, soc, path, stored, tuning, inside)
