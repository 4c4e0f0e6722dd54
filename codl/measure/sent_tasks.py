"""Tasks as records of text and numbers, for agents that measure them in another process.

An agent imports them before it knows its SoC; what makes tasks of them is in `task_records`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from codl.ir import Dim, Shape
from codl.ir.types import Direction, Processor, Signalling, Storage

#: No queue is left empty for longer, to see how it wakes up.
MOST_GAP_MS = 1000.0


class _TaskRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="task"):
    """Base of the records; ops are texts of `codl.ir.op_text`."""


class OpRecord(_TaskRecord, frozen=True, tag="op"):
    """An `OpTask`."""

    tables: tuple[str, ...]
    variant: str
    processor: Processor
    op: str
    dim: Dim
    share: float
    part: str


class SharingRecord(_TaskRecord, frozen=True, tag="sharing"):
    """A `SharingTask`."""

    direction: Direction
    shape: Shape
    storage: Storage


class DispatchRecord(_TaskRecord, frozen=True, tag="dispatch"):
    """A `DispatchTask`."""

    count: int


class SignalRecord(_TaskRecord, frozen=True, tag="signal"):
    """A `SignalTask`."""

    kind: Signalling
    gap_ms: Annotated[float, msgspec.Meta(ge=0, le=MOST_GAP_MS)]


class StageRecord(_TaskRecord, frozen=True, tag="stage"):
    """A `StageTask`."""

    before: str
    ops: tuple[str, ...]
    dim: Dim
    gpu_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)]


class BatchRecord(_TaskRecord, frozen=True, tag="batch"):
    """A `BatchTask`."""

    processor: Processor
    op: str
    images: int
    variant: str


TaskRecord: TypeAlias = (
    OpRecord | SharingRecord | DispatchRecord | SignalRecord | StageRecord | BatchRecord
)
