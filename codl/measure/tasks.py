"""Measurement tasks: ops of models or a CSV, by kernel variant, processor and share of output."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

from msgspec import Meta

from codl import files
from codl.errors import CodlError, InvalidFileError
from codl.ir import Dim, Op, Region, Shape, parse, split, to_text
from codl.ir.records.results import Conditions
from codl.ir.records.soc import Soc
from codl.ir.types import BLOCKED, PROCESSORS, Direction, Processor, Storage
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.kernels.tuning import Tuning
from codl.measure import SHARES as SHARES
from codl.measure.dataset import (
    SEPARATOR,
    DispatchRow,
    OpRow,
    Row,
    SharingRow,
    StageRow,
    WaitRow,
)
from codl.measure.timing import AnchorTime, Rounds

#: Shares under a budget: further ops teach a predictor more than further shares.
FEW_SHARES = (0.2, 0.5, 0.8, 1.0)
#: Measured shares of a tensor's rows in exchanges.
SHARED = (0.1, 0.3, 0.5, 0.7, 1.0)
#: Number of inputs of similar ops with measured exchanges, beside the models' tensors.
MORE_SHAPES = 120
SEED = 20220627
#: Suffixes of files with models or ops.
FILES = (".csv", ".onnx", ".yaml", ".yml")
#: A probe op: its CPU variants show whether OpenVINO's packing can be measured.
PACKED = parse("conv2d in=1x8x2x2 oc=8 kernel=1x1")
#: Suffix of the reason in a failed row that later runs do not repeat.
NEVER_AGAIN = "No other run tries it again."
#: Longest kernel of a wait in milliseconds.
MOST_GAP_MS = 1000.0


class RowTask:
    """Base of tasks: a row without numbers, and its key."""

    @property
    def row_template(self) -> Row:
        """The task's row without latencies."""
        raise NotImplementedError

    @property
    def key(self) -> tuple[object, ...]:
        return self.row_template.key


@dataclass(frozen=True)
class OpTask(RowTask):
    """One kernel variant on one part of an op; `tables` are the names of the row's tables."""

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
    """An exchange of a tensor in a direction (see `SharingRow`); `storage` is the GPU's layout."""

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
    """`count` launches of a tiny kernel on the GPU."""

    count: int

    processor: ClassVar[Processor] = "gpu"

    tables: ClassVar[tuple[str, ...]] = ("dispatch",)

    @property
    def row_template(self) -> DispatchRow:
        return DispatchRow(processor=self.processor, count=self.count)


@dataclass(frozen=True)
class WaitTask(RowTask):
    """A wait for a kernel of about `gap_ms`; see `WaitRow`."""

    gap_ms: Annotated[float, Meta(ge=0, le=MOST_GAP_MS)]

    processor: ClassVar[Processor] = "gpu"

    tables: ClassVar[tuple[str, ...]] = ("event_wait",)

    @property
    def row_template(self) -> WaitRow:
        return WaitRow(gap_ms=self.gap_ms)


@dataclass(frozen=True)
class StageTask(RowTask):
    """A chain of ops after the op `before`; each op reads its predecessor's output alone."""

    before: Op
    ops: tuple[Op, ...]
    dim: Dim
    gpu_ratio: Annotated[float, Meta(ge=0, le=1)]

    tables: ClassVar[tuple[str, ...]] = ("stage",)

    @property
    def bytes(self) -> int:
        return sum(op.bytes for op in (self.before, *self.ops))

    @property
    def chain(self) -> str:
        return SEPARATOR.join(map(to_text, self.ops))

    @property
    def row_template(self) -> StageRow:
        before = to_text(self.before)
        return StageRow(before=before, chain=self.chain, dim=self.dim, gpu_ratio=self.gpu_ratio)


ContextTask: TypeAlias = DispatchTask | WaitTask | StageTask
Task: TypeAlias = OpTask | SharingTask | ContextTask


@dataclass(frozen=True)
class MeasureBatch:
    """A batch of tasks; a target measures a prefix of them, as `left_s` and `rounds` allow.

    `reference_ms` are the anchors' latencies in the run's first batch, by op and processor, and
    empty for the first batch. `tolerance` is the largest scatter of a processor's anchors.
    """

    tasks: tuple[Task, ...]
    run: str
    rounds: Rounds
    tuning: Tuning
    left_s: float
    reference_ms: Mapping[tuple[str, str], float]
    tolerance: Mapping[str, float]


@dataclass(frozen=True)
class Measurement:
    """The row of a task; drift is divided out of its latency unless it `is_disturbed`."""

    task: Task
    row: Row
    is_disturbed: bool = False


@dataclass(frozen=True)
class BatchResult:
    """Rows of tasks, latencies of anchors, and the last conditions.

    `lost` is a sentence about the measuring process's early end, else "". After an early end,
    `measurements` are the rows received before, and `suspects` the possible causes: the task being
    built, or all timed tasks. `has_hung`: the process was ended for not answering. `skipped_s` are
    recorded seconds that a replay did not wait for.
    """

    measurements: tuple[Measurement, ...]
    anchors: tuple[AnchorTime, ...]
    lost: str = ""
    suspects: tuple[Task, ...] = ()
    has_hung: bool = False
    conditions: Conditions = field(default_factory=Conditions)
    skipped_s: float = 0.0


#: Callback for a batch's progress: a task's index at its start, the start of timing, or a finished
#: task's index and measurement.
Emit: TypeAlias = Callable[[Literal["begin", "timing", "done"], int, "Measurement | None"], object]


def processors_of(task: Task) -> tuple[Processor, ...]:
    """The processors of a task: its own for ops, else both."""
    return (task.processor,) if isinstance(task, OpTask) else PROCESSORS


def failed_row(task: Task, run: str, reason: str) -> Row:
    return replace(
        task.row_template, run=run, status="failed", reason=" ".join(reason.split())[:300]
    )


def crash_row(task: Task, run: str, reason: str) -> Row:
    """The row of a task that crashes processes; later runs do not repeat it."""
    row = failed_row(task, run, reason)
    return replace(row, reason=f"{row.reason.rstrip('.')}. {NEVER_AGAIN}")


def load_ops(sources: Sequence[str]) -> list[Op]:
    """The distinct ops of models (built-in or `.onnx`), of `.csv` files and of texts, in order."""
    every: dict[Op, None] = {}
    for source in sources:
        if is_op(source):
            ops = [parse(source)]
        elif source.endswith(".csv"):
            ops = read_csv(Path(source))
        else:
            from codl.frontend.convert import load_structure  # an agent measures tasks without it

            ops = [layer.op for layer in load_structure(source).layers]
        every.update(dict.fromkeys(ops))
    return list(every)


def check_sources(sources: Sequence[str]) -> None:
    """Raise `CodlError` for the first model or file that does not exist."""
    from codl.frontend.models import check_is_there  # an agent measures tasks without it

    for source in sources:
        if not is_op(source):
            check_is_there(source)


def is_op(source: str) -> bool:
    """Whether a source is the text of an op, such as `fc in=1x32x1x1 oc=8`, rather than a file."""
    return " " in source.strip() and Path(source).suffix not in FILES


def make_tasks(
    ops: Iterable[Op], soc: Soc, shares: Sequence[float] = SHARES, similar: Sequence[Op] = ()
) -> list[Task]:
    """All tasks of `ops`, in a fixed random order, so every prefix is representative.

    `similar` ops, which are in no model, are measured whole, with exchanges of some inputs.
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
    """Tasks of every variant of a processor, on shares (0 ... 1) of an op along each dimension."""
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
    """The part of an op with a share of its output; None for an empty part."""
    ratio = share if processor == "gpu" else round(1 - share, 6)
    cpu, gpu = split(op, dim, ratio, align=soc.gpu.vector_width)
    region = cpu if processor == "cpu" else gpu
    if region.is_empty or (share < 1 and region == Region.whole(op.output)):
        return None
    return op.restrict(region)


def cuts_of(op: Op) -> tuple[Dim, ...]:
    """The dimensions along which a one-image op can be split."""
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
    """The ops in a CSV's column `op`; raises `InvalidFileError` with the line and the problem."""
    ops = []
    try:
        reader = files.csv_reader(files.decoded(files.read_bytes(path)))
        columns = reader.fieldnames or []
        if "op" not in columns:
            problem = f"expected a column 'op', got {columns}."
            raise InvalidFileError(path, problem, where="line 1")
        for record in reader:
            if files.is_blank(record):
                continue
            try:
                ops.append(parse(record["op"]))
            except (CodlError, TypeError, ValueError) as error:
                where = f"line {reader.line_num}"
                raise InvalidFileError(path, f"not an op: {error}", where=where) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidFileError(path, f"not CSV: {error}.") from error
    return ops
