"""Tasks of measurement: ops of models or a CSV, in every variant of both processors and share."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

from msgspec import Meta

from codl import files
from codl.errors import CodlError, InvalidFileError
from codl.ir import Dim, Op, Pad, Region, Shape, parse, split, to_text
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.pooling import Pool2d
from codl.ir.ops.window import Size2
from codl.ir.types import BLOCKED, Direction, Processor, Signalling, Storage
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.measure.dataset import (
    SEPARATOR,
    BatchRow,
    DispatchRow,
    OpRow,
    Row,
    SharingRow,
    SignalRow,
    StageRow,
)
from codl.records.soc import Soc

#: A processor's shares of an op's output; 1 is the whole op.
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: As many as pay where time is short: other ops teach a predictor more than other shares.
FEW_SHARES = (0.2, 0.5, 0.8, 1.0)
#: Shares of a tensor's rows whose exchange is measured.
SHARED = (0.1, 0.3, 0.5, 0.7, 1.0)
#: How many similar ops' inputs are measured as exchanges, beside the models' own tensors.
MORE_SHAPES = 120
SEED = 20220627
#: Endings of files with models or ops.
FILES = (".csv", ".onnx", ".yaml", ".yml")
#: A library that computes this packs tensors.
PACKED = parse("conv2d in=1x8x2x2 oc=8 kernel=1x1")
#: How the reason of a row ends that another run leaves alone.
NEVER_AGAIN = "No other run tries it again."
#: No queue is left empty for longer, to see how it wakes up.
MOST_GAP_MS = 1000.0


class RowTask:
    """What a task and its row have in common."""

    @property
    def row_template(self) -> Row:
        """The task's row, without numbers."""
        raise NotImplementedError

    @property
    def key(self) -> tuple[object, ...]:
        """What identifies it among the rows of a table."""
        return self.row_template.key


@dataclass(frozen=True)
class OpTask(RowTask):
    """One kernel variant on one part of an op; `tables` are where the row goes."""

    tables: tuple[str, ...]
    variant: str
    processor: Processor
    op: Op
    dim: Dim
    share: float
    part: Op

    @property
    def row_template(self) -> OpRow:
        op, part = to_text(self.op), to_text(self.part)
        return OpRow(op=op, dim=self.dim, share=self.share, part=part)


@dataclass(frozen=True)
class SharingTask(RowTask):
    """Moving a tensor of one shape: to the GPU, to the CPU, into the CPU's net (`load`), out of it
    (`store`), or on the GPU to another layout; `storage` is how the GPU stores it.
    """

    direction: Direction
    shape: Shape
    storage: Storage = BLOCKED

    tables: ClassVar[tuple[str, ...]] = ("data_sharing",)

    @property
    def row_template(self) -> SharingRow:
        shape, layout = str(self.shape), str(self.storage)
        return SharingRow(direction=self.direction, shape=shape, layout=layout)


@dataclass(frozen=True)
class DispatchTask(RowTask):
    """`count` launches on the GPU that compute next to nothing."""

    count: int

    processor: ClassVar[Processor] = "gpu"

    tables: ClassVar[tuple[str, ...]] = ("dispatch",)

    @property
    def row_template(self) -> DispatchRow:
        return DispatchRow(processor=self.processor, count=self.count)


@dataclass(frozen=True)
class SignalTask(RowTask):
    """A first launch, or a wait, after about `gap_ms` milliseconds; see `SignalRow`."""

    kind: Signalling
    gap_ms: Annotated[float, Meta(ge=0, le=MOST_GAP_MS)]

    #: Whose kernel it is about.
    processor: ClassVar[Processor] = "gpu"

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.kind,)

    @property
    def row_template(self) -> SignalRow:
        return SignalRow(gap_ms=self.gap_ms)


@dataclass(frozen=True)
class StageTask(RowTask):
    """A chain of ops behind another op: each reads what the one before it makes, and no more."""

    before: Op
    ops: tuple[Op, ...]
    dim: Dim
    gpu_ratio: Annotated[float, Meta(ge=0, le=1)]

    tables: ClassVar[tuple[str, ...]] = ("stage",)

    @property
    def bytes(self) -> int:
        """Of all of its ops."""
        return sum(op.bytes for op in (self.before, *self.ops))

    @property
    def chain(self) -> str:
        return SEPARATOR.join(map(to_text, self.ops))

    @property
    def row_template(self) -> StageRow:
        before = to_text(self.before)
        return StageRow(before=before, chain=self.chain, dim=self.dim, gpu_ratio=self.gpu_ratio)


@dataclass(frozen=True)
class BatchTask(RowTask):
    """A batch of `images` of an op of one image, in its default variant for the batch."""

    processor: Processor
    op: Op
    images: int
    variant: str

    tables: ClassVar[tuple[str, ...]] = ("batch",)

    @property
    def row_template(self) -> BatchRow:
        op, side = to_text(self.op), self.processor
        return BatchRow(op=op, variant=self.variant, processor=side, images=self.images)


ContextTask: TypeAlias = DispatchTask | SignalTask | StageTask | BatchTask
Task: TypeAlias = OpTask | SharingTask | ContextTask


def failed_row(task: Task, run: str, reason: str) -> Row:
    """The row of a task that failed, or must not be tried."""
    return replace(
        task.row_template, run=run, status="failed", reason=" ".join(reason.split())[:300]
    )


def crash_row(task: Task, run: str, reason: str) -> Row:
    """The row of a task that takes processes down, which other runs leave alone."""
    row = failed_row(task, run, reason)
    return replace(row, reason=f"{row.reason.rstrip('.')}. {NEVER_AGAIN}")


def load_ops(sources: Sequence[str]) -> list[Op]:
    """The distinct ops of models (built-in or `.onnx`), of `.csv` files and of texts, in order."""
    from codl.frontend.convert import load_structure  # an agent measures tasks without it

    every: dict[Op, None] = {}
    for source in sources:
        if is_op(source):
            ops = [parse(source)]
        elif source.endswith(".csv"):
            ops = read_csv(Path(source))
        else:
            ops = [layer.op for layer in load_structure(source).layers]
        every.update(dict.fromkeys(ops))
    return list(every)


def check_sources(sources: Sequence[str]) -> None:
    """Raise for the first model or file that is not there, before any is read."""
    from codl.frontend.models import check_is_there  # an agent measures tasks without it

    for source in sources:
        if not is_op(source):
            check_is_there(source)


def is_op(source: str) -> bool:
    """Whether a source is an op as text, as in `fc in=1x32 oc=8`: with a space, and no file."""
    return " " in source.strip() and Path(source).suffix not in FILES


def make_tasks(
    ops: Iterable[Op], soc: Soc, shares: Sequence[float] = SHARES, similar: Sequence[Op] = ()
) -> list[Task]:
    """All measurements of `ops`, in a fixed random order: any first part is representative.

    Of `similar` ones, which no model has, the whole op is measured, and of some the whole input.
    """
    tasks: list[Task] = []
    parts: dict[Shape, None] = {}
    for op in ops:
        for processor in get_args(Processor):
            tasks += op_tasks(op, processor, soc, shares)
        for shape in (*op.inputs, op.output):
            rows = {max(1, round(share * shape.h)) for share in SHARED}
            parts.update(dict.fromkeys(shape._replace(h=h) for h in sorted(rows)))
    for op in similar:
        for processor in get_args(Processor):
            tasks += op_tasks(op, processor, soc, [1.0])
    step = max(1, round(len(similar) / MORE_SHAPES))
    parts.update(dict.fromkeys(op.inputs[0] for op in similar[::step]))
    tasks += _sharing_tasks(parts, soc)
    random.Random(SEED).shuffle(tasks)
    return tasks


def op_tasks(op: Op, processor: Processor, soc: Soc, shares: Sequence[float]) -> list[OpTask]:
    """Every variant of a processor on its shares, 0 ... 1, of an op along each dimension."""
    tasks = []
    dims: tuple[Dim, ...] = op.dims or ("H",)
    for dim in dims:
        for share in shares if op.dims else (1.0,):
            if share == 1 and dim != dims[0]:
                continue  # the whole op is the same along either dimension
            part = part_of(op, processor, dim, share, soc)
            if part is None:
                continue
            for variant in registry.variants(part, processor, soc):
                tables = (registry.target(variant, op),)
                tasks.append(OpTask(tables, variant.name, processor, op, dim, share, part))
    return tasks


def part_of(op: Op, processor: Processor, dim: Dim, share: float, soc: Soc) -> Op | None:
    """The op that a processor runs with a share of the output; None where that is nothing."""
    ratio = share if processor == "gpu" else round(1 - share, 6)
    cpu, gpu = split(op, dim, ratio, align=soc.gpu.vector_width)
    region = cpu if processor == "cpu" else gpu
    if region.is_empty or (share < 1 and region == Region.whole(op.output)):
        return None
    return op.restrict(region)


def cuts_of(op: Op) -> tuple[Dim, ...]:
    """Along which dimensions an op is cut that has one image."""
    return tuple(dim for dim in op.dims if dim != "N")


def _sharing_tasks(shapes: Iterable[Shape], soc: Soc) -> list[SharingTask]:
    usual, *others = registry.storages(soc)
    kinds: list[tuple[Direction, Storage]] = []
    for storage in (usual, *others):
        kinds += [("to_gpu", storage), ("to_cpu", storage)]
    kinds += [("load", BLOCKED), ("store", BLOCKED), *(("relayout", storage) for storage in others)]
    if registry.of_library(PACKED, LIBRARIES.index("openvino"), soc) is not None:
        kinds += [("load_openvino", BLOCKED), ("store_openvino", BLOCKED)]
    return [SharingTask(way, shape, storage) for shape in shapes for way, storage in kinds]


def read_csv(path: Path) -> list[Op]:
    """Ops of a CSV: a column `op` with operator texts, or the columns of the original CoDL.

    Those are IH, IW, IC, OC, KH, KW, SH, SW, ...; with POT (1 average, 2 max) a pooling, without SH
    a fully connected layer. Raises `InvalidFileError` with the line and what is wrong with it.
    """
    ops = []
    try:
        reader = files.csv_reader(files.decoded(files.read_bytes(path)))
        columns = reader.fieldnames or []
        if "op" not in columns and not {"IH", "IW", "IC", "OC", "KH", "KW"} <= set(columns):
            raise InvalidFileError(
                path,
                f"expected a column 'op', or IH, IW, IC, OC, KH and KW; got {columns}.",
                where="line 1",
            )
        for record in reader:
            if files.is_blank(record):
                continue
            try:
                ops.append(parse(record["op"]) if "op" in columns else _original(record))
            except (CodlError, KeyError, TypeError, ValueError) as error:
                where = f"line {reader.line_num}"
                raise InvalidFileError(path, f"not an op: {error}", where=where) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidFileError(path, f"not CSV: {error}.") from error
    return ops


def _original(record: dict[str, str]) -> Op:
    """One row of the original CoDL's operator tables."""
    number = {key: int(value) for key, value in record.items() if key != "CNN"}
    shape = Shape(1, number["IC"], number["IH"], number["IW"])
    if "SH" not in number:
        return FullyConnected(inputs=(shape,), out_channels=number["OC"])
    kernel, stride = Size2(number["KH"], number["KW"]), Size2(number["SH"], number["SW"])
    if "POT" in number:
        mode: Literal["max", "avg"] = "avg" if number["POT"] == 1 else "max"
        return Pool2d(inputs=(shape,), kernel=kernel, stride=stride, mode=mode)
    total = (number["PH"], number["PW"])
    if number["PT"] == 1:  # SAME
        total = (
            max((-(-shape.h // stride.h) - 1) * stride.h + kernel.h - shape.h, 0),
            max((-(-shape.w // stride.w) - 1) * stride.w + kernel.w - shape.w, 0),
        )
    top, left = total[0] // 2, total[1] // 2
    pad = Pad(top, left, total[0] - top, total[1] - left)
    return Conv2d(inputs=(shape,), out_channels=number["OC"], kernel=kernel, stride=stride, pad=pad)
