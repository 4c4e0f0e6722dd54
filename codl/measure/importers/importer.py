"""`codl dataset import`: reads every table first, then writes rows, a manifest and the SoC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from codl import files
from codl.errors import CodlError, InvalidFileError, MismatchError
from codl.kernels import registry
from codl.measure.dataset import Dataset, Table
from codl.measure.importers.codl_tables import read_original
from codl.measure.importers.mapping import TableMapping, load_mapping
from codl.measure.importers.rows import DATA_SHARING, Found, read_mapped
from codl.provenance import now, provenance
from codl.records import soc as socs
from codl.records.published_soc import PublishedSoc
from codl.records.soc import CpuSide, GpuSide, Soc

#: What a SoC is taken to be where its mapping does not say: 0 and "unknown" where nobody knows,
#: else what phones usually have.
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
    """What was written: `rows` of all tables, `failed` among them; lines left out, by the reason.

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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
    mapping = load_mapping(mapping_file, device) if mapping_file else None
    described, is_new = _soc(name, mapping, device, write_soc)
    dataset = Dataset.of(name, root)
    with files.locked(dataset.folder):
        manifest = _manifest(dataset, described, resume)
        run = f"import{len(manifest['runs']) + 1}"
        origin = _origin(paths, mapping, device)
        _refuse_twice(manifest, origin, dataset)
        found = _read(paths, mapping, device=device, run=run, soc=described)
        if not found.rows:
            skipped = "; ".join(f"{why}: {count} lines" for why, count in found.skipped.items())
            raise CodlError(f"The tables hold no row for {name!r}. {skipped or 'They are empty.'}")
        if is_new:
            described.save(socs.own_path_of(name))
        manifest["runs"][run] = {**provenance(), **origin, "ended": now()}
        _write(dataset, found, manifest)
    rows = [row for own in found.rows.values() for row in own]
    return Imported(
        rows=len(rows),
        failed=sum(row.status == "failed" for row in rows),
        soc=name,
        source=described.source,
        run=run,
        skipped=found.skipped,
        files=tuple(str(_table(dataset, table).path) for table in found.rows),
        soc_file=str(socs.own_path_of(name)) if is_new else None,
    )


def _read(
    paths: Sequence[Path], mapping: TableMapping | None, *, device: str, run: str, soc: Soc
) -> Found:
    found, layout = Found(), str(registry.storages(soc)[0])
    for path in paths:
        if mapping is None:
            read_original(path, found, run=run, layout=layout)
        else:
            read_mapped(path, mapping, found, device=device, run=run, layout=layout)
    return found


def _soc(name: str, mapping: TableMapping | None, device: str, write_soc: bool) -> tuple[Soc, bool]:
    """The SoC, and whether its file is still to be written."""
    path = socs.path_of(name)
    given = mapping.socs.get(device) if mapping else None
    there = socs.read(path) if path.exists() else None
    if isinstance(there, Soc):
        if not there.is_replayed:
            raise MismatchError(
                f"{path} describes a SoC whose latencies are {there.source} by codl itself; "
                "somebody else's cannot be mixed with them. Import under another name by --soc."
            )
        if write_soc and given is not None and describe(name, given, mapping) != there:
            raise CodlError(
                f"{path} is there and describes {name!r} otherwise than {mapping.path} does. "  # type: ignore[union-attr]
                "Delete it, or import without --write-soc."
            )
        return there, False
    if not write_soc:
        problem = f"There is no {path}" if there is None else f"{path} has published facts alone"
        raise CodlError(
            f"{problem}: --write-soc makes {socs.own_path_of(name)}, from what the mapping says "
            f"under socs.{device} where it does."
        )
    return describe(name, given or {}, mapping, published=there), True


def describe(
    name: str,
    given: Mapping[str, Any],
    mapping: TableMapping | None,
    *,
    published: PublishedSoc | None = None,
) -> Soc:
    """A replayed SoC from what is known of it; what is given goes before what was published."""
    path = mapping.path if mapping else Path(f"{name}.yaml")
    for side in ("cpu", "gpu"):
        if not isinstance(given.get(side, {}), dict):
            raise CodlError(f"{path}, socs: {side} must be a mapping, got {given[side]!r}.")
    cpu, gpu = (
        {**UNKNOWN[side], **_published(published, side), **given.get(side, {})}
        for side in ("cpu", "gpu")
    )
    chip = f"{published.description}, " if published else ""
    content = {
        "name": name,
        "description": f"{chip}replayed from somebody's measurements",
        "sources": dict(published.sources) if published else {},
        **given,
        "cpu": cpu,
        "gpu": gpu,
        "source": "replayed",
    }
    return socs.from_dict(content, path)


def _published(soc: PublishedSoc | None, side: str) -> dict[str, Any]:
    """The facts of one side that a replayed SoC has keys for."""
    if soc is None:
        return {}
    keys = {own.name for own in fields(CpuSide if side == "cpu" else GpuSide)}
    return {key: value for key, value in soc.known(side).items() if key in keys}


def _manifest(dataset: Dataset, soc: Soc, resume: bool) -> dict[str, Any]:
    if dataset.manifest_path.exists() or dataset.tables():
        if not resume:
            raise CodlError(
                f"{dataset.folder} holds a dataset. Add to it by --resume, or write another by "
                "-o DIR."
            )
        manifest = dataset.manifest()
        if not soc.is_as_in(manifest.get("soc")):
            raise MismatchError(
                f"{dataset.manifest_path} describes another SoC than socs/{soc.name}.yaml does "
                "now; rows of both cannot be mixed. Write another dataset by -o DIR."
            )
        return manifest
    return {"runs": {}, "source": soc.source, "soc": soc.to_dict()}


def _origin(paths: Sequence[Path], mapping: TableMapping | None, device: str) -> dict[str, Any]:
    """Which files, by what mapping: what the manifest keeps of a run."""
    tables = [{"file": path.name, "sha256": _digest(path)} for path in paths if path.is_file()]
    origin: dict[str, Any] = {"source": "replayed", "tables": tables, "device": device}
    if mapping is None:
        return {**origin, "format": "the original CoDL's"}
    kept = {key: value for key, value in mapping.content.items() if key not in ("socs", "origin")}
    file = {"file": mapping.path.name, "sha256": _digest(mapping.path)}
    return {**origin, "origin": dict(mapping.origin), "mapping": {**file, "content": kept}}


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


def _table(dataset: Dataset, name: str) -> Table[Any]:
    return dataset.sharing() if name == DATA_SHARING else dataset.ops(name)


def _write(dataset: Dataset, found: Found, manifest: dict[str, Any]) -> None:
    for name, rows in found.rows.items():
        table = _table(dataset, name)
        table.repair()
        table.extend(rows)
    # The manifest does not have the run yet.
    tables = [dataset.table(name) for name in dataset.tables()]
    counts = {table.path.name: len(table.read()) for table in tables}
    dataset.write_manifest({**manifest, "files": counts})
