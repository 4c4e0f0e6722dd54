"""The trained predictors of a SoC: a planner's source of latencies, and their file.

A file, `predictors/<soc>/<predictor>.json`, has one line for each target: the names of its
features in order, training tables, held-out accuracy, and the estimator. Digests of the features of
a few ops are recomputed before the first prediction of a target, so a predictor of an outdated
variant or SoC is refused. Files hold numbers and text alone and run no code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from codl import files
from codl.errors import CodlError, InvalidFileError, MismatchError, UnknownNameError
from codl.files import own_or_shipped
from codl.ir import Shape, yaml_file
from codl.ir.records.soc import Soc
from codl.ir.types import BLOCKED, ELEMENTS, Direction
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.predict import ESTIMATORS, FOLDER, features
from codl.predict.features import SHARING_PARTS, FeatureTable, Item, sharing_target
from codl.predict.in_network_cost import InNetworkCost, InNetworkCosts, Owner

if TYPE_CHECKING:
    from codl.predict.estimators import LatencyEstimator

E = TypeVar("E", bound="LatencyEstimator")

VERSION = 10
#: Fewest distinct items of a reliable target.
FEW_ITEMS = 8
#: Significant digits of features in digests, which ignore rounding.
DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class StoredPredictor(Generic[E]):
    """The fitted estimator of one target with its metadata.

    `features` are names in the order of the estimator's columns. `examples` are feature digests of
    a few items by text, or of all items if fewer than `FEW_ITEMS`. `rows` and `items` count
    training rows and distinct items. `tables` maps table names to the start of their SHA-256.
    `held_out` is the accuracy on held-out shapes, empty without evaluation.
    """

    target: str
    rows: int
    items: int
    tables: dict[str, str]
    sources: tuple[str, ...]
    held_out: dict[str, float]
    features: tuple[str, ...]
    examples: Annotated[dict[str, str], msgspec.Meta(min_length=1)]
    estimator: E

    @property
    def bytes(self) -> int:
        return len(_encode(self))


@dataclass(frozen=True, kw_only=True)
class _File:
    version: int
    predictor: str
    soc: str
    #: Fingerprint of the kernels' tuning.
    tuning: str
    unit: Literal["ms"]
    feature_units: str
    codl: str
    #: In-network costs by owner.
    inside: dict[Owner, InNetworkCost]
    targets: dict[str, Any]


@dataclass(frozen=True)
class Predictors:
    """The stored predictors of one name (such as `codl_linear`) for one SoC, by target."""

    name: str
    soc: Soc
    path: Path
    stored: dict[str, StoredPredictor[Any]]
    tuning: Tuning = Tuning()
    #: In-network costs by owner; absent for processors without measured stages.
    inside: InNetworkCosts = field(default_factory=dict)
    #: Targets read from a file that have not predicted yet.
    unchecked: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.stored)

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        """Texts of the measured items of each target with fewer than `FEW_ITEMS` items."""
        return {
            target: frozenset(stored.examples)
            for target, stored in self.stored.items()
            if stored.items < FEW_ITEMS
        }

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> dict[str, NDArray[np.float64]]:
        """Positive milliseconds to share a region of every shape, (shapes) by part.

        If no part has a predictor, the whole exchange is `copy`. Raises `UnknownNameError` for a
        direction without a predictor.
        """
        usual, *others = registry.storages(self.soc)
        of_way = {"to_gpu": usual, "to_cpu": usual, "relayout": [usual, *others][-1]}
        storage = of_way.get(direction, BLOCKED)
        parts = {part: sharing_target(direction, storage, part) for part in SHARING_PARTS}
        parts = {part: target for part, target in parts.items() if target in self.stored}
        parts = parts or {"copy": sharing_target(direction, storage)}
        return {part: self.latency_ms(target, shapes) for part, target in parts.items()}

    def latency_ms(self, target: str, items: Sequence[Item]) -> NDArray[np.float64]:
        """Positive latencies of one target's items in milliseconds, shaped (items).

        Raises `UnknownNameError` for a target without a predictor, or one of other items.
        """
        if target not in self.stored:
            fix = f"They are in {self.path}; `codl train --soc {self.soc.name}` trains them."
            raise UnknownNameError(f"target of {self.name}", target, self.stored, fix=fix)
        if not items:
            return np.empty(0)
        if target in self.unchecked:
            self.check(target)
            self.unchecked.discard(target)
        estimator: LatencyEstimator = self.stored[target].estimator
        return estimator.predict(self._features(target, items).values)

    def _features(self, target: str, items: Sequence[Item]) -> FeatureTable:
        feature_set = self.stored[target].estimator.feature_set
        return features.table(feature_set, target, items, self.soc, self.tuning)

    def check(self, target: str) -> None:
        """Compare the features of a target's examples with those of training, and predict them.

        Raises `MismatchError` for other features, and `InvalidFileError` for examples of another
        target and for an estimator that does not predict positive latencies.
        """
        stored, fix = self.stored[target], f"`codl train --soc {self.soc.name}` trains it again."
        invalid = partial(InvalidFileError, self.path, fix=fix)
        try:
            items = [features.read(target, text) for text in stored.examples]
            table = self._features(target, items)
        except CodlError as error:
            raise invalid(str(error), where=f"targets, {target}, examples") from error
        for text, now in examples_of(items, table).items():
            if now != stored.examples.get(text):
                raise MismatchError(
                    f"{self.path}, targets, {target}, examples, {text!r}: the digest of its "
                    f"features was {stored.examples.get(text)!r} in training and is {now!r} now; "
                    f"the kernel variant or the SoC has changed. {fix}"
                )
        where = f"targets, {target}, estimator"
        try:
            with np.errstate(all="ignore"):
                predicted_ms = stored.estimator.predict(table.values)
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:
            problem = f"the estimator's numbers do not fit together: {error}."
            raise invalid(problem, where=where) from error
        if not (np.isfinite(predicted_ms).all() and (predicted_ms > 0).all()):
            problem = f"it predicts {predicted_ms.tolist()} ms: latencies are positive."
            raise invalid(problem, where=where)

    def save(self, root: Path = FOLDER) -> Path:
        """Write all targets under `root` atomically; return the path."""
        header = {
            "version": VERSION,
            "predictor": self.name,
            "soc": self.soc.name,
            "tuning": self.tuning.fingerprint,
            "unit": "ms",
            "feature_units": features.UNITS,
            "codl": files.VERSION,
            "inside": self.inside,
        }
        lines = [b"%s:%s" % (_encode(key), _encode(value)) for key, value in header.items()]
        targets = (
            b"%s:%s" % (_encode(name), _encode(predictor))
            for name, predictor in self.stored.items()
        )
        content = b'{%s,\n"targets":{\n%s\n}}\n' % (b",\n".join(lines), b",\n".join(targets))
        return files.write(path_of(root, self.soc.name, self.name), content)


def path_of(root: Path, soc: str, predictor: str) -> Path:
    return root / soc / f"{predictor}.json"


def load(soc: Soc, name: str, folder: Path = FOLDER, tuning: Tuning = Tuning()) -> Predictors:
    """Load all predictors of one name for a SoC with tuned kernels.

    The default folder falls back to predictors shipped with codl. The features of a target are
    checked at its first prediction.

    Raises `UnknownNameError` for an unknown name, `InvalidFileError` for a missing or unreadable
    file or one without the SoC's precision, and `MismatchError` for a file of another SoC, name or
    tuning.
    """
    if name not in ESTIMATORS:
        raise UnknownNameError("predictor", name, ESTIMATORS)
    path = path_of(own_or_shipped(soc.name, folder, FOLDER).parent, soc.name, name)
    if not path.exists():
        fix = f"`codl train --soc {soc.name} --predictor {name}` trains them."
        raise InvalidFileError(path, "there are no predictors here.", fix=fix)
    predictors, gpu = read(path, soc, tuning), soc.gpu
    suffix = ELEMENTS[gpu.element].suffix
    if suffix and not any(suffix in target for target in predictors.stored):
        raise InvalidFileError(
            path,
            f"there are no predictors for the precision {gpu.precision}, of {gpu.element} tensors.",
            where="targets",
            fix=f"`codl collect --soc {soc.name} --serial local --resume --precision "
            f"{gpu.precision}` measures them, and `codl train --soc {soc.name}` trains them.",
        )
    return predictors


def read(path: Path, soc: Soc, tuning: Tuning = Tuning()) -> Predictors:
    """Read one file of predictors.

    Raises `InvalidFileError` for an invalid file, and `MismatchError` for a file of another SoC or
    name than its path, or of another tuning.
    """
    fix = f"`codl train --soc {soc.name}` trains it again."
    content = files.read_json(path, fix=fix)
    if isinstance(content, dict) and (version := content.get("version")) != VERSION:
        problem = f"must be {VERSION}, got {version!r:.60}: another version of codl wrote the file."
        raise InvalidFileError(path, problem, where="version", fix=fix)
    file = yaml_file.convert(content, _File, path, fix=fix)
    for key, value in {"soc": soc.name, "predictor": path.stem}.items():
        if getattr(file, key) != value:
            raise MismatchError(
                f"{path}, {key}: is {getattr(file, key)!r}, but the file lies where {value!r} is "
                f"expected. {fix}"
            )
    if file.tuning != tuning.fingerprint:
        trained, now = (text or "untuned" for text in (file.tuning, tuning.fingerprint))
        raise MismatchError(
            f"{path}, tuning: is {trained!r}, but kernels are tuned as {now!r} now. `codl train "
            f"--soc {soc.name}` trains it again; `codl collect --soc {soc.name} --serial local` "
            "comes first where kernels were tuned after they had been measured. The tuning lies "
            "in tuning.json of the dataset, whose folder --datasets names."
        )
    generic: Any = StoredPredictor
    kind = generic[ESTIMATORS[file.predictor]]
    stored = {
        target: yaml_file.convert(
            fields, kind, f"{path}, targets, {target}", fix=fix, dec_hook=from_json
        )
        for target, fields in file.targets.items()
        if target not in features.FORMER_TARGETS
    }
    return Predictors(file.predictor, soc, path, stored, tuning, file.inside, set(stored))


def examples_of(items: Sequence[Item], table: FeatureTable) -> dict[str, str]:
    """The first 8 hex digits of a SHA-256 of each item's features, by the item's text."""
    rows = ([f"{value:.{DIGITS}g}" for value in row] for row in table.values.tolist())
    return {
        features.write(item): sha256(" ".join((*table.names, *row)).encode()).hexdigest()[:8]
        for item, row in zip(items, rows, strict=True)
    }


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=to_json)


def to_json(value: Any) -> Any:
    """Encoding hook of msgspec: arrays become nested lists; others raise `NotImplementedError`."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(type(value))


def from_json(kind: Any, value: Any) -> Any:
    """Decoding hook of msgspec: an array of finite 64-bit numbers; raises `ValueError`."""
    (dtype,) = kind.__args__[1].__args__
    try:
        array = np.array(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected rows of as many numbers each, got {value!r:.60}") from error
    if not np.isfinite(array).all():
        raise ValueError("Expected finite numbers")
    return array
