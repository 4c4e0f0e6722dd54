"""Serialization of predictors: `predictors/<soc>/<predictor>.json`, which a person can read.

A file says what it predicts, from which features in which order and unit, what it was trained on
and how well it predicts what it did not see, target by target. It keeps digests of the features of
a few ops: reading it computes them again, so a predictor never serves a variant or a SoC whose
features have changed since. Files hold numbers and text alone, so one from elsewhere runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from codl import files, provenance
from codl.errors import CodlError, InvalidFileError, MismatchError, UnknownNameError
from codl.ir.types import PROCESSORS, Processor
from codl.kernels.tuning import Tuning
from codl.predict import ESTIMATORS, FOLDER, features
from codl.predict import domain_adaptation as transfer
from codl.predict.domain_adaptation import Known
from codl.predict.estimators import (
    LatencyEstimator,
)
from codl.predict.features import FeatureTable, Item
from codl.predict.in_network_cost import InNetworkCost, InNetworkCosts
from codl.records import soc as socs
from codl.records.soc import Soc

VERSION = 9
UNIT = "ms"
#: A target of fewer different items than this says little of others.
FEW_ITEMS = 8
#: Significant digits of a feature that count: the same computation agrees but for rounding.
DIGITS = 9
#: Stands before the target whose features a target has too.
_AS = "as "
#: Values that take no more than this stand in one line; those of a list or mapping together.
WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class StoredPredictor:
    """One fitted estimator and all that is known about it.

    `features` are names in the order of the estimator's columns; `examples` gives a digest of the
    features of a few items by their text, of all where there are fewer than `FEW_ITEMS`. It was
    fitted to `rows` with `items` different items, of `tables` (by name, with the start of their
    SHA-256); `held_out` is the accuracy on whole shapes, empty without evaluation. `known` are SoCs
    whose latencies are features too (`codl train --like`); `tuning` the fingerprint of the kernels'
    choices.
    """

    predictor: str
    target: str
    soc: str
    features: tuple[str, ...]
    examples: Mapping[str, str]
    rows: int
    items: int
    tables: Mapping[str, str]
    sources: tuple[str, ...]
    held_out: Mapping[str, Any]
    estimator: LatencyEstimator
    tuning: str = ""
    known: tuple[Known, ...] = ()
    codl: str = provenance.VERSION

    def table(self, items: Sequence[Item], soc: Soc, tuning: Tuning = Tuning()) -> FeatureTable:
        """The features of some items (at least one) in the order of the estimator's columns."""
        if self.known:
            return transfer.table(self.target, items, soc, self.known, tuning)
        return features.table(self.estimator.feature_set, self.target, items, soc, tuning)

    @property
    def content(self) -> dict[str, Any]:
        """What the file holds of this target, as JSON values in the order of writing."""
        return {
            "rows": self.rows,
            **({"items": self.items} if self.items != self.rows else {}),
            "features": " ".join(self.features),
            "held_out": dict(self.held_out),
            "examples": dict(self.examples),
            **({"known": [one.state() for one in self.known]} if self.known else {}),
            **self.estimator.state(self.features),
        }

    @property
    def bytes(self) -> int:
        """What this target takes of the file."""
        return len(_format(self.content, " "))


def path_of(root: Path, soc: str, predictor: str) -> Path:
    return root / soc / f"{predictor}.json"


def save(
    stored: Sequence[StoredPredictor], root: Path = FOLDER, inside: InNetworkCosts | None = None
) -> Path:
    """Write all targets of one predictor under `root`; a crash leaves the old file or the new.

    `inside` is what its ops take more inside a network.
    """
    first = stored[0]
    path = path_of(root, first.soc, first.predictor)
    content = {
        "version": VERSION,
        "predictor": first.predictor,
        "soc": first.soc,
        "tuning": first.tuning,
        "unit": UNIT,
        "feature_units": features.UNITS,
        "codl": first.codl,
        "tables": {name: digest for one in stored for name, digest in one.tables.items()},
        "sources": sorted({source for one in stored for source in one.sources}),
        "inside": {side: costs.state() for side, costs in (inside or {}).items()},
        "targets": _contents(stored),
    }
    return files.write(path, _format(content) + "\n")


def _contents(stored: Sequence[StoredPredictor]) -> dict[str, dict[str, Any]]:
    """What the file holds of every target; features that an earlier one has are named by it."""
    contents: dict[str, dict[str, Any]] = {}
    first: dict[str, str] = {}
    for one in stored:
        content = one.content
        before = first.setdefault(content["features"], one.target)
        if before != one.target:
            content["features"] = f"{_AS}{before}"
        contents[one.target] = content
    return contents


def _format(value: Any, indent: str = "") -> str:
    """JSON with short values in one line, so that a file is small and can be read."""
    text = json.dumps(value, allow_nan=False)
    is_top, is_long = not indent, len(text) > WIDTH
    if not isinstance(value, dict | list) or not (is_top or is_long):
        return text
    inner = f"\n{indent} "
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {_format(v, inner[1:])}" for k, v in value.items()]
        return f"{{{inner}{_in_lines(items, inner)}\n{indent}}}"
    return f"[{inner}{_in_lines([_format(v, inner[1:]) for v in value], inner)}\n{indent}]"


def _in_lines(items: Sequence[str], begin: str) -> str:
    """Items with commas between, as many in a line as have room; `begin` begins a line."""
    lines = [""]
    for item in items:
        one_line = f"{lines[-1]}, {item}" if lines[-1] else item
        if "\n" in one_line or len(one_line) > WIDTH:
            lines.append(item)
        else:
            lines[-1] = one_line
    return f",{begin}".join(line for line in lines if line)


def read(
    path: Path, soc: Soc, tuning: Tuning = Tuning()
) -> tuple[dict[str, StoredPredictor], dict[Processor, InNetworkCost]]:
    """Read and check one file: its predictors by target, and what ops take more in a network.

    Raises `InvalidFileError` for a file that is not of predictors or was changed,
    `UnknownNameError` for a predictor, target or known SoC that codl does not know, and
    `MismatchError` for one that belongs to another SoC, name or set of features.
    """
    fix = f"`codl train --soc {soc.name}` trains it again."
    content = _content(path, fix)
    _check_names(path, content, soc, fix)
    _check_tuning(path, content["tuning"], soc, tuning)
    stored = {}
    for target, own in content["targets"].items():
        where = f"targets, {target}"
        if not isinstance(own, dict):
            problem = f"expected a mapping, got {own!r:.80}."
            raise InvalidFileError(path, problem, where=where, fix=fix)
        _check_types(path, own, _TARGET_TYPES, fix=fix, within=f"{where}, ")
        stored[target] = _read_target(path, content, target, soc, tuning)
    return stored, _inside(path, content["inside"], fix)


def _inside(path: Path, content: Mapping[str, Any], fix: str) -> dict[Processor, InNetworkCost]:
    found: dict[Processor, InNetworkCost] = {}
    for name, own in content.items():
        try:
            if name not in PROCESSORS:
                raise ValueError(f"expected one of {', '.join(PROCESSORS)}.")
            found["cpu" if name == "cpu" else "gpu"] = InNetworkCost.of(own)
        except ValueError as error:
            where = f"inside, {name}"
            raise InvalidFileError(path, str(error), where=where, fix=fix) from error
    return found


def _read_target(
    path: Path, content: Mapping[str, Any], target: str, soc: Soc, tuning: Tuning
) -> StoredPredictor:
    own, predictor = content["targets"][target], content["predictor"]
    fix = f"`codl train --soc {soc.name}` trains it again."
    names = tuple(_features(path, content["targets"], target, fix).split())
    known = _known(path, target, own.get("known", []), fix)
    stored = {
        "predictor": predictor,
        "target": target,
        **{key: content[key] for key in ("soc", "tuning", "codl", "tables")},
        "sources": tuple(content["sources"]),
        **{key: own[key] for key in ("rows", "held_out", "examples")},
        "items": own.get("items", own["rows"]),
    }
    if not isinstance(stored["items"], int):
        problem = f"expected int, got {stored['items']!r:.80}."
        raise InvalidFileError(path, problem, where=f"targets, {target}, items", fix=fix)
    _check_examples(path, {**stored, "features": list(names)}, soc, tuning, known)
    try:
        estimator = ESTIMATORS[predictor].from_state(own, names)
    except ValueError as error:
        where = f"targets, {target}"
        raise InvalidFileError(path, str(error), where=where, fix=fix) from error
    return StoredPredictor(**stored, features=names, estimator=estimator, known=known)


def _features(path: Path, targets: Mapping[str, Any], target: str, fix: str) -> str:
    """The names of a target's features, which may stand with another target."""
    text: str = targets[target]["features"]
    if not text.startswith(_AS):
        return text
    other = targets.get(text.removeprefix(_AS))
    if not isinstance(other, dict) or not isinstance(other.get("features"), str):
        problem = f"there is no such target with features, got {text!r:.80}."
        raise InvalidFileError(path, problem, where=f"targets, {target}, features", fix=fix)
    return str(other["features"])


def _known(path: Path, target: str, states: Any, fix: str) -> tuple[Known, ...]:
    """The known SoCs beside which the predictor was trained; each must still be described."""
    known = []
    if not isinstance(states, list):
        problem = f"expected a list, got {states!r:.80}."
        raise InvalidFileError(path, problem, where=f"targets, {target}, known", fix=fix)
    for at, state in enumerate(states):
        where = f"targets, {target}, known, {at}"
        if not isinstance(state, dict) or not isinstance(state.get("soc"), str):
            problem = f"must name a soc, got {state!r:.80}."
            raise InvalidFileError(path, problem, where=where, fix=fix)
        soc = socs.load(state["soc"])
        try:
            known.append(Known.from_state(state, soc))
        except ValueError as error:
            raise InvalidFileError(path, str(error), where=where, fix=fix) from error
        if known[-1].target != target:
            raise MismatchError(
                f"{path}, {where}: is of {known[-1].target}, expected {target}. {fix}"
            )
    return tuple(known)


_Types = Mapping[str, type]
_TYPES: _Types = {
    "version": int,
    "predictor": str,
    "soc": str,
    "tuning": str,
    "unit": str,
    "feature_units": str,
    "codl": str,
    "tables": dict,
    "sources": list,
    "inside": dict,
    "targets": dict,
}
_TARGET_TYPES: _Types = {
    "rows": int,
    "features": str,
    "held_out": dict,
    "examples": dict,
}


def _content(path: Path, fix: str) -> dict[str, Any]:
    """The file's content with every key there and of its type."""
    content = files.read_json(path, fix=fix)
    if not isinstance(content, dict):
        problem = f"expected a mapping, got {type(content).__name__}."
        raise InvalidFileError(path, problem, fix=fix)
    version = content.get("version", VERSION)
    if version != VERSION:
        problem = f"must be {VERSION}, got {version!r}: another version of codl wrote the file."
        raise InvalidFileError(path, problem, where="version", fix=fix)
    _check_types(path, content, _TYPES, fix=fix)
    if content["unit"] != UNIT:
        problem = f"must be {UNIT!r}, got {content['unit']!r}."
        raise InvalidFileError(path, problem, where="unit", fix=fix)
    return content


def _check_types(
    path: Path, content: Mapping[str, Any], types: _Types, *, fix: str, within: str = ""
) -> None:
    for key, kind in types.items():
        where = f"{within}{key}"
        if key not in content:
            raise InvalidFileError(path, "the key is missing.", where=where, fix=fix)
        if not isinstance(content[key], kind):
            problem = f"expected {kind.__name__}, got {content[key]!r:.80}."
            raise InvalidFileError(path, problem, where=where, fix=fix)


def _check_names(path: Path, content: Mapping[str, Any], soc: Soc, fix: str) -> None:
    """What the file says it is must agree with where it lies."""
    if content["predictor"] not in ESTIMATORS:
        hint = f"It stands in {path}. {fix}"
        raise UnknownNameError("predictor", content["predictor"], ESTIMATORS, fix=hint)
    expected = {"soc": soc.name, "predictor": path.stem}
    for key, value in expected.items():
        if content[key] != value:
            raise MismatchError(
                f"{path}, {key}: is {content[key]!r}, but the file lies where {value!r} is "
                f"expected. {fix}"
            )


def _check_tuning(path: Path, fingerprint: str, soc: Soc, tuning: Tuning) -> None:
    """Kernels must be tuned as they were when the predictors learned their features."""
    if fingerprint != tuning.fingerprint:
        trained, now = (text or "untuned" for text in (fingerprint, tuning.fingerprint))
        raise MismatchError(
            f"{path}, tuning: is {trained!r}, but kernels are tuned as {now!r} now. `codl train "
            f"--soc {soc.name}` trains it again; `codl collect --soc {soc.name} --serial local` "
            "comes first where kernels were tuned after they had been measured. The tuning lies "
            "in tuning.json of the dataset, whose folder --dataset names."
        )


def _check_examples(
    path: Path, content: Mapping[str, Any], soc: Soc, tuning: Tuning, known: Sequence[Known]
) -> None:
    """Compute the features of a target's examples again, and compare names, order and digests.

    Digests are of the features on this SoC alone: known SoCs' latencies are not exact to the digit.
    """
    fix = f"`codl train --soc {soc.name}` trains it again."
    target, names, examples = content["target"], content["features"], content["examples"]
    if not examples:
        problem = "there must be at least one op with a digest of its features."
        raise InvalidFileError(path, problem, where=f"targets, {target}, examples", fix=fix)
    feature_set = ESTIMATORS[content["predictor"]].feature_set
    for text, stored in examples.items():
        where = f"targets, {target}, examples, {text!r}"
        try:
            item = features.read(target, text)
        except CodlError as error:
            raise InvalidFileError(path, str(error), where=where, fix=fix) from error
        targets = features.targets_of(item)
        if target not in targets:
            raise UnknownNameError("target", target, targets, fix=f"It stands in {path}. {fix}")
        now = features.table(feature_set, target, [item], soc, tuning)
        used = transfer.table(target, [item], soc, known, tuning) if known else now
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
        features.write(item): sha256(" ".join((*table.names, *row)).encode()).hexdigest()[:8]
        for item, row in zip(items, rows, strict=True)
    }
