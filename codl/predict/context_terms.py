"""Context terms: what launches, signals and batches add to ops.

Each is asked for with an item of its own, beside ops and shapes: how many launches, how long a
queue was empty or the CPU waited, and an op with its latency for one image. What the rest of a
network adds to an op is in `codl.predict.in_network_cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from codl.errors import CodlError
from codl.ir import Op, parse, to_text
from codl.ir.columns import FeatureColumns, elements
from codl.ir.types import Processor
from codl.measure.dataset import BatchRow, DispatchRow, SignalRow


@dataclass(frozen=True)
class Launches:
    """`count` kernels, from enqueueing to their end."""

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


ContextItem: TypeAlias = Launches | Gap | Batch
SIGNALS: dict[str, type[Gap]] = {cls.kind: cls for cls in (FirstLaunch, EventWait, FlagWait)}
KINDS: dict[str, type[Any]] = {
    **{cls.kind: cls for cls in (Launches, Batch)},
    **SIGNALS,
}


def kind_of(target: str) -> str | None:
    """The kind of item of a target such as `contention_cpu`; None where it is for ops or shapes."""
    kind, _, processor = target.rpartition("_")
    return kind if kind in KINDS and processor in ("cpu", "gpu") else None


def read(target: str, text: str) -> ContextItem:
    """The item of a target from its text; raises `CodlError` with the text that is wrong."""
    item: ContextItem = KINDS[target.rpartition("_")[0]].read(text)
    return item


def _numbers(text: str, names: Sequence[str]) -> list[float]:
    pairs = [word.partition("=") for word in text.split()]
    try:
        if [name for name, _, _ in pairs] != list(names):
            raise ValueError
        return [float(value) for _, _, value in pairs]
    except ValueError:
        wanted = " ".join(f"{name}=NUMBER" for name in names)
        raise CodlError(f"Cannot read {text!r}: expected {wanted}.") from None


def item_of(kind: str, row: DispatchRow | SignalRow | BatchRow) -> tuple[Processor, ContextItem]:
    """The processor and the item of a row of a kind's table."""
    if isinstance(row, DispatchRow):
        return row.processor, Launches(row.count)  # type: ignore[return-value]
    if isinstance(row, SignalRow):
        signal = SIGNALS[kind](row.gap_ms)
        return signal.processor, signal
    return row.processor, Batch(parse(row.op), row.single_ms, row.images)  # type: ignore[return-value]
