"""Datasets: measured latencies as CSV tables, and a manifest of the runs.

`lat_datasets/<soc>/t_<op>_<variant>.csv` holds one row a measurement, including failures. A row
has the text of the whole op (its group in cross-validation), the text of the measured part, and the
source of the latency. Features are not stored: the kernel variant computes them from the part's
text, in training and planning alike. Results name their dataset by digest.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from codl import files
from codl.errors import InvalidFileError, UnwritableFileError
from codl.files import inside, own_or_shipped
from codl.ir import yaml_file
from codl.ir.constants import digest
from codl.ir.ops.base import Dim
from codl.ir.records.results import Conditions
from codl.measure import FOLDER as FOLDER

#: Advice in errors of a full disk.
RESUMED = "What was there before is kept: make room, and go on with --resume."
Status = Literal["ok", "failed"]
RowT = TypeVar("RowT", bound="Row")
#: Separator of ops in the text of a chain.
SEPARATOR = "; "
#: Bytes read at a time.
CHUNK = 1 << 20
#: Largest valid latency: a day.
MOST_MS = 24 * 3600 * 1000.0
#: Columns with the conditions of a batch.
CONDITIONS = ("temperature_c", "cpu_mhz", "gpu_mhz", "battery_percent", "throttled")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Columns of every row in every file; latencies in milliseconds.

    `latency_ms` is the statistic of `codl.ir.records.statistic` over all `runs` samples, unless the
    run's protocol names another; `p20_ms` and `p80_ms` are percentiles. All are scaled to the
    machine's speed in the run's first batch. `source` is measured, replayed or simulated; `run`
    names the measurement run in the manifest. Failed rows have a `status` and a `reason`; their
    numbers are meaningless. The other columns are the batch's `Conditions`; `throttled` is
    separated by spaces.
    """

    latency_ms: float = 0.0
    p20_ms: float = 0.0
    p80_ms: float = 0.0
    runs: int = 0
    status: Status = "ok"
    reason: str = ""
    source: str = "measured"
    run: str = ""
    temperature_c: float | None = None
    cpu_mhz: float | None = None
    gpu_mhz: float | None = None
    battery_percent: float | None = None
    throttled: str = ""

    key_fields: ClassVar[tuple[str, ...]] = ()
    #: Columns with lists of ops or moves, which may be long.
    list_fields: ClassVar[tuple[str, ...]] = ()
    #: Columns missing in older files, where their defaults apply.
    later_fields: ClassVar[tuple[str, ...]] = CONDITIONS

    @property
    def key(self) -> tuple[Any, ...]:
        """The measurement's identity within its table, used to resume a collection."""
        return tuple(getattr(self, name) for name in self.key_fields)

    def under(self: RowT, conditions: Conditions) -> RowT:
        """A copy of the row with the columns of these conditions."""
        values = {name: getattr(conditions, name) for name in CONDITIONS}
        return replace(self, **values | {"throttled": " ".join(conditions.throttled)})


@dataclass(frozen=True, kw_only=True)
class OpRow(Row):
    """One kernel variant on a part of an op.

    `op` and `part` are operator texts. The measured `part` has a `share` (0 ... 1) of the output of
    `op` along `dim`; for the whole op, `share` is 1 and `dim` is H.
    """

    op: str
    dim: Dim
    share: Annotated[float, Meta(gt=0, le=1)]
    part: str

    key_fields: ClassVar[tuple[str, ...]] = ("op", "dim", "share")


@dataclass(frozen=True, kw_only=True)
class SharingRow(Row):
    """Making a region of a tensor visible to the other processor.

    `direction` is to_gpu, to_cpu, load (packing for the CPU's net), store (unpacking from it), or
    relayout (on the GPU, from its usual layout to another). `shape` is the region's text, `layout`
    the GPU's layout. Parts in milliseconds: `copy` on the CPU, `map`, `unmap`, the `transform`
    kernel between layouts, and `sync`, the wait for an empty queue (`WaitRow` covers the end of a
    kernel). `latency_ms` is the whole. With shared memory, `copy`, `map` and `unmap` are 0.
    """

    direction: str
    shape: str
    layout: str = "blocked float32"
    transform_ms: float = 0.0
    map_ms: float = 0.0
    sync_ms: float = 0.0
    unmap_ms: float = 0.0
    copy_ms: float = 0.0

    key_fields: ClassVar[tuple[str, ...]] = ("direction", "shape", "layout")
    later_fields: ClassVar[tuple[str, ...]] = ("layout", *Row.later_fields)


@dataclass(frozen=True, kw_only=True)
class DispatchRow(Row):
    """`count` tiny kernels, timed from enqueueing to their end."""

    processor: str
    count: int

    key_fields: ClassVar[tuple[str, ...]] = ("processor", "count")


@dataclass(frozen=True, kw_only=True)
class WaitRow(Row):
    """From a kernel's end to the CPU's notice by the kernel's event, after a wait of `gap_ms`."""

    gap_ms: float

    key_fields: ClassVar[tuple[str, ...]] = ("gap_ms",)


@dataclass(frozen=True, kw_only=True)
class StageRow(Row):
    """A stage of a small network, run after another stage: the latencies of its shards.

    `chain` are the texts of the stage's ops, each reading its predecessor; `before` is the op of
    the previous stage. Both are split along `dim` if possible; `gpu_ratio` is the GPU's share of
    `chain`. `cpu_ops` and `gpu_ops` are `variant op` of each processor, empty if it is idle.
    `cpu_calls` counts nets, `gpu_calls` kernels. `packed` are the nets' packed and unpacked
    tensors, as `load 1x64x28x56` or `store ...`. `cpu_ms` and `gpu_ms` are the times of nets and
    kernels in a profiled run; `latency_ms` is the larger one. Lists are separated by `; `.
    """

    before: str
    chain: str
    dim: Dim
    gpu_ratio: Annotated[float, Meta(ge=0, le=1)]
    cpu_ops: str = ""
    gpu_ops: str = ""
    cpu_calls: int = 0
    gpu_calls: int = 0
    packed: str = ""
    cpu_ms: float = 0.0
    gpu_ms: float = 0.0

    key_fields: ClassVar[tuple[str, ...]] = ("before", "chain", "dim", "gpu_ratio")
    list_fields: ClassVar[tuple[str, ...]] = ("cpu_ops", "gpu_ops", "packed")


class CsvTable(Generic[RowT]):
    """One CSV file of rows; a row is on disk when `append` returns.

    `runs` are the valid runs of rows to read (a row may name a part of one, behind a slash); None
    accepts every run.
    """

    def __init__(
        self, path: Path, row_type: type[RowT], runs: Collection[str] | None = None
    ) -> None:
        self.path, self._runs = path, runs
        self.row_type = row_type
        # Columns of the row type first, then the common ones.
        names, common = ([field.name for field in fields(kind)] for kind in (row_type, Row))
        self.columns = [*(n for n in names if n not in common), *(n for n in names if n in common)]
        self._optional = {field.name for field in fields(row_type) if field.default is None}

    def read(self) -> list[RowT]:
        """All rows; raises `InvalidFileError` with the line, the column and the value."""
        try:
            return list(self._rows()) if self.path.exists() else []
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidFileError(self.path, f"not CSV: {error}.") from error

    def append(self, *rows: RowT) -> None:
        """Append all rows or none, durably; raises `UnwritableFileError`, as for a full disk."""
        size = self.path.stat().st_size if self.path.exists() else 0
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        if not size:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab", buffering=0, opener=_open_itself) as file:
                try:
                    left = memoryview(text.getvalue().encode())
                    while left:  # a filling disk may accept a part before it fails
                        left = left[file.write(left) :]
                    os.fsync(file.fileno())
                except OSError:
                    with suppress(OSError):  # remove a partial row
                        file.truncate(size)
                    raise
        except OSError as error:
            raise UnwritableFileError(self.path, error, fix=RESUMED) from error

    def repair(self) -> bool:
        """Drop an unfinished last line, add newer columns, and convert the file to UTF-8.

        Returns whether the file changed. Raises `InvalidFileError` for an undecodable file.
        """
        if not self.path.exists():
            return False
        content = self.path.read_bytes()
        try:
            text = files.decoded(content)
        except UnicodeDecodeError as error:
            raise InvalidFileError(self.path, f"not CSV: {error}.") from error
        whole = text[: text.rfind("\n") + 1].encode()
        older = whole and whole.split(b"\n", 1)[0].decode().strip().split(",") != self.columns
        if whole == content and whole and not older:
            return False
        if not whole:  # the process died within the first line
            self.path.unlink()
            return True
        with files.writing(self.path) as partial:
            partial.write_bytes(whole)
            if older:
                rows = CsvTable(partial, self.row_type).read()
                partial.unlink()
                CsvTable(partial, self.row_type).append(*rows)
        return True

    def _rows(self) -> Iterator[RowT]:
        reader = files.csv_reader(files.decoded(self.path.read_bytes()))
        names, later = list(reader.fieldnames or ()), self.row_type.later_fields
        if names != [c for c in self.columns if c in names or c not in later]:
            missing = [c for c in self.columns if c not in (*names, *later)]
            unknown = [repr(c) for c in names if c not in self.columns]
            problems = [
                *([f"the columns {', '.join(missing)} are missing"] if missing else []),
                *([f"it has the unknown columns {', '.join(unknown)}"] if unknown else []),
            ]
            problem = "; ".join(problems) or f"the columns must stand as {self.columns}"
            raise InvalidFileError(self.path, f"{problem}.", where="line 1")
        for record in reader:
            where = f"line {reader.line_num}"
            if files.is_blank(record):
                continue
            if None in record or None in record.values():
                raise InvalidFileError(self.path, f"expected {len(names)} values.", where=where)
            yield self._row(record, where)

    def _row(self, record: dict[str, str], where: str) -> RowT:
        cells = {name: text for name, text in record.items() if text or name not in self._optional}
        try:
            row = msgspec.convert(cells, self.row_type, strict=False)
        except msgspec.ValidationError as error:
            raise yaml_file.explained(
                str(error), cells, self.row_type, self.path, within=where
            ) from error
        problem = ""
        for name, value in vars(row).items():
            if isinstance(value, float) and not isfinite(value):
                problem = f"{name} must be a finite number, got {record[name]!r}."
        if row.status == "ok" and not 0 < row.latency_ms <= MOST_MS:
            ms = record["latency_ms"]
            problem = f"latency_ms must be positive, and no more than a day, got {ms!r}."
        if self._runs is not None and row.run.partition("/")[0] not in ("", *self._runs):
            problem = f"run must be one of the manifest's, got {row.run!r}."
        if problem:
            raise InvalidFileError(self.path, problem, where=where)
        return row


#: Row types of tables other than kernel variants'.
ROW_TYPES: dict[str, type[Row]] = {
    "data_sharing": SharingRow,
    "dispatch": DispatchRow,
    "event_wait": WaitRow,
    "stage": StageRow,
}
#: Obsolete tables of earlier versions, which are ignored; muLayer's had copies of other rows.
FORMER_TABLES = re.compile("batch|cold|contention|first_launch|flag_wait|mulayer_.*")


class _Manifest(TypedDict):
    """Required keys of a manifest."""

    source: str
    runs: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Dataset:
    """The files of one SoC under `lat_datasets/`."""

    folder: Path

    @classmethod
    def of(cls, soc: str, root: Path = FOLDER) -> Dataset:
        """The dataset of a SoC under `root`, for writing."""
        return cls(inside(root, soc))

    @classmethod
    def found(cls, soc: str, root: Path = FOLDER) -> Dataset:
        """The dataset of a SoC under `root`; the default root falls back to codl's own datasets."""
        inside(root, soc)
        return cls(own_or_shipped(soc, root, FOLDER))

    @classmethod
    def at(cls, folder: Path) -> Dataset:
        """The dataset in a folder; the default root falls back to codl's own datasets."""
        return cls(own_or_shipped(folder.name, folder.parent, FOLDER))

    def table(self, name: str) -> CsvTable[Any]:
        """The table of a kernel variant, such as `conv2d_cpu_gemm`, or one of `ROW_TYPES`."""
        return CsvTable(inside(self.folder, f"t_{name}.csv"), ROW_TYPES.get(name, OpRow))

    def tables(self) -> dict[str, CsvTable[Any]]:
        """Every table with a file, by name (the file's, without `t_` and `.csv`)."""
        names = (path.stem[2:] for path in sorted(self.folder.glob("t_*.csv")))
        runs = self.manifest()["runs"].keys() if self.manifest_path.exists() else None
        tables = {n: self.table(n) for n in names if not FORMER_TABLES.fullmatch(n)}
        return {name: CsvTable(table.path, table.row_type, runs) for name, table in tables.items()}

    def calibration(self) -> dict[str, dict[str, float]]:
        """The slowdown of each processor relative to the first run, by run, from the manifest."""
        runs = self.manifest()["runs"] if self.manifest_path.exists() else {}
        return {name: dict(run.get("calibration", {})) for name, run in runs.items()}

    @property
    def manifest_path(self) -> Path:
        return self.folder / "manifest.json"

    def manifest(self) -> dict[str, Any]:
        """The manifest's content; raises `InvalidFileError` for a missing or invalid manifest."""
        if not self.manifest_path.exists():
            fix = f"`codl collect --soc {self.folder.name} --serial local` measures one."
            raise InvalidFileError(self.folder, "there is no dataset here.", fix=fix)
        content: dict[str, Any] = files.read_json(self.manifest_path)
        yaml_file.convert(content, _Manifest, self.manifest_path)
        return content

    def write_manifest(self, content: dict[str, Any]) -> None:
        files.write(self.manifest_path, json.dumps(content, indent=2) + "\n", fix=RESUMED)


def _open_itself(path: str, flags: int) -> int:
    """Open a file without following links, which could lead outside a foreign dataset's folder."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def dataset_digest(dataset: Dataset) -> str:
    """A digest of a dataset's files, empty without any; raises `OSError` for an unreadable one."""
    lines = []
    for path in sorted([*dataset.folder.glob("*.csv"), *dataset.folder.glob("*.json")]):
        content = sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                content.update(chunk)
        lines.append(f"{path.name} {content.hexdigest()}")
    return digest("\n".join(lines))[:16] if lines else ""
