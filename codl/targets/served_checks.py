"""What an agent answers to the requests of `codl doctor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from codl.targets.check_messages import (
    Checking,
    CheckKernels,
    ChecksEnded,
    Examine,
    Examined,
    Import,
    Imported,
    KernelChecked,
    MeasurePace,
    Paced,
)
from codl.targets.local import LocalTarget
from codl.targets.message_base import Reply

Send: TypeAlias = Callable[[Checking | KernelChecked], None]


def answer(
    request: Examine | Import | MeasurePace | CheckKernels, target: LocalTarget, send: Send
) -> Reply:
    """The reply to a request; events on the way to it go to `send`."""
    if isinstance(request, Examine):
        return Examined(target.examine())
    if isinstance(request, Import):
        return Imported(target.import_package(request.package))
    if isinstance(request, MeasurePace):
        return Paced(tuple(target.pace(request.seconds)))
    return _check_kernels(request, target, send)


def _check_kernels(request: CheckKernels, target: LocalTarget, send: Send) -> ChecksEnded:
    from codl.measure.check_variants import task_of  # needs the libraries of both processors

    tasks = [task_of(own.op, own.variant) for own in request.tasks]
    index = {task.key: at for at, task in enumerate(tasks)}
    run = target.check_kernels(
        tasks,
        keep=lambda done: send(KernelChecked(index[done.task.key], done.problem)),
        checking=lambda task: send(Checking(index[task.key])),
        budget_s=request.budget_s,
    )
    return ChecksEnded(run.left)
