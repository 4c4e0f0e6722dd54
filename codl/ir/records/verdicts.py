"""Verdicts of evaluations (the fastest way to run a model on a machine), and their file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from codl import files
from codl.files import HOME, now
from codl.ir import yaml_file
from codl.ir.records.results import Amount, Source

#: Folder of verdicts, with a file for each SoC.
FOLDER = HOME / "verdicts"
FIX = "`codl eval` makes a new one; the file can be removed."
#: A split plan, one processor alone, or another library on all cores.
Kind = Literal["plan", "processor", "library"]


@dataclass(frozen=True, kw_only=True)
class ModelVerdict:
    """The fastest way to run a model with right outputs, in one evaluation.

    `use` names a strategy or a library. `next` is the second fastest, and `margin` its extra time
    as a share; "" and None if nothing else ran. `is_clear` is False if their spreads overlap.
    `sentence` is the verdict as text, and `snippet` the Python code that runs it.
    """

    model: str
    soc: str
    use: str
    kind: Kind
    latency_ms: Amount
    source: Source
    sentence: str
    next: str = ""
    next_ms: Amount | None = None
    margin: float | None = None
    is_clear: bool = True
    snippet: str = ""


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """A verdict, the digest of the model's structure, and the verdict's time."""

    verdict: ModelVerdict
    digest: str
    created: str


@dataclass(frozen=True, kw_only=True)
class _File:
    """Content of a file of verdicts, by model."""

    version: Literal[1]
    models: dict[str, Remembered]


def remember(
    verdicts: Iterable[ModelVerdict], digests: Mapping[str, str], soc: str, folder: Path = FOLDER
) -> Path | None:
    """Save measured verdicts of a SoC in place of earlier ones for the same models.

    `digests` are of the models' structures. Writes no file, and returns None, without verdicts.
    """
    new = {
        verdict.model: Remembered(verdict=verdict, digest=digests[verdict.model], created=now())
        for verdict in verdicts
        if verdict.source == "measured" and verdict.model in digests
    }
    if not new:
        return None
    kept = {**remembered(soc, folder), **new}
    content = asdict(_File(version=1, models=kept))
    return files.write(_path(soc, folder), json.dumps(content, indent=1) + "\n")


def remembered(soc: str, folder: Path = FOLDER) -> dict[str, Remembered]:
    """Verdicts of a SoC by model; raises `InvalidFileError` for an invalid file."""
    path = _path(soc, folder)
    if not path.is_file():
        return {}
    return yaml_file.convert(files.read_json(path, fix=FIX), _File, path, fix=FIX).models


def _path(soc: str, folder: Path) -> Path:
    return files.inside(folder, f"{soc}.json")
