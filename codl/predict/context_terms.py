"""Context terms: what dispatch, signals, cold caches, batches and contention add to ops.

Each is asked for with an item of its own, beside ops and shapes: how many launches, how long a
queue was empty or the CPU waited, an op with its latency when repeated or for one image, and the
loads of the two processors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, InvalidFileError
from codl.ir import Op, parse, to_text
from codl.ir.columns import FeatureColumns
from codl.ir.op_columns import elements
from codl.ir.types import Processor
from codl.measure.dataset import (
    BatchRow,
    ColdRow,
    ContentionRow,
    Dataset,
    DispatchRow,
    Row,
    SignalRow,
)

#: FLOPs a byte at which an op waits for memory as long as it computes, on current processors.
BALANCE = 10.0


@dataclass(frozen=True)
class Launches:
    """`count` kernels, or layers of one CPU net, from enqueueing to their end."""

    count: int

    kind: ClassVar[str] = "dispatch"

    def __str__(self) -> str:
        return f"launches={self.count}"

    @classmethod
    def read(cls, text: str) -> Launches:
        return cls(int(_numbers(text, ("launches",))[0]))

    @staticmethod
    def columns(items: Sequence[Launches]) -> FeatureColumns:
        return {"launches": np.array([item.count for item in items], np.float64)}


@dataclass(frozen=True)
class Gap:
    """A signal from one processor to the other after `gap_ms`; subclasses are of which."""

    gap_ms: float

    kind: ClassVar[str]
    processor: ClassVar[Processor]

    def __str__(self) -> str:
        return f"gap_ms={self.gap_ms!r}"

    @classmethod
    def read(cls: type[GapT], text: str) -> GapT:
        return cls(_numbers(text, ("gap_ms",))[0])

    @staticmethod
    def columns(items: Sequence[Gap]) -> FeatureColumns:
        return {"gap_ms": np.array([item.gap_ms for item in items], np.float64)}


GapT = TypeVar("GapT", bound=Gap)


class FirstLaunch(Gap):
    """From enqueueing a kernel to its beginning, on a queue that was empty for so long."""

    kind: ClassVar[str] = "first_launch"
    processor: ClassVar[Processor] = "gpu"


class EventWait(Gap):
    """From a kernel's end to the CPU's knowing it by an event, having waited about so long."""

    kind: ClassVar[str] = "event_wait"
    processor: ClassVar[Processor] = "cpu"


class FlagWait(Gap):
    """The same by a flag that a kernel behind it raises."""

    kind: ClassVar[str] = "flag_wait"
    processor: ClassVar[Processor] = "cpu"


@dataclass(frozen=True)
class Cold:
    """An op that takes `warm_ms` when it is repeated, with nothing of it in the caches."""

    op: Op
    warm_ms: float

    kind: ClassVar[str] = "cold"

    def __str__(self) -> str:
        return f"{to_text(self.op)} warm_ms={self.warm_ms!r}"

    @classmethod
    def read(cls, text: str) -> Cold:
        op, _, warm = text.rpartition(" ")
        return cls(parse(op), _numbers(warm, ("warm_ms",))[0])

    @staticmethod
    def columns(items: Sequence[Cold]) -> FeatureColumns:
        colds = items if isinstance(items, Colds) else Colds.of(items)
        inputs, weights, output = colds.elements
        return {
            "warm_ms": colds.warm_ms,
            "weight_bytes": 4 * weights,
            "input_bytes": 4 * inputs,
            "output_bytes": 4 * output,
        }


@dataclass(frozen=True)
class Colds(Sequence[Cold]):
    """Many `Cold` items as columns: ops, `warm_ms` (items), and `elements` (3, items).

    Those are of inputs, weights and output.
    """

    ops: Sequence[Op]
    warm_ms: NDArray[np.float64]
    elements: NDArray[np.float64]

    @classmethod
    def of(cls, items: Sequence[Cold]) -> Colds:
        ops = [item.op for item in items]
        return cls(ops, np.array([item.warm_ms for item in items]), np.array(elements(ops)))

    def __len__(self) -> int:
        return len(self.ops)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Colds(self.ops[at], self.warm_ms[at], self.elements[:, at])
        return Cold(self.ops[at], float(self.warm_ms[at]))


@dataclass(frozen=True)
class Batch:
    """`images` at once through an op that takes `single_ms` for one image."""

    op: Op
    single_ms: float
    images: int

    kind: ClassVar[str] = "batch"

    def __str__(self) -> str:
        return f"{to_text(self.op)} single_ms={self.single_ms!r} images={self.images}"

    @classmethod
    def read(cls, text: str) -> Batch:
        op, *numbers = text.rsplit(" ", 2)
        single_ms, images = _numbers(" ".join(numbers), ("single_ms", "images"))
        return cls(parse(op), single_ms, int(images))

    @staticmethod
    def columns(items: Sequence[Batch]) -> FeatureColumns:
        """What one image takes, and what all move and compute."""
        ops = [item.op for item in items]
        inputs, weights, output = elements(ops)
        images = np.array([item.images for item in items], np.float64)
        single_ms = np.array([item.single_ms for item in items])
        return {
            "single_ms": single_ms,
            "all_ms": images * single_ms,
            "moved_bytes": 4 * images * (inputs + output),
            "weight_bytes": 4 * weights,
            "flops": images * np.array([op.flops for op in ops], np.float64),
        }


@dataclass(frozen=True)
class Workload:
    """What a processor does on its own: bytes that it reads and writes, FLOPs, milliseconds."""

    bytes: float
    flops: float
    latency_ms: float

    @classmethod
    def of(cls, op: Op, latency_ms: float) -> Workload:
        return cls(float(op.bytes), float(op.flops), latency_ms)

    def __add__(self, other: Workload) -> Workload:
        return Workload(
            self.bytes + other.bytes, self.flops + other.flops, self.latency_ms + other.latency_ms
        )


@dataclass(frozen=True)
class Beside:
    """A processor's own load while the other processor works on its."""

    own: Workload
    other: Workload

    kind: ClassVar[str] = "contention"

    def __str__(self) -> str:
        names = (f"{side}_{name}" for side in ("own", "other") for name in _LOAD)
        values = (getattr(load, name) for load in (self.own, self.other) for name in _LOAD)
        return " ".join(f"{n}={v!r}" for n, v in zip(names, values, strict=True))

    @classmethod
    def read(cls, text: str) -> Beside:
        values = _numbers(text, [f"{side}_{name}" for side in ("own", "other") for name in _LOAD])
        return cls(Workload(*values[:3]), Workload(*values[3:]))

    @staticmethod
    def columns(items: Sequence[Beside]) -> FeatureColumns:
        """Time alone, the part of it that waits for memory, and both times the other one's share.

        An op that computes much for each byte gives little and suffers little. Every column is
        bounded by the time alone: no op beside another takes many times as long.
        """
        loads = items.loads if isinstance(items, Besides) else np.array([*map(_LOADS, items)]).T
        own_bytes, own_flops, own_ms, other_bytes, other_flops, _ = loads
        memory_ms = own_ms * _memory_share(own_bytes, own_flops)
        other_share = _memory_share(other_bytes, other_flops)
        return {
            "alone_ms": own_ms,
            "memory_ms": memory_ms,
            "alone_ms_x_other_share": own_ms * other_share,
            "memory_ms_x_other_share": memory_ms * other_share,
        }


def _memory_share(
    moved_bytes: NDArray[np.float64], flops: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of the time that a load takes, the share that it waits for memory: 1 where it only moves."""
    own = BALANCE * moved_bytes
    return np.divide(own, own + flops, out=np.zeros_like(own), where=own > 0)


@dataclass(frozen=True)
class Besides(Sequence[Beside]):
    """Many of these as columns; `loads` shaped (6, items).

    Bytes, FLOPs and milliseconds of the own load, and of the other.
    """

    loads: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.loads.T)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Besides(self.loads[:, at])
        values = self.loads[:, at].tolist()
        return Beside(Workload(*values[:3]), Workload(*values[3:]))


_LOAD = ("bytes", "flops", "latency_ms")
_LOADS = attrgetter(*(f"{side}.{name}" for side in ("own", "other") for name in _LOAD))

#: What holds many items of a kind as columns, where there is such.
MANY: dict[type[Any], type[Any]] = {Cold: Colds, Beside: Besides}
Surrounding: TypeAlias = Launches | Gap | Cold | Batch | Beside
SIGNALS: dict[str, type[Gap]] = {cls.kind: cls for cls in (FirstLaunch, EventWait, FlagWait)}
KINDS: dict[str, type[Any]] = {
    **{cls.kind: cls for cls in (Launches, Cold, Batch, Beside)},
    **SIGNALS,
}


def kind_of(target: str) -> str | None:
    """The kind of item of a target such as `contention_cpu`; None where it is for ops or shapes."""
    kind, _, processor = target.rpartition("_")
    return kind if kind in KINDS and processor in ("cpu", "gpu") else None


def read(target: str, text: str) -> Surrounding:
    """The item of a target from its text; raises `CodlError` with the text that is wrong."""
    found: Surrounding = KINDS[target.rpartition("_")[0]].read(text)
    return found


def _numbers(text: str, names: Sequence[str]) -> list[float]:
    pairs = [word.partition("=") for word in text.split()]
    try:
        if [name for name, _, _ in pairs] != list(names):
            raise ValueError
        return [float(value) for _, _, value in pairs]
    except ValueError:
        wanted = " ".join(f"{name}=NUMBER" for name in names)
        raise CodlError(f"Cannot read {text!r}: expected {wanted}.") from None


@dataclass(frozen=True)
class Observation:
    """One row as what is fitted: an item, the op that it must not be separated from, and ms."""

    target: str
    processor: str
    item: Surrounding
    shapes: tuple[Op | Surrounding, ...]
    latency_ms: float
    row: Row


def observations(dataset: Dataset) -> tuple[list[Observation], dict[str, tuple[Path, int]]]:
    """What the dataset tells about surroundings; and every table's path and failed rows."""
    observed: list[Observation] = []
    files: dict[str, tuple[Path, int]] = {}
    for kind in KINDS:
        table = dataset.table(kind)
        rows = table.read()
        if not rows:
            continue
        ok = [row for row in rows if row.status == "ok"]
        files[kind] = (table.path, len(rows) - len(ok))
        for row in ok:
            try:
                observed += _of_row(kind, row)
            except CodlError as error:
                raise InvalidFileError(table.path, str(error), where=f"{row.key}") from error
    return observed, files


def _of_row(
    kind: str, row: DispatchRow | SignalRow | ColdRow | BatchRow | ContentionRow
) -> list[Observation]:
    if isinstance(row, DispatchRow):
        launches = Launches(row.count)
        return [_observed(row.processor, launches, (launches,), row.latency_ms, row)]
    if isinstance(row, SignalRow):
        signal = SIGNALS[kind](row.gap_ms)
        return [_observed(signal.processor, signal, (signal,), row.latency_ms, row)]
    if isinstance(row, ColdRow):
        cold = Cold(parse(row.op), row.warm_ms)
        return [_observed(row.processor, cold, (cold.op,), row.latency_ms, row)]
    if isinstance(row, BatchRow):
        batch = Batch(parse(row.op), row.single_ms, row.images)
        return [_observed(row.processor, batch, (batch.op,), row.latency_ms, row)]
    ops = parse(row.cpu_op), parse(row.gpu_op)
    cpu, gpu = Workload.of(ops[0], row.cpu_alone_ms), Workload.of(ops[1], row.gpu_alone_ms)
    return [
        _observed("cpu", Beside(cpu, gpu), (ops[0],), row.cpu_together_ms, row),
        _observed("gpu", Beside(gpu, cpu), (ops[1],), row.gpu_together_ms, row),
    ]


def _observed(
    processor: str,
    item: Surrounding,
    shapes: tuple[Op | Surrounding, ...],
    latency_ms: float,
    row: Row,
) -> Observation:
    return Observation(f"{item.kind}_{processor}", processor, item, shapes, latency_ms, row)
