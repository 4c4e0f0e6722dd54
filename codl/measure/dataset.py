"""Datasets: what was measured, as CSV files that a person can open, and a manifest.

`lat_datasets/<soc>/t_<op>_<variant>.csv` holds one row a measurement, failed ones included. A row
carries the text of the whole op (the group by which rows are held out), of the part that ran, and
where the number comes from. Features are never stored: they are computed from the part's text by
the kernel variant itself, so training and planning cannot differ.

Results say by digests on what rows they rest.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from codl import files, yaml_file
from codl.errors import InvalidFileError, UnwritableFileError
from codl.files import inside
from codl.ir.constants import digest
from codl.ir.ops.base import Dim
from codl.measure import FOLDER as FOLDER
from codl.provenance import own_or_shipped
from codl.records import statistic
from codl.records.results import Conditions

#: What helps where the disk takes no more rows.
RESUMED = "What was there before is kept: make room, and go on with --resume."
Status = Literal["ok", "failed"]
RowT = TypeVar("RowT", bound="Row")


#: Between the ops of a chain, as text.
SEPARATOR = "; "
#: Bytes that are read at once.
CHUNK = 1 << 20
#: No op runs for longer than a day.
MOST_MS = 24 * 3600 * 1000.0
#: What a manifest says at least.
MANIFEST_KEYS: Mapping[str, type] = {"source": str, "runs": dict}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What every row of every file carries; latencies in milliseconds.

    `latency_ms` is by the one statistic (`codl.records.statistic`) of all `runs` samples, which
    `p20_ms` and `p80_ms` are percentiles of, at the speed that the machine had in the run's first
    batch. Other statistics, such as those of older runs, are named in the run's protocol.
    `source` is measured, replayed or simulated; `run` names the measurement run in the manifest.
    A failed measurement has a `status` and a `reason`, and no number is to be read from it.
    The rest is of the batch that it was measured in, as in `Conditions`; None where the machine
    does not tell. `throttled` names the processors whose clocks were held down, by spaces.
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
    #: Those that list what ran, and may be long.
    list_fields: ClassVar[tuple[str, ...]] = ()
    #: Columns that older files lack: their defaults hold there.
    later_fields: ClassVar[tuple[str, ...]] = (
        "temperature_c",
        "cpu_mhz",
        "gpu_mhz",
        "battery_percent",
        "throttled",
    )

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies the measurement, to resume without repeating it."""
        return tuple(getattr(self, name) for name in self.key_fields)

    def under(self: RowT, conditions: Conditions) -> RowT:
        """The row as it was measured under these conditions."""
        return replace(
            self,
            temperature_c=conditions.temperature_c,
            cpu_mhz=conditions.cpu_mhz,
            gpu_mhz=conditions.gpu_mhz,
            battery_percent=conditions.battery_percent,
            throttled=" ".join(conditions.throttled),
        )


@dataclass(frozen=True, kw_only=True)
class OpRow(Row):
    """One kernel variant on a part of an op.

    `op` and `part` are operator texts; `part` is what ran: `share` (0 ... 1) of the output of `op`
    along `dim`. A share of 1 is the whole op, written with `dim` H.
    """

    op: str
    dim: Dim
    share: Annotated[float, Meta(gt=0, le=1)]
    part: str

    key_fields: ClassVar[tuple[str, ...]] = ("op", "dim", "share")


@dataclass(frozen=True, kw_only=True)
class SharingRow(Row):
    """Making a region of a tensor visible to the other processor, its parts apart.

    `direction` is to_gpu, to_cpu, load (packing what the CPU's net reads), store (unpacking what it
    computed to where others can read it), or relayout (on the GPU, from its usual layout to
    another);
    `shape` is the region's, as text; `layout` is how the GPU stores it. Parts in milliseconds:
    `copy` on the CPU, `map`, `unmap`, the `transform` kernel between layouts, and `sync`, the wait
    for a queue that has nothing left to do (of a kernel's end see `SignalRow`). `latency_ms` is of
    the whole. Where both processors work on the same memory, there is nothing to copy or map, and
    those are 0.
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
class AnchorRow(Row):
    """An op that every batch of a collection measures again: how fast the machine was just then.

    Nothing is trained on these. `batch` counts from 1 in each run.
    """

    op: str
    processor: str
    batch: int

    key_fields: ClassVar[tuple[str, ...]] = ("run", "batch", "op", "processor")


@dataclass(frozen=True, kw_only=True)
class DispatchRow(Row):
    """What `count` tiny kernels take from enqueueing to their end."""

    processor: str
    count: int

    key_fields: ClassVar[tuple[str, ...]] = ("processor", "count")


@dataclass(frozen=True, kw_only=True)
class SignalRow(Row):
    """What it takes one processor to know of the other's work; the table says of which.

    `first_launch`: from the enqueueing of a kernel to its beginning, on a queue that was empty for
    `gap_ms`. `event_wait`: from the end of a kernel to the CPU's knowing it by the kernel's event,
    for which it had waited about `gap_ms`; `flag_wait`: the same by a flag that a kernel behind it
    raises.
    """

    gap_ms: float

    key_fields: ClassVar[tuple[str, ...]] = ("gap_ms",)


@dataclass(frozen=True, kw_only=True)
class BatchRow(Row):
    """`images` at once of an op that has one image; `single_ms` is what one takes."""

    op: str
    variant: str
    processor: str
    images: int
    single_ms: float = 0.0

    key_fields: ClassVar[tuple[str, ...]] = ("op", "variant", "images")


@dataclass(frozen=True, kw_only=True)
class StageRow(Row):
    """A stage of a small network that ran behind another stage: what its shards took there.

    `chain` are the texts of its ops, each of which reads what the one before it makes, and `before`
    is that of the op of the stage before; both stages are cut along `dim` where they can be, and
    `gpu_ratio` is the GPU's share of this one. `cpu_ops` and `gpu_ops` are what each processor ran,
    as `variant op`; empty where it had nothing to do. `cpu_calls` are nets and `gpu_calls` kernels,
    of an op one or few. `packed` is what ncnn's nets packed and unpacked, as `load 1x64x28x56` or
    `store ...`. `cpu_ms` and `gpu_ms` are of nets and kernels in a profiled run; `latency_ms` is
    the larger of the two. Between the parts of a list stands `; `.
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
    """One CSV file of rows, appended to row by row; a row is on disk when `append` returns.

    A row that is read is of one of `runs` (or of a part of one, behind a slash), or of none; with
    None of any.
    """

    def __init__(
        self, path: Path, row_type: type[RowT], runs: Collection[str] | None = None
    ) -> None:
        self.path, self._runs = path, runs
        self.row_type = row_type
        # What identifies a row first, then its numbers.
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
        """Write rows behind those that are there, and wait until they are on disk.

        All of them, or none: raises `UnwritableFileError` where there is no room.
        """
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
                    _write_whole(file, text.getvalue().encode())
                    os.fsync(file.fileno())
                except OSError:
                    with suppress(OSError):  # no part of a row stays before the next
                        file.truncate(size)
                    raise
        except OSError as error:
            raise UnwritableFileError(self.path, error, fix=RESUMED) from error

    def repair(self) -> bool:
        """Drop a last line that a killed process left unfinished, add columns that came later.

        A table that an editor has saved in another encoding is in UTF-8 again.
        True if there was anything to do.
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
        if not whole:  # killed before the first line was there
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


#: What the rows of a table are, where they are not those of a kernel variant.
ROW_TYPES: dict[str, type[Row]] = {
    "data_sharing": SharingRow,
    "dispatch": DispatchRow,
    "first_launch": SignalRow,
    "event_wait": SignalRow,
    "flag_wait": SignalRow,
    "stage": StageRow,
    "batch": BatchRow,
}
#: Tables that earlier versions wrote, and nothing reads: muLayer's were copies of others' rows.
FORMER_TABLES = re.compile("cold|contention|mulayer_.*")


@dataclass(frozen=True)
class Dataset:
    """The files of one SoC under `lat_datasets/`."""

    folder: Path

    @classmethod
    def of(cls, soc: str, root: Path = FOLDER) -> Dataset:
        """Under `root`, to be written."""
        return cls(inside(root, soc))

    @classmethod
    def found(cls, soc: str, root: Path = FOLDER) -> Dataset:
        """Under `root`; in the usual place also one that comes with codl."""
        inside(root, soc)
        return cls(own_or_shipped(soc, root, FOLDER))

    @classmethod
    def at(cls, folder: Path) -> Dataset:
        """Of a folder; in the usual place also one that comes with codl."""
        return cls(own_or_shipped(folder.name, folder.parent, FOLDER))

    def ops(self, name: str) -> CsvTable[OpRow]:
        """The table of one kernel variant, such as `conv2d_cpu_gemm`."""
        return CsvTable(inside(self.folder, f"t_{name}.csv"), OpRow)

    def sharing(self) -> CsvTable[SharingRow]:
        return CsvTable(self.folder / "t_data_sharing.csv", SharingRow)

    def anchors(self) -> CsvTable[AnchorRow]:
        """How fast the machine was; no table of `tables`, which are those to train on."""
        return CsvTable(self.folder / "anchors.csv", AnchorRow)

    def table(self, name: str) -> CsvTable[Any]:
        """The table of a name, with or without a file, of the rows that such a table has."""
        return CsvTable(inside(self.folder, f"t_{name}.csv"), ROW_TYPES.get(name, OpRow))

    def tables(self) -> dict[str, CsvTable[Any]]:
        """Every table that has a file, by name (the file's, without `t_` and `.csv`)."""
        names = (path.stem[2:] for path in sorted(self.folder.glob("t_*.csv")))
        runs = self.manifest()["runs"].keys() if self.manifest_path.exists() else None
        tables = {n: self.table(n) for n in names if not FORMER_TABLES.fullmatch(n)}
        return {name: CsvTable(table.path, table.row_type, runs) for name, table in tables.items()}

    def calibration(self) -> dict[str, dict[str, float]]:
        """How much slower each processor was than in the first run, by run; from the manifest."""
        runs = self.manifest()["runs"] if self.manifest_path.exists() else {}
        return {name: dict(run.get("calibration", {})) for name, run in runs.items()}

    def statistics(self) -> dict[str, str]:
        """By which statistic the latencies of each run are; those of imports are not known."""
        runs = self.manifest()["runs"] if self.manifest_path.exists() else {}
        protocols = {name: run["protocol"] for name, run in runs.items() if "protocol" in run}
        return {
            name: protocol.get("statistic", statistic.BEFORE)
            for name, protocol in protocols.items()
        }

    @property
    def manifest_path(self) -> Path:
        return self.folder / "manifest.json"

    def manifest(self) -> dict[str, Any]:
        """What the runs were; raises `InvalidFileError` where there is none."""
        if not self.manifest_path.exists():
            fix = f"`codl collect --soc {self.folder.name} --serial local` measures one."
            raise InvalidFileError(self.folder, "there is no dataset here.", fix=fix)
        content = files.read_json(self.manifest_path)
        if not isinstance(content, dict):
            raise InvalidFileError(self.manifest_path, "must hold a JSON object.")
        for key, kind in MANIFEST_KEYS.items():
            if key not in content:
                raise InvalidFileError(self.manifest_path, f"the key {key!r} is missing.")
            if not isinstance(content[key], kind):
                what = "a JSON object" if kind is dict else "a text"
                problem = f"must be {what}, got {content[key]!r:.60}."
                raise InvalidFileError(self.manifest_path, problem, where=key)
        return content

    def write_manifest(self, content: dict[str, Any]) -> None:
        files.write(self.manifest_path, json.dumps(content, indent=2) + "\n", fix=RESUMED)


def _open_itself(path: str, flags: int) -> int:
    """No link of a dataset from elsewhere leads outside its folder."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _write_whole(file: io.FileIO, content: bytes) -> None:
    """A full disk takes a part first, and fails at the rest."""
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]


def dataset_digest(dataset: Dataset) -> str:
    """Identifies the tables, the manifest and the tuning of a dataset; empty where there is none.

    Raises `OSError` where a file cannot be read.
    """
    lines = []
    for path in sorted([*dataset.folder.glob("*.csv"), *dataset.folder.glob("*.json")]):
        content = sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                content.update(chunk)
        lines.append(f"{path.name} {content.hexdigest()}")
    return digest("\n".join(lines))[:16] if lines else ""
