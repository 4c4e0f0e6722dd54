"""What the clock says of the stages that both processors share, from a run's waits alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from codl.ir.executable import Executable, GpuOp, Launch, RunNet, Stage, Transfer, Wait
from codl.runtime.adaptation import Sample


@dataclass(frozen=True)
class Stretch:
    """What lies between two stages in which the CPU waits for the GPU: `waits` of the later one.

    `is_shared` where both processors have work in every stage between. Only then does the wait say
    which of the two was done first.
    """

    waits: int
    is_shared: bool


class Watch:
    """Reads the marks of one executable's runs.

    A wait takes some time even where the GPU has long been idle: what is shared must still be
    copied. `calibrate` takes that off.
    """

    def __init__(self, executable: Executable) -> None:
        self.stretches = stretches(executable)
        #: The same, and what each exchange alone takes.
        self._plain = [(stretch.waits, stretch.is_shared, 0) for stretch in self.stretches]

    @property
    def sees(self) -> bool:
        """Whether there is a stage that says anything."""
        return any(stretch.is_shared for stretch in self.stretches)

    def calibrate(self, drained: Sequence[Sequence[int]]) -> None:
        """Take the marks of runs in which the GPU was idle whenever the CPU came to a stage."""
        exchanges = [min(own) for own in zip(*map(self._waits, drained), strict=True)]
        self._plain = [
            (*plain[:2], exchange) for plain, exchange in zip(self._plain, exchanges, strict=True)
        ]

    def sample(self, start: int, marks: Sequence[int], end: int) -> Sample:
        """A run from `start` to `end`, in nanoseconds: one plain loop, as every run pays for it."""
        taken, waited, last, at = 0, 0, start, 0
        for waits, is_shared, exchange in self._plain:
            wait = marks[at + 1] - marks[at]
            for other in range(at + 2, at + 2 * waits, 2):
                wait += marks[other + 1] - marks[other]
            at += 2 * waits
            if is_shared:
                taken += marks[at - 1] - last
                if wait > exchange:
                    waited += wait - exchange
            last = marks[at - 1]
        return Sample(end - start, taken - waited, waited)

    def _waits(self, marks: Sequence[int]) -> list[int]:
        """What the waits of every stretch took."""
        found, at = [], 0
        for stretch in self.stretches:
            stop = at + 2 * stretch.waits
            found.append(sum(marks[at + 1 : stop : 2]) - sum(marks[at:stop:2]))
            at = stop
        return found


def stretches(executable: Executable) -> tuple[Stretch, ...]:
    """Those of one inference, in order."""
    found: list[Stretch] = []
    between: list[tuple[bool, bool]] = []
    for stage in executable.stages:
        waits = sum(is_for_gpu(executable, one) for one in stage.commands if isinstance(one, Wait))
        if waits:
            found.append(Stretch(waits, bool(between) and all(map(all, between))))
            between = []
        works = _works(executable, stage)
        if any(works):
            between.append(works)
    return tuple(found)


def is_for_gpu(executable: Executable, wait: Wait) -> bool:
    """Whether the CPU waits for what the GPU computes, and not for memory that it is to fill."""
    step = executable.steps[wait.step]
    return not (isinstance(step, Transfer) and step.direction == "to_gpu")


def _works(executable: Executable, stage: Stage) -> tuple[bool, bool]:
    """Whether the CPU, and whether the GPU, computes something in a stage."""
    on_gpu = any(
        isinstance(one, Launch) and isinstance(executable.steps[one.step], GpuOp)
        for one in stage.commands
    )
    return any(isinstance(one, RunNet) for one in stage.commands), on_gpu
