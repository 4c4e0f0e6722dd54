"""From tasks to their records, which are sent to agents, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from codl.errors import CodlError
from codl.ir import Op, parse, to_text
from codl.ir.ops.onnx_model import OnnxModel
from codl.measure.sent_tasks import (
    BatchRecord,
    DispatchRecord,
    OpRecord,
    SharingRecord,
    SignalRecord,
    StageRecord,
    TaskRecord,
)
from codl.measure.tasks import (
    BatchTask,
    DispatchTask,
    OpTask,
    SharingTask,
    SignalTask,
    StageTask,
    Task,
)

#: The ONNX models of ops that are one, by the digest that their texts have.
Models: TypeAlias = Mapping[str, bytes]


def to_record(task: Task) -> TaskRecord:
    """The record of a task; `models_of` has what its ops' texts do not hold."""
    if isinstance(task, OpTask):
        op, part = to_text(task.op), to_text(task.part)
        return OpRecord(task.tables, task.variant, task.processor, op, task.dim, task.share, part)
    if isinstance(task, SharingTask):
        return SharingRecord(task.direction, task.shape, task.storage)
    if isinstance(task, DispatchTask):
        return DispatchRecord(task.count)
    if isinstance(task, SignalTask):
        return SignalRecord(task.kind, task.gap_ms)
    if isinstance(task, StageTask):
        chain = tuple(to_text(op) for op in task.ops)
        return StageRecord(to_text(task.before), chain, task.dim, task.gpu_ratio)
    return BatchRecord(task.processor, to_text(task.op), task.images, task.variant)


def from_record(record: TaskRecord, models: Models) -> Task:
    """The task of a record; raises `CodlError` for a text that is no op, or a model that lacks."""
    if isinstance(record, OpRecord):
        op, part = op_of(record.op, models), op_of(record.part, models)
        return OpTask(
            record.tables, record.variant, record.processor, op, record.dim, record.share, part
        )
    if isinstance(record, SharingRecord):
        return SharingTask(record.direction, record.shape, record.storage)
    if isinstance(record, DispatchRecord):
        return DispatchTask(record.count)
    if isinstance(record, SignalRecord):
        return SignalTask(record.kind, record.gap_ms)
    if isinstance(record, StageRecord):
        chain = tuple(op_of(text, models) for text in record.ops)
        return StageTask(op_of(record.before, models), chain, record.dim, record.gpu_ratio)
    return BatchTask(record.processor, op_of(record.op, models), record.images, record.variant)


def models_of(tasks: Iterable[Task]) -> dict[str, bytes]:
    """The ONNX models of the tasks' ops, by digest."""
    return models_of_ops(op for task in tasks for op in _ops(task))


def models_of_ops(ops: Iterable[Op]) -> dict[str, bytes]:
    """The ONNX models of ops, by digest."""
    return {op.digest: op.model for op in ops if isinstance(op, OnnxModel)}


def op_of(text: str, models: Models) -> Op:
    """The op of a text; raises `CodlError` for one that is none, or whose model lacks."""
    op = parse(text)
    if not isinstance(op, OnnxModel):
        return op
    if op.digest not in models:
        raise CodlError(f"The ONNX model of the op {text!r} was not sent with it.")
    return replace(op, model=models[op.digest])


def _ops(task: Task) -> Sequence[Op]:
    if isinstance(task, OpTask):
        return task.op, task.part
    if isinstance(task, StageTask):
        return task.before, *task.ops
    return (task.op,) if isinstance(task, BatchTask) else ()
