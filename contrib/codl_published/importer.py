"""Imports other people's tables as datasets: `codl dataset import`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from codl import files
from codl.errors import CodlError, InvalidFileError, MismatchError
from codl.files import now, provenance
from codl.ir import yaml_file
from codl.ir.records import soc as socs
from codl.ir.records.soc import CpuSide, GpuSide, PublishedSoc, Soc
from codl.kernels import registry
from codl.measure.collector import open_manifest
from codl.measure.dataset import Dataset
from codl_published.mapped_tables import TableMapping, load_mapping, read_mapped, shipped
from codl_published.original_tables import read_original
from codl_published.tables import ImportedRows

#: Facts of a SoC that its mapping does not give: 0 or "unknown", or what phones usually have.
UNKNOWN: Mapping[str, Mapping[str, Any]] = {
    "cpu": {"name": "unknown", "threads": 1, "simd_floats": 4, "l2_cache_bytes": 0},
    "gpu": {
        "platform": "unknown",
        "name": "unknown",
        "driver": "unknown",
        "type": "gpu",
        "compute_units": 1,
        "max_work_group_size": 256,
        "wave_size": 32,
        "vector_width": 4,
        "global_mem_cache_size": 0,
        "local_mem_bytes": 0,
        "unified_memory": True,
    },
}


@dataclass(frozen=True)
class Imported:
    """Counts of rows, of lines that were left out by their reasons, and the files.

    `source` is always replayed; `soc_file` is None unless it was written now.
    """

    rows: int
    failed: int
    soc: str
    source: str
    run: str
    skipped: Mapping[str, int]
    files: tuple[str, ...]
    soc_file: str | None = None


def import_tables(
    paths: Sequence[Path],
    name: str,
    *,
    mapping_file: Path | None = None,
    device: str | None = None,
    root: Path,
    write_soc: bool = False,
    resume: bool = False,
) -> Imported:
    """Import tables of one SoC; nothing is written unless every line of all of them was read.

    Raises `InvalidFileError` with the line or key that is wrong, `CodlError` where there is a
    dataset and `resume` is not set, or where a file was imported before, and `MismatchError` where
    the dataset is one of another SoC or of our own measurements.
    """
    for path in paths:
        if not path.is_file():
            raise InvalidFileError(path, "there is no such file.")
    device = device or name
    mapping_file = shipped(mapping_file) if mapping_file else None
    mapping = load_mapping(mapping_file, device) if mapping_file else None
    known = mapping.socs.get(device) if mapping else None
    soc, is_new = _soc(name, known, mapping_file, device, write_soc)
    dataset = Dataset.of(name, root)
    with files.locked(dataset.folder):
        manifest = open_manifest(dataset, soc, soc.source, resume=resume)
        run = f"import{len(manifest['runs']) + 1}"
        origin = _origin(paths, mapping, mapping_file, device)
        _refuse_twice(manifest, origin, dataset)
        imported, layout = ImportedRows(), str(registry.storages(soc)[0])
        for path in paths:
            if mapping is None or mapping_file is None:
                read_original(path, imported, run=run, layout=layout)
            else:
                read_mapped(
                    path, mapping_file, mapping, imported, device=device, run=run, layout=layout
                )
        if not imported.rows:
            skipped = "; ".join(f"{why}: {count} lines" for why, count in imported.skipped.items())
            raise CodlError(f"The tables hold no row for {name!r}. {skipped or 'They are empty.'}")
        if is_new:
            soc.save(socs.own_path_of(name))
        for table_name, added in imported.rows.items():
            dataset.table(table_name).repair()
            dataset.table(table_name).append(*added)
        tables = [dataset.table(table_name) for table_name in dataset.tables()]
        manifest["files"] = {table.path.name: len(table.read()) for table in tables}
        manifest["runs"][run] = {**provenance(), **origin, "ended": now()}
        dataset.write_manifest(manifest)
    rows = [row for table_name in imported.rows.values() for row in table_name]
    return Imported(
        rows=len(rows),
        failed=sum(row.status == "failed" for row in rows),
        soc=name,
        source=soc.source,
        run=run,
        skipped=imported.skipped,
        files=tuple(str(dataset.table(table_name).path) for table_name in imported.rows),
        soc_file=str(socs.own_path_of(name)) if is_new else None,
    )


def _soc(
    name: str,
    known: Mapping[str, Any] | None,
    mapping_file: Path | None,
    device: str,
    write_soc: bool,
) -> tuple[Soc, bool]:
    """The SoC, and whether its file is new; `known` are the mapping's facts."""
    path = socs.path_of(name)
    before = socs.read(path) if path.exists() else None
    if isinstance(before, Soc):
        if not before.is_replayed:
            raise MismatchError(
                f"{path} describes a SoC whose latencies are {before.source} by codl itself; "
                "other people's cannot be mixed with them. Import under another name by --soc."
            )
        if write_soc and known is not None and describe(name, known, mapping_file) != before:
            raise CodlError(
                f"{path} is there and describes {name!r} otherwise than {mapping_file} does. "
                "Delete it, or import without --write-soc."
            )
        return before, False
    if not write_soc:
        problem = f"There is no {path}" if before is None else f"{path} has only published facts"
        raise CodlError(
            f"{problem}: --write-soc makes {socs.own_path_of(name)}, from what the mapping says "
            f"under socs.{device} where it does."
        )
    return describe(name, known or {}, mapping_file, published=before), True


def describe(
    name: str,
    known: Mapping[str, Any],
    mapping_file: Path | None = None,
    *,
    published: PublishedSoc | None = None,
) -> Soc:
    """A replayed SoC; facts that are `known` replace published ones."""
    path = mapping_file or Path(f"{name}.yaml")
    sides = {}
    for side, kind in (("cpu", CpuSide), ("gpu", GpuSide)):
        if not isinstance(known.get(side, {}), dict):
            raise CodlError(f"{path}, socs: {side} must be a mapping, got {known[side]!r}.")
        keys = {field.name for field in fields(kind)}
        facts = published.known(side) if published else {}
        kept = {key: value for key, value in facts.items() if key in keys}
        sides[side] = {**UNKNOWN[side], **kept, **known.get(side, {})}
    chip = f"{published.description}, " if published else ""
    content = {
        "name": name,
        "description": f"{chip}replayed from somebody's measurements",
        "sources": dict(published.sources) if published else {},
        **known,
        **sides,
        "source": "replayed",
    }
    return socs.from_dict(content, path)


def _origin(
    paths: Sequence[Path], mapping: TableMapping | None, mapping_file: Path | None, device: str
) -> dict[str, Any]:
    """The files and the mapping of a run, for the manifest."""
    tables = [{"file": path.name, "sha256": _digest(path)} for path in paths]
    origin: dict[str, Any] = {"source": "replayed", "tables": tables, "device": device}
    if mapping is None or mapping_file is None:
        return {**origin, "format": "the original CoDL's"}
    content = yaml_file.read_content(mapping_file)
    kept = {key: value for key, value in content.items() if key not in ("socs", "origin")}
    file = {"file": mapping_file.name, "sha256": _digest(mapping_file)}
    return {**origin, "origin": mapping.origin, "mapping": {**file, "content": kept}}


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _refuse_twice(manifest: Mapping[str, Any], origin: Mapping[str, Any], dataset: Dataset) -> None:
    """A table that is there already would count twice."""
    for run, old in manifest["runs"].items():
        for table in origin["tables"]:
            same = old.get("device") == origin["device"] and (
                old.get("mapping", {}).get("content") == origin.get("mapping", {}).get("content")
            )
            if same and table["sha256"] in [t.get("sha256") for t in old.get("tables", [])]:
                raise CodlError(
                    f"{table['file']} was imported into {dataset.folder} before, as {run}. Delete "
                    "the folder to import anew."
                )
