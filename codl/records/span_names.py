"""The names of an executable's commands in profiles: engines note them, readers look them up."""

from __future__ import annotations

from typing import NamedTuple

from codl.ir.executable import (
    Command,
    Copy,
    Executable,
    GpuOp,
    Launch,
    Relayout,
    RunNet,
    Transfer,
    Unmap,
    Wait,
)
from codl.records.results import SpanKind


class SpanName(NamedTuple):
    kind: SpanKind
    label: str


def span_of(executable: Executable, command: Command) -> SpanName | None:
    """The kind and the label of a command's span; None for what has none, such as a flush."""
    if isinstance(command, RunNet):
        return SpanName("net", executable.nets[command.net].label)
    if isinstance(command, Launch):
        return _launched(executable, command)
    if not isinstance(command, Copy | Unmap | Wait):
        return None
    step = executable.steps[command.step]
    if isinstance(command, Copy):
        return SpanName("copy", step.label)
    if isinstance(command, Unmap):
        return SpanName("unmap", step.label)
    # The CPU waits for memory that it is to fill, or for what the GPU computes.
    is_to_gpu = isinstance(step, Transfer) and step.direction == "to_gpu"
    return SpanName("map" if is_to_gpu else "sync", step.label)


def _launched(executable: Executable, launch: Launch) -> SpanName:
    step = executable.steps[launch.step]
    if isinstance(step, GpuOp):
        return SpanName("kernel", step.label)
    label = transform_label(executable, step)
    return SpanName("transform" if isinstance(step, Transfer) else "kernel", label)


def transform_label(executable: Executable, step: Transfer | Relayout) -> str:
    return f"transform {executable.tensors[step.source.tensor].name}"
