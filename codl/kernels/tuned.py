"""Tuned choices: what `codl tune` found on a device, and the one way to ask a variant for a plan.

Whoever plans or featurises a GPU variant does it by `plan` and `features` here, so that measuring,
training, planning and running never differ in the choice they mean. There is a file a device,
driver and host, of JSON that a person can read. A result counts only for the kernel source that it
was measured with, and only while its choice is still among the variant's; otherwise the variant's
first choice holds, as it does where nothing was tuned.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from codl import cache
from codl.errors import CodlError, CodlWarning
from codl.ir.columns import (
    FeatureColumns,
    columns_of,
)
from codl.ir.op_text import parse, to_text
from codl.ir.ops.base import Op
from codl.ir.region import Shape
from codl.ir.soc import Soc
from codl.kernels.base import Choice, GpuVariant, KernelPlan
from codl.kernels.source import source_digest
from codl.kernels.tuning import Trial, Tuned

FOLDER = "tuning"
#: What of a SoC's GPU side does not matter to how fast a choice is.
_ELSEWHERE = {"icd", "cores", "memory_types", "element"}


@dataclass(frozen=True)
class Tuning:
    """The results of one device, as they were when they were read."""

    path: Path
    device: Mapping[str, Any]
    results: Mapping[tuple[str, str], Tuned]

    @classmethod
    def read(cls, path: Path, device: Mapping[str, Any]) -> Tuning:
        """Read a file; one that is missing or must not be believed has no results."""
        try:
            results = _parse(path.read_text(), device)
            with suppress(OSError):
                os.utime(path)  # what is used is pruned last
        except FileNotFoundError:
            results = []
        except (OSError, ValueError, TypeError, KeyError) as error:
            text = f"{path} is not used: {error}. `codl tune` makes it anew."
            warnings.warn(text, CodlWarning, stacklevel=2)
            results = []
        return cls(path, device, {result.key: result for result in results})

    @cached_property
    def _shapes(self) -> Mapping[str, set[tuple[Shape, ...]]]:
        """The inputs of every variant's results: other ops need no closer look."""
        found: dict[str, set[tuple[Shape, ...]]] = {}
        for op, variant in self.results:
            with suppress(CodlError):  # of an op that is written otherwise by now
                found.setdefault(variant, set()).add(parse(op).inputs)
        return found

    def likely(self, variant: GpuVariant, ops: Sequence[Op]) -> list[int]:
        """The places of the ops that may have a result."""
        known = self._shapes.get(variant.name)
        if not known:
            return []
        return [at for at, op in enumerate(ops) if op.inputs in known or op.inputs[0].n > 1]

    def find(self, variant: GpuVariant, op: Op, soc: Soc) -> Tuned | None:
        """The result for an op, if it was measured with the source and choices of now.

        Of a batch whose kernels compute one image at a time it is that for one image.
        """
        if not self.likely(variant, [op]):
            return None
        if op.images > 1 and not variant.plan(op, soc).whole_batch:
            op = op.one_image
        found = self.results.get((to_text(op), variant.name))
        if found is None or dict(found.choice) not in map(dict, variant.choices(op, soc)):
            return None
        source = source_digest(variant.plan(op, soc, found.choice))
        return found if source == found.source else None


def path_of(soc: Soc) -> Path:
    """The file of a SoC's device."""
    return cache.folder() / FOLDER / _file_name(soc)


@lru_cache(maxsize=64)
def _file_name(soc: Soc) -> str:
    device = device_of(soc)
    name = re.sub(r"\W+", "-", f"{device['platform']} {device['name']}".lower()).strip("-")
    return f"{name}-{cache.digest(device)[:12]}.json"


def device_of(soc: Soc) -> dict[str, Any]:
    """All that a result depends on but the op and the variant."""
    gpu = {k: v for k, v in asdict(soc.gpu).items() if k not in _ELSEWHERE}
    # Drivers for CPUs give models the same name, and kernels are cut for the SoC's cache.
    return gpu | {"host": soc.cpu.name, "l2_cache_bytes": soc.cpu.l2_cache_bytes}


def tuning(soc: Soc) -> Tuning:
    """The results for a SoC; read once, so that a process never changes its mind."""
    return _read(path_of(soc), soc)


@lru_cache(maxsize=64)
def _read(path: Path, soc: Soc) -> Tuning:
    return Tuning.read(path, device_of(soc))


def save(soc: Soc, results: Iterable[Tuned]) -> Tuning:
    """Add results to the file, beside what other processes wrote; raises `CodlError`."""
    path, device = path_of(soc), device_of(soc)
    try:
        with cache.locked(path):
            merged = {**Tuning.read(path, device).results, **{r.key: r for r in results}}
            cache.write(path, _format(list(merged.values()), device).encode())
    except OSError as error:
        raise CodlError(
            f"The tuning results cannot be written: {error}. Set {cache.VARIABLE} to a folder "
            "that can."
        ) from error
    _read.cache_clear()
    return tuning(soc)


def choice(variant: GpuVariant, op: Op, soc: Soc) -> Choice | None:
    """The tuned choice; None where the variant's first holds."""
    found = tuning(soc).find(variant, op, soc)
    return None if found is None else found.choice


def fingerprint(soc: Soc) -> str:
    """Says which choices hold on a SoC beside the defaults; what was measured under another is old.

    "" where there are none.
    """
    gained = [r for r in tuning(soc).results.values() if r.best_ms != r.default_ms]
    chosen = {f"{r.op} {r.variant} {r.source}": dict(r.choice) for r in gained}
    return cache.digest(chosen)[:12] if chosen else ""


def plan(variant: GpuVariant, op: Op, soc: Soc) -> KernelPlan:
    """The kernels of a GPU variant for an op, in its tuned choice where there is one."""
    chosen = choice(variant, op, soc)
    return variant.plan(op, soc) if chosen is None else variant.plan(op, soc, chosen)


def features(variant: Any, op: Op, soc: Soc) -> dict[str, float]:
    """The features of a variant of either processor, in its tuned choice where there is one."""
    return feature_rows(variant, [op], soc)[0]


def feature_columns(variant: Any, ops: Sequence[Op], soc: Soc) -> FeatureColumns:
    """The features of many ops at once, as `features` has them for one.

    For a variant that writes its features over columns (see `codl.kernels.feature_columns`).
    """
    found: FeatureColumns
    columns = columns_of(variant.op_columns, ops)
    chosen = {} if variant.processor == "cpu" else _choices(variant, ops, soc)
    if not chosen:
        found = variant.feature_columns(columns, soc)
        return found
    default = variant.default_columns(columns, soc)
    choices = {name: np.array(np.broadcast_to(rows, len(ops))) for name, rows in default.items()}
    for at, own in chosen.items():
        for name, value in own.items():
            choices[name][at] = value
    found = variant.feature_columns(columns, soc, choices)
    return found


def feature_rows(variant: Any, ops: Sequence[Op], soc: Soc) -> list[dict[str, float]]:
    """The features of many ops, as `features` has them for one; of a variant without columns."""
    if variant.processor == "cpu":
        return [variant.features(op, soc) for op in ops]
    chosen = _choices(variant, ops, soc)
    return [variant.features(op, soc, chosen.get(at)) for at, op in enumerate(ops)]


def _choices(variant: GpuVariant, ops: Sequence[Op], soc: Soc) -> dict[int, Choice]:
    """The tuned choices by the op's place; the others' first holds."""
    known = tuning(soc)
    found = {at: known.find(variant, ops[at], soc) for at in known.likely(variant, ops)}
    return {at: one.choice for at, one in found.items() if one is not None}


def _format(results: list[Tuned], device: Mapping[str, Any]) -> str:
    """The file's text: a line for every trial."""
    rows = [asdict(result) for result in sorted(results, key=lambda result: result.key)]
    head = {"version": cache.VERSION, "device": device, "sha256": _checksum(device, rows)}
    body = ",\n".join(_format_row(row) for row in rows)
    return json.dumps(head, indent=1)[:-2] + ',\n "results": [\n' + body + "\n]}\n"


def _format_row(row: Mapping[str, Any]) -> str:
    lines = ",\n".join(f"   {json.dumps(trial)}" for trial in row["trials"])
    head = json.dumps({k: v for k, v in row.items() if k != "trials"})
    return f"  {head[:-1]}, " + f'"trials": [\n{lines}]}}'


def _parse(text: str, device: Mapping[str, Any]) -> list[Tuned]:
    """The results in a file's text; raises `ValueError`, `TypeError` or `KeyError`."""
    content = json.loads(text)
    if content["version"] != cache.VERSION:
        raise ValueError(f"its version is {content['version']}, expected {cache.VERSION}")
    if content["device"] != json.loads(json.dumps(device)):
        raise ValueError("it is of another device")
    if content["sha256"] != _checksum(device, content["results"]):
        raise ValueError("its checksum is wrong")
    return [
        Tuned(**{**row, "trials": tuple(Trial(**trial) for trial in row["trials"])})
        for row in content["results"]
    ]


def _checksum(device: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    return cache.digest({"device": device, "results": rows})
