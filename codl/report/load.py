"""Reads result files and checks them: the types in `codl.report.results` are the rules.

Keys that a report does not need may be there; those that it needs must be right. An error names
the file, the key and the value, and says what would be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from codl import files
from codl.errors import InvalidFileError, UnknownNameError
from codl.files import printable
from codl.ir.plan import Chain
from codl.plugins import RESULTS
from codl.report.results import (
    COMMANDS,
    EvalResult,
    ExplainResult,
    Result,
    ResultFile,
    SearchesResult,
    SearchResult,
    TrainResult,
)
from codl.yaml_file import explained

VERSION = 1
HOW = "A result file is what a command writes with `-o FILE`."
T = TypeVar("T", bound=ResultFile)


def load_result(path: Path) -> Result:
    """Read a result file; raises `InvalidFileError` with the key and value that are wrong."""
    return parse_result(files.read_json(path, fix=HOW), path)


def parse_result(content: Any, path: str | Path = "result") -> Result:
    """Check a result's content; `path` is what errors call it."""
    if not isinstance(content, dict):
        raise InvalidFileError(path, f"must hold a mapping, got {content!r:.60}.", fix=HOW)
    if "command" not in content and {"digest", "chains"} <= set(content):
        return parse_as(SearchResult, content, path)  # a plan file
    if "command" not in content:
        raise InvalidFileError(path, "the key 'command' is missing.", where="top", fix=HOW)
    command = content["command"]
    known = {*COMMANDS, *RESULTS}
    if not isinstance(command, str) or command not in known:
        problem = str(UnknownNameError("command", str(command), known))
        raise InvalidFileError(path, problem, where="command")
    if command == "search" and "plans" in content:
        return parse_as(SearchesResult, content, path)
    kind: type[Result] = COMMANDS.get(command) or RESULTS[command]
    return parse_as(kind, content, path)


def eval_result(content: Mapping[str, Any]) -> EvalResult:
    """What `codl eval` has in hand before it is written: the keys of its `--json`."""
    return parse_as(EvalResult, content, "result")


def train_result(content: Mapping[str, Any]) -> TrainResult:
    """What `codl train` has in hand before it is written: the keys of its `--json`."""
    return parse_as(TrainResult, content, "result")


def explain_result(content: Mapping[str, Any]) -> ExplainResult:
    """What `codl explain` has in hand before it is written: the keys of its `--json`."""
    return parse_as(ExplainResult, content, "result")


def chains_of(content: Any, path: str | Path) -> tuple[Chain, ...]:
    """The chains of a plan in a result file; raises `InvalidFileError` where they are none."""
    try:
        return msgspec.convert(content, tuple[Chain, ...])
    except msgspec.ValidationError as error:
        raise InvalidFileError(path, f"{error}.", where="plans") from error


def parse_as(kind: type[T], content: Mapping[str, Any], path: str | Path) -> T:
    """Check content as one kind of result; raises `InvalidFileError`."""
    if content.get("version", VERSION) != VERSION:
        problem = (
            f"must be {VERSION}, the version that this codl reads, got {content['version']!r}."
        )
        raise InvalidFileError(path, problem, where="version")
    checked = {**_plain(dict(content), "", path), "path": str(path)}
    if isinstance(checked.get("soc"), str):
        checked["soc"] = {"name": checked["soc"]}
    try:
        return msgspec.convert(checked, kind)
    except msgspec.ValidationError as error:
        raise explained(str(error), checked, kind, path) from error


def _plain(value: Any, where: str, path: str | Path) -> Any:
    """The value with finite numbers, and text that neither a terminal nor XML is harmed by."""
    if isinstance(value, dict):
        return {printable(k): _plain(v, f"{where}.{k}", path) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{at}]", path) for at, item in enumerate(value)]
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        value = float(value)  # NumPy's, too
    if isinstance(value, (int, float)) and not (abs(value) < 2**63 and isfinite(value)):
        problem = f"must be a finite number, got {value!r:.60}."
        raise InvalidFileError(path, problem, where=where.lstrip("."))
    return value
