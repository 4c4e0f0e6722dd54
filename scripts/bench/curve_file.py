"""The result file of a curve: evaluations on SoCs of several sizes, written after every model."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codl.errors import InvalidFileError
from codl.files import provenance

sys.path.append(str(Path(__file__).parents[1]))
from curves import CurveResult, load_curve, parse_curve

#: Whose latencies make a point.
STRATEGIES = ("cpu", "gpu", "codl")
VERSION = 1


class CurveFile:
    """The evaluations of a file, as `codl eval` writes them, which grow by one model at a time."""

    def __init__(self, path: Path, commit: str = "") -> None:
        """Read it, where it is there; raises `InvalidFileError` for another kind of file.

        What is added is of codl at `commit`, or at that of its checkout.
        """
        self.path = path
        self._commit = {"commit": commit} if commit else {}
        self._evaluations: list[dict[str, Any]] = []
        if path.exists():
            if not isinstance(load_curve(path), CurveResult):
                raise InvalidFileError(path, "holds no curve: name another file by -o.")
            self._evaluations = json.loads(path.read_text(encoding="utf-8"))["evaluations"]

    def has(self, soc: str, model: str) -> bool:
        """Whether a model was tried on a SoC, with whatever success."""
        return any(row["model"] == model for row in self._rows(soc))

    def is_measured(self, soc: str, model: str) -> bool:
        """Whether there is a point."""
        fine = [r for r in self._rows(soc) if r["model"] == model and r["status"] == "ok"]
        return {row["strategy"] for row in fine} >= {*STRATEGIES}

    def forget(self, soc: str, models: Sequence[str]) -> None:
        """Leave out the rows of models that are to be measured again."""
        for evaluation in self._of(soc):
            evaluation["rows"] = [r for r in evaluation["rows"] if r["model"] not in models]
        if any(not own["rows"] for own in self._evaluations):
            self._evaluations = [own for own in self._evaluations if own["rows"]]
        if self.path.exists():
            self._write()

    def add(
        self,
        soc: Mapping[str, Any],
        serial: str,
        rows: Sequence[dict[str, Any]],
        recorded: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a model's rows and write the file: whatever happens next, they are there.

        `recorded` has the environment and the digests, where something was measured.
        """
        origin = {**provenance(), **self._commit, "soc": soc, "serial": serial, **(recorded or {})}
        known = [own for own in self._of(soc["name"]) if _is_like(own, origin)]
        if known:
            if before := known[-1].get("digests"):
                models = {**before["models"], **origin.get("digests", before)["models"]}
                origin["digests"] = {**before, "models": models}
            known[-1].update(origin)
            known[-1]["rows"] += rows
        else:
            head = {"command": "eval", "version": VERSION}
            self._evaluations.append({**head, **origin, "rows": list(rows)})
        self._write()

    def _write(self) -> None:
        origin = {**provenance(), **self._commit}
        head = {"command": CurveResult.command, "version": VERSION, **origin}
        content = {**head, "evaluations": self._evaluations}
        parse_curve(content, self.path)  # so that no file is written that cannot be read
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".tmp")
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(self.path)

    def _of(self, soc: str) -> list[dict[str, Any]]:
        return [own for own in self._evaluations if own["soc"]["name"] == soc]

    def _rows(self, soc: str) -> list[dict[str, Any]]:
        return [row for evaluation in self._of(soc) for row in evaluation["rows"]]


def failed(model: str, reason: str) -> list[dict[str, Any]]:
    """The rows of a model that could not be measured at all."""
    row = {"latency_ms": None, "predicted_ms": None, "source": "measured", "status": "failed"}
    return [
        {"model": model, "strategy": name, **row, "reason": reason or "no reason was given"}
        for name in STRATEGIES
    ]


def _is_like(evaluation: Mapping[str, Any], origin: Mapping[str, Any]) -> bool:
    """Whether an evaluation is by the same codl, of the same data, on the same device as it is."""
    same = all(evaluation[key] == origin[key] for key in ("codl", "commit", "serial", "soc"))
    of = [own for own in (evaluation, origin) if "digests" in own]
    return same and all(_lasting(own) == _lasting(of[0]) for own in of)


def _lasting(evaluation: Mapping[str, Any]) -> tuple[Any, ...]:
    """What does not change from model to model."""
    environment, digests = evaluation["environment"] or {}, evaluation["digests"]
    return {**environment, "clocks_mhz": None}, digests["dataset"], digests["tuning"]
