"""What a planner asks: the latencies of parts of ops and of data sharing, many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codl.dataset import Direction
from codl.errors import InvalidFileError, UnknownNameError
from codl.kernels import registry
from codl.kernels.base import BLOCKED
from codl.ops import Op, Shape
from codl.predict import features, store
from codl.predict.estimators import ESTIMATORS
from codl.predict.features import Item
from codl.predict.names import FOLDER
from codl.predict.store import StoredPredictor
from codl.soc import Soc


@dataclass(frozen=True)
class Predictors:
    """The stored predictors of one name (such as `codl_linear`) for one SoC, by target.

    Every (target, op) is predicted once; later calls look it up.
    """

    name: str
    soc: Soc
    folder: Path
    stored: Mapping[str, StoredPredictor]
    _known: dict[str, dict[Item, float]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that there is a predictor for, sorted by `load`."""
        return tuple(self.stored)

    def latency_ms(self, target: str, ops: Sequence[Op]) -> NDArray[np.float64]:
        """Milliseconds that every op (a part of one, usually) takes, shaped (ops), all positive.

        Raises `UnknownNameError` for a target without a predictor, or that the ops do not have.
        """
        return self.predict(target, ops)

    def sharing_ms(self, direction: Direction, shapes: Sequence[Shape]) -> NDArray[np.float64]:
        """Milliseconds to share a region of every shape, shaped (shapes), all positive.

        Raises `UnknownNameError` where there is no predictor for the direction.
        """
        return self.predict(self.sharing_target(direction), shapes)

    def sharing_target(self, direction: Direction) -> str:
        """The target for the SoC's usual storage; to relayout is to copy to its last one."""
        usual, *others = registry.storages(self.soc)
        stored = {"store": BLOCKED, "relayout": [usual, *others][-1]}.get(direction, usual)
        return features.sharing_target(direction, stored)

    def predict(self, target: str, items: Sequence[Item]) -> NDArray[np.float64]:
        """Milliseconds for items of one target, shaped (items), all positive.

        Raises `UnknownNameError` for a target without a predictor, or that the items do not have.
        """
        if target not in self.stored:
            fix = f"They are in {self.folder}; `codl train --soc {self.soc.name}` trains them."
            raise UnknownNameError(f"target of {self.name}", target, self.stored, fix=fix)
        known = self._known.setdefault(target, {})
        new = list(dict.fromkeys(item for item in items if item not in known))
        if new:
            stored = self.stored[target]
            latency_ms = stored.estimator.predict(stored.table(new, self.soc).values)
            known.update(zip(new, latency_ms.tolist(), strict=True))
        return np.array([known[item] for item in items], np.float64)


def load(soc: Soc, name: str, folder: Path = FOLDER) -> Predictors:
    """Load and check all predictors of one name for a SoC.

    Raises `UnknownNameError` for an unknown name, `InvalidFileError` where none is stored or a
    file cannot be read, and `MismatchError` for one that belongs to something else.
    """
    if name not in ESTIMATORS:
        raise UnknownNameError("predictor", name, ESTIMATORS)
    own = store.folder_of(folder, soc.name, name)
    paths = sorted(own.glob("*.json"))
    if not paths:
        fix = f"`codl train --soc {soc.name} --predictor {name}` trains them."
        raise InvalidFileError(own, "there are no predictors here.", fix=fix)
    return Predictors(name, soc, own, {path.stem: store.read(path, soc) for path in paths})
