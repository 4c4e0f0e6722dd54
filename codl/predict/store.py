"""Stored predictors: `predictors/<soc>/<predictor>/<target>.json`, one JSON file a person can read.

A file says what it predicts, from which features in which order and unit, what it was trained on
and how well it predicts what it did not see. It keeps digests of the features of a few ops: reading
it computes them again, so a predictor never serves a variant or a SoC whose features have changed
since. Files hold numbers and text alone, so one from elsewhere runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from codl import provenance
from codl import soc as socs
from codl.errors import CodlError, InvalidFileError, MismatchError, UnknownNameError
from codl.predict import features, transfer
from codl.predict.estimators import ESTIMATORS, LatencyEstimator
from codl.predict.features import FeatureTable, Item
from codl.predict.names import FOLDER
from codl.predict.transfer import Known
from codl.soc import Soc

VERSION = 3
UNIT = "ms"
#: Significant digits of a feature that count: the same computation agrees but for rounding.
DIGITS = 9
#: Values that take no more than this stand in one line.
WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class StoredPredictor:
    """One fitted estimator and all that is known about it.

    `features` are names in the order of the estimator's columns; `examples` gives a digest of the
    features of a few items by their text. `dataset` tells the tables by their SHA-256, the rows,
    the failed ones and the sources; `held_out` the accuracy for each split, empty where nobody
    has looked. `known` are SoCs whose latencies are features too (`codl train --like`).
    """

    predictor: str
    target: str
    soc: str
    processor: str | None
    features: tuple[str, ...]
    examples: Mapping[str, str]
    dataset: Mapping[str, Any]
    held_out: Mapping[str, Any]
    estimator: LatencyEstimator
    known: tuple[Known, ...] = ()
    codl: str = provenance.VERSION

    def table(self, items: Sequence[Item], soc: Soc) -> FeatureTable:
        """The features of some items (at least one) in the order of the estimator's columns."""
        if self.known:
            return transfer.table(self.target, items, soc, self.known)
        return features.table(self.estimator.feature_set, self.target, items, soc)

    @property
    def content(self) -> dict[str, Any]:
        """The file's content as JSON values, in the order in which it is written."""
        return {
            "version": VERSION,
            "predictor": self.predictor,
            "target": self.target,
            "soc": self.soc,
            "processor": self.processor,
            "unit": UNIT,
            "features": list(self.features),
            "feature_units": features.UNITS,
            "codl": self.codl,
            "dataset": dict(self.dataset),
            "held_out": dict(self.held_out),
            "examples": dict(self.examples),
            "known": [one.state() for one in self.known],
            "state": self.estimator.state(self.features),
        }


def folder_of(root: Path, soc: str, predictor: str) -> Path:
    return root / soc / predictor


def save(stored: StoredPredictor, root: Path = FOLDER) -> Path:
    """Write the file under `root`; a crash leaves the old file or the new one."""
    folder = folder_of(root, stored.soc, stored.predictor)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stored.target}.json"
    partial = path.with_suffix(".tmp")
    partial.write_text(_format(stored.content) + "\n")
    partial.replace(path)
    return path


def _format(value: Any, indent: str = "") -> str:
    """JSON with short values in one line, so that a file is small and can be read."""
    text = json.dumps(value, allow_nan=False)
    is_top, is_long = not indent, len(text) > WIDTH
    if not isinstance(value, dict | list) or not (is_top or is_long):
        return text
    inner = f"\n{indent} "
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {_format(v, inner[1:])}" for k, v in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}\n{indent}}}"
    return f"[{inner}{f',{inner}'.join(_format(v, inner[1:]) for v in value)}\n{indent}]"


def read(path: Path, soc: Soc) -> StoredPredictor:
    """Read and check one file.

    Raises `InvalidFileError` for a file that is not a predictor or was changed, `UnknownNameError`
    for a predictor, target or known SoC that codl does not know, and `MismatchError` for one that
    belongs to another SoC, name or set of features.
    """
    fix = f"`codl train --soc {soc.name}` trains it again."
    content = _content(path, fix)
    _check_names(path, content, soc, fix)
    names = tuple(content["features"])
    known = _known(path, content, fix)
    _check_examples(path, content, soc, known)
    try:
        state = content["state"]
        estimator = ESTIMATORS[content["predictor"]].from_state(state, names)
    except ValueError as error:
        raise InvalidFileError(path, str(error), where="state", fix=fix) from error
    kept = ("predictor", "target", "soc", "processor", "examples", "dataset", "held_out", "codl")
    values = {key: content[key] for key in kept}
    return StoredPredictor(**values, features=names, estimator=estimator, known=known)


def _known(path: Path, content: Mapping[str, Any], fix: str) -> tuple[Known, ...]:
    """The known SoCs beside which the predictor was trained; each must still be described."""
    found = []
    for at, state in enumerate(content["known"]):
        where = f"known, {at}"
        if not isinstance(state, dict) or not isinstance(state.get("soc"), str):
            problem = f"must name a soc, got {state!r:.80}."
            raise InvalidFileError(path, problem, where=where, fix=fix)
        soc = socs.load(state["soc"])
        try:
            found.append(Known.from_state(state, soc))
        except ValueError as error:
            raise InvalidFileError(path, str(error), where=where, fix=fix) from error
        if found[-1].target != content["target"]:
            raise MismatchError(
                f"{path}, {where}: is of {found[-1].target}, expected {content['target']}. {fix}"
            )
    return tuple(found)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "version": int,
    "predictor": str,
    "target": str,
    "soc": str,
    "processor": (str, type(None)),
    "unit": str,
    "features": list,
    "feature_units": str,
    "codl": str,
    "dataset": dict,
    "held_out": dict,
    "examples": dict,
    "known": list,
    "state": dict,
}


def _content(path: Path, fix: str) -> dict[str, Any]:
    """The file's content with every key there and of its type."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidFileError(path, f"not a readable JSON file: {error}.", fix=fix) from error
    if not isinstance(content, dict):
        problem = f"expected a mapping, got {type(content).__name__}."
        raise InvalidFileError(path, problem, fix=fix)
    version = content.get("version", VERSION)
    if version != VERSION:
        problem = f"must be {VERSION}, got {version!r}: another version of codl wrote the file."
        raise InvalidFileError(path, problem, where="version", fix=fix)
    for key, kind in _TYPES.items():
        if key not in content:
            raise InvalidFileError(path, "the key is missing.", where=key, fix=fix)
        if not isinstance(content[key], kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            wanted = " or ".join(k.__name__ for k in kinds)
            problem = f"expected {wanted}, got {content[key]!r}."
            raise InvalidFileError(path, problem, where=key, fix=fix)
    if content["unit"] != UNIT:
        problem = f"must be {UNIT!r}, got {content['unit']!r}."
        raise InvalidFileError(path, problem, where="unit", fix=fix)
    return content


def _check_names(path: Path, content: Mapping[str, Any], soc: Soc, fix: str) -> None:
    """What the file says it is must agree with where it lies."""
    if content["predictor"] not in ESTIMATORS:
        hint = f"It stands in {path}. {fix}"
        raise UnknownNameError("predictor", content["predictor"], ESTIMATORS, fix=hint)
    found = {"soc": soc.name, "predictor": path.parent.name, "target": path.stem}
    for key, value in found.items():
        if content[key] != value:
            raise MismatchError(
                f"{path}, {key}: is {content[key]!r}, but the file lies where {value!r} is "
                f"expected. {fix}"
            )


def _check_examples(
    path: Path, content: Mapping[str, Any], soc: Soc, known: Sequence[Known]
) -> None:
    """Compute the features of the examples again, and compare names, order and digests.

    Digests are of the features on this SoC alone: known SoCs' latencies are not exact to the digit.
    """
    fix = f"`codl train --soc {soc.name}` trains it again."
    target, names, examples = content["target"], content["features"], content["examples"]
    if not examples:
        problem = "there must be at least one op with a digest of its features."
        raise InvalidFileError(path, problem, where="examples", fix=fix)
    feature_set = ESTIMATORS[content["predictor"]].feature_set
    for text, stored in examples.items():
        where = f"examples, {text!r}"
        try:
            item = features.read(target, text)
        except CodlError as error:
            raise InvalidFileError(path, str(error), where=where, fix=fix) from error
        targets = features.targets_of(item)
        if target not in targets:
            raise UnknownNameError("target", target, targets, fix=f"It stands in {path}. {fix}")
        now = features.table(feature_set, target, [item], soc)
        used = transfer.table(target, [item], soc, known) if known else now
        if list(used.names) != names:
            raise MismatchError(
                f"{path}, features: is {', '.join(map(str, names))}, but {target} has "
                f"{', '.join(used.names)}. {fix}"
            )
        if stored != (digest := examples_of([item], now)[text]):
            raise MismatchError(
                f"{path}, {where}: the digest of its features was {stored!r} in training and is "
                f"{digest!r} now; the kernel variant or the SoC has changed. {fix}"
            )


def examples_of(items: list[Item], table: features.FeatureTable) -> dict[str, str]:
    """Digests of the features of some items by their text."""
    rows = ([f"{value:.{DIGITS}g}" for value in row] for row in table.values.tolist())
    return {
        features.write(item): sha256(" ".join((*table.names, *row)).encode()).hexdigest()[:16]
        for item, row in zip(items, rows, strict=True)
    }
