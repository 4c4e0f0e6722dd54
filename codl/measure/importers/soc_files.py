"""The original CoDL's SoC files: four facts about a GPU, read unchanged."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from codl import yaml_file
from codl.errors import CodlError, InvalidFileError
from codl.records import soc as socs
from codl.records.published_soc import PublishedCpu, PublishedGpu, PublishedSoc
from codl.records.soc import Soc
from codl.yaml_file import NotNegative, Positive

#: Our keys of a GPU by the original's.
KEYS = {
    "global_mem_cache_size": "global_mem_cache_size",
    "compute_units": "compute_units",
    "max_work_group_size": "max_work_group_size",
    "kernel_wave_size": "wave_size",
}
NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)


@dataclass(frozen=True)
class OriginalSoc:
    """What the original's file of a SoC holds; the sizes are in bytes and work-items."""

    global_mem_cache_size: NotNegative
    compute_units: Positive
    max_work_group_size: Positive
    kernel_wave_size: Positive


def import_soc(path: Path, name: str) -> tuple[PublishedSoc, Path]:
    """Write the SoC `name` with the facts of one of the original's files; the SoC and its file.

    Of a SoC with published facts that comes with codl, the other facts stay. Raises
    `InvalidFileError` with the key that is wrong, and `CodlError` for a name that cannot be one, or
    that is taken.
    """
    if not NAME.fullmatch(name):
        raise CodlError(f"A SoC's name has letters, digits, _ and - alone, got {name!r}.")
    own = socs.own_path_of(name)
    if own.exists():
        raise CodlError(f"{own} is there: delete it, or import under another --name.")
    if not path.is_file():
        raise InvalidFileError(path, "there is no such file.")
    soc = _with(_known(name), yaml_file.read(path, OriginalSoc), path)
    return soc, soc.save(own)


def _known(name: str) -> PublishedSoc:
    """What is published of the SoC already."""
    there = socs.read(name) if name in socs.names() else None
    if isinstance(there, Soc):
        raise CodlError(
            f"The SoC {name!r} comes with codl, and its latencies are {there.source}: import under "
            "another --name."
        )
    if there is not None:
        return there
    return PublishedSoc(name, "", PublishedCpu(), PublishedGpu(), {})


def _with(known: PublishedSoc, given: OriginalSoc, path: Path) -> PublishedSoc:
    values = {own: getattr(given, key) for key, own in KEYS.items()}
    sources = {f"gpu.{own}": f"{key} in {path.name}" for key, own in KEYS.items()}
    return replace(
        known,
        description=known.description or f"four facts about its GPU, from {path.name}",
        gpu=replace(known.gpu, **values),
        sources={**known.sources, **sources},
    )
