"""A mapping says what the columns of somebody's table mean: a small YAML file.

    unit: us                          # of all latencies: us, ms or s
    device: {column: phone}           # rows of this device alone; its value is --device
    run: model                        # the column that tells measurement runs apart
    where: {status: [ok]}             # rows to take, by column
    ops:
      - kind: conv2d                  # conv2d, pooling, fc or eltwise
        where: {operation: [CONV_2D]} # rows that are this op
        in: [ic, ih, iw]              # channels, rows, columns: a column's name, or a number
        out: [oc, oh, ow]             # padding follows from in and out, unless `pad` gives it
        kernel: [kh, kw]              # one of them stands for both
        stride: stride
        groups: 1
    latencies:
      - {column: cpu4_us, processor: cpu}
      - {column: cpu1_us, processor: cpu, threads: 1}   # another number of threads than usual
      - {column: gpu_us, processor: gpu}
    transfers: {shape: shape_nchw, to_gpu: cpu_to_gpu_us, to_cpu: gpu_to_cpu_us}
    origin: {url: ..., licence: ...}  # kept in the manifest
    socs:                             # by device; what is left out is unknown
      redmi: {description: ..., cpu: {threads: 4}, gpu: {name: Adreno 506}}

A latency's column may hold `{device}`, for tables with a column a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from codl import yaml_file
from codl.errors import CodlError, InvalidFileError, UnknownNameError
from codl.ir.types import Processor
from codl.kernels.replayed import THREADS
from codl.measure.importers.cells import UNITS

KINDS = ("conv2d", "pooling", "fc", "eltwise")
#: A column's name, or the number that holds in every row.
Cell = str | int
Where = Mapping[str, tuple[str, ...]]
T = TypeVar("T")


@dataclass(frozen=True)
class OpColumns:
    """What the columns say of one kind of op; `in` and `out` are channels, rows, columns."""

    kind: str
    input: tuple[Cell, ...]
    output: tuple[Cell, ...] = ()
    kernel: tuple[Cell, ...] = (1, 1)
    stride: tuple[Cell, ...] = (1, 1)
    pad: tuple[Cell, ...] | None = None
    groups: Cell = 1
    mode: str = ""
    where: Where = field(default_factory=dict)

    @property
    def columns(self) -> Iterator[str]:
        cells = (*self.input, *self.output, *self.kernel, *self.stride, *(self.pad or ()))
        yield from (cell for cell in (*cells, self.groups) if isinstance(cell, str))
        yield from self.where


@dataclass(frozen=True)
class LatencyColumn:
    """A column of latencies of one processor; `threads` where they are not the SoC's own number."""

    column: str
    processor: Processor
    threads: int | None = None

    @property
    def variant(self) -> str:
        return f"{self.processor}_replayed" + (f"_threads{self.threads}" if self.threads else "")


@dataclass(frozen=True)
class Transfers:
    """A column with a tensor's sizes as n, c, h, w, and those of moving it either way."""

    shape: str
    to_gpu: str
    to_cpu: str


@dataclass(frozen=True)
class TableMapping:
    """A whole mapping; `content` is the file's, for the manifest."""

    path: Path
    content: Mapping[str, Any]
    unit: str
    device: str = ""
    run: str = ""
    where: Where = field(default_factory=dict)
    ops: tuple[OpColumns, ...] = ()
    latencies: tuple[LatencyColumn, ...] = ()
    transfers: Transfers | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    socs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Every column that is read, each once."""
        found = [self.device, self.run, *self.where, *(c.column for c in self.latencies)]
        found += [column for op in self.ops for column in op.columns]
        if self.transfers:
            found += [self.transfers.shape, self.transfers.to_gpu, self.transfers.to_cpu]
        return [column for column in dict.fromkeys(found) if column]


def load_mapping(path: Path, device: str) -> TableMapping:
    """Read a mapping for one device; raises `InvalidFileError` with the key that is wrong."""
    content = yaml_file.read_content(path)
    try:
        return _mapping(path, content, device)
    except (CodlError, TypeError) as error:  # as of a mapping in the place of a word
        raise InvalidFileError(path, str(error)) from error


def _mapping(path: Path, content: Any, device: str) -> TableMapping:
    known = [f.name for f in fields(TableMapping)][2:]
    values = _checked(content, known, "top")
    if values.get("unit") not in UNITS:
        raise CodlError(f"unit must be one of {', '.join(UNITS)}, got {values.get('unit')!r}.")
    column = _checked(values.get("device", {}), ["column"], "device").get("column", "")
    latencies = [_latency(item, device) for item in _listed(values, "latencies")]
    ops = [_op(item, number) for number, item in enumerate(_listed(values, "ops"), 1)]
    if bool(ops) != bool(latencies):
        raise CodlError("ops and latencies belong together: give both, or transfers alone.")
    if not ops and "transfers" not in values:
        raise CodlError("it maps nothing: give ops and latencies, or transfers.")
    transfers = None
    if "transfers" in values:
        given = _checked(values["transfers"], [f.name for f in fields(Transfers)], "transfers")
        transfers = _built(Transfers, given, "transfers")
    return TableMapping(
        path=path,
        content=content,
        unit=values["unit"],
        device=str(column),
        run=str(values.get("run", "")),
        where=_where(values.get("where", {}), "where"),
        ops=tuple(ops),
        latencies=tuple(latencies),
        transfers=transfers,
        origin=_mapped(values.get("origin", {}), "origin"),
        socs=_mapped(values.get("socs", {}), "socs"),
    )


def _latency(item: Any, device: str) -> LatencyColumn:
    names = [f.name for f in fields(LatencyColumn)]
    found = _built(LatencyColumn, _checked(item, names, "latencies"), "latencies")
    if found.processor not in ("cpu", "gpu"):
        raise CodlError(f"latencies: processor must be cpu or gpu, got {found.processor!r}.")
    if found.threads is not None and (found.processor != "cpu" or found.threads not in THREADS):
        numbers = ", ".join(map(str, THREADS))
        raise CodlError(
            f"latencies: threads must be of {numbers}, on the cpu; got {found.threads!r} on the "
            f"{found.processor}. Leave it out where it is the SoC's usual number."
        )
    return LatencyColumn(found.column.replace("{device}", device), found.processor, found.threads)


def _op(item: Any, number: int) -> OpColumns:
    at = f"ops[{number}]"
    names = ["in", "out", *(f.name for f in fields(OpColumns) if f.name not in ("input", "output"))]
    values = _checked(item, names, at)
    if values.get("kind") not in KINDS:
        raise CodlError(
            f"{at}: kind must be one of {', '.join(KINDS)}, got {values.get('kind')!r}."
        )
    if values["kind"] == "pooling" and values.get("mode") not in ("avg", "max"):
        raise CodlError(f"{at}: mode must be avg or max, got {values.get('mode')!r}.")
    if "in" not in values:
        raise CodlError(f"{at}: in is missing: the columns of channels, rows and columns.")
    has_window = values["kind"] in ("conv2d", "pooling")
    if has_window and "kernel" not in values:
        raise CodlError(f"{at}: kernel is missing.")
    out = values.get("out")
    if (values["kind"] == "conv2d" and out is None) or (
        has_window and not ("pad" in values or out)
    ):
        raise CodlError(f"{at}: give out (padding follows from it), or for pooling pad.")
    pairs = {k: _cells(values[k], 2, f"{at}.{k}") for k in ("kernel", "stride") if k in values}
    return OpColumns(
        kind=values["kind"],
        input=_cells(values["in"], 3, f"{at}.in"),
        output=() if out is None else _cells(out, 3, f"{at}.out"),
        pad=_cells(values["pad"], 2, f"{at}.pad") if "pad" in values else None,
        groups=_cell(values.get("groups", 1), f"{at}.groups"),
        mode=values.get("mode", ""),
        where=_where(values.get("where", {}), at),
        **pairs,
    )


def _cells(value: Any, count: int, at: str) -> tuple[Cell, ...]:
    """So many cells; one of two stands for both."""
    items = value if isinstance(value, list) else [value]
    if len(items) == 1 and count == 2:
        items = items * 2
    if len(items) != count:
        raise CodlError(f"{at} must be a list of {count} columns or numbers, got {value!r}.")
    return tuple(_cell(item, at) for item in items)


def _cell(value: Any, at: str) -> Cell:
    if type(value) not in (str, int) or value in ("", None):
        raise CodlError(f"{at} must be a column's name or a whole number, got {value!r}.")
    return value  # type: ignore[no-any-return]


def _where(value: Any, at: str) -> Where:
    found = {}
    for column, values in _mapped(value, at).items():
        items = values if isinstance(values, list) else [values]
        found[str(column)] = tuple(str(item) for item in items)
    return found


def _listed(values: Mapping[str, Any], key: str) -> list[Any]:
    value = values.get(key, [])
    if not isinstance(value, list):
        raise CodlError(f"{key} must be a list, got {value!r}.")
    return value


def _mapped(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CodlError(f"{at} must be a mapping, got {value!r}.")
    return value


def _checked(value: Any, known: list[str], at: str) -> Mapping[str, Any]:
    for key in _mapped(value, at):
        if key not in known:
            raise CodlError(f"{at}: {UnknownNameError('key', str(key), known)}")
    return _mapped(value, at)


def _built(cls: type[T], values: Mapping[str, Any], at: str) -> T:
    for f in fields(cls):  # type: ignore[arg-type]
        if f.default is MISSING and not isinstance(values.get(f.name), str):
            got = values.get(f.name)
            raise CodlError(f"{at}: {f.name} must be a column's name, got {got!r}.")
    return cls(**values)
