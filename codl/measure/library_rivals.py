"""Leaves out libraries of the CPU that are never near the fastest for a kind of op.

An op in one more library is one more measurement of every part of it. Where the first few show that
a library is far slower than another one, or does not run at all, the rest would change no plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from codl.ir import Op
from codl.ir.types import Processor
from codl.kernels import registry
from codl.measure.dataset import Row
from codl.measure.tasks import OpTask, Task

#: A library is left out once it took more than `FAR` times the fastest in each of `ENOUGH` parts.
ENOUGH, FAR = 8, 1.5
CPU: Processor = "cpu"


@dataclass
class LibraryRivals:
    """What libraries took for parts of ops, by kind; `left_out` are pairs of a kind and a library.

    The library of a kind's default variant always stays.
    """

    left_out: set[tuple[str, str]] = field(default_factory=set)
    _taken_ms: dict[str, dict[Op, dict[str, float]]] = field(default_factory=dict)

    def note(self, task: Task, row: Row) -> None:
        """Take in a row; what failed counts as infinitely slow."""
        if not isinstance(task, OpTask) or task.processor != "cpu":
            return
        library = _library(task)
        taken_ms = self._taken_ms.setdefault(task.op.kind, {}).setdefault(task.part, {})
        ms = row.latency_ms if row.status == "ok" else inf
        taken_ms[library] = min(taken_ms.get(library, inf), ms)
        if self._is_far(task.op.kind, library):
            self.left_out.add((task.op.kind, library))

    def leaves_out(self, task: Task) -> bool:
        if not self.left_out or not isinstance(task, OpTask) or task.processor != "cpu":
            return False
        return (task.op.kind, _library(task)) in self.left_out

    def _is_far(self, kind: str, library: str) -> bool:
        if library == registry.of_kind(kind, CPU)[0].backend:
            return False
        compared = [
            taken_ms[library] / min(ms for other, ms in taken_ms.items() if other != library)
            for taken_ms in self._taken_ms[kind].values()
            if library in taken_ms and min(taken_ms.values()) < inf and len(taken_ms) > 1
        ]
        return len(compared) >= ENOUGH and min(compared) > FAR


def _library(task: OpTask) -> str:
    return registry.find(task.op, task.variant, CPU).backend
