"""Race checks of an executable: an in-order queue beside a CPU that waits for events.

A command that is enqueued may run at any time from then until the CPU has waited for an event at or
behind it. Memory that both processors use must be used in an order that holds whenever that is.

The event of a map that overwrites says that the memory is there, and nothing of what was enqueued
before: an NVIDIA driver (580.159) gives it while kernels before it still read that memory.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir.executable import Access, Executable, Map, Unmap, Wait

#: For each element of a buffer the last command of the queue that used it, counted from 1.
LastUse: TypeAlias = NDArray[np.int64]


class OrderError(CodlError):
    """Two commands use the same memory in no order, or an event is waited for that never comes."""


class Completion(NamedTuple):
    """What is known once an event was waited for: commands that are done, and what is mapped."""

    done: int
    buffer: int | None = None


class Ordering:
    """Follows an executable's commands and refuses those that would race.

    `at` is the place of the command that is being looked at.
    """

    def __init__(self, executable: Executable) -> None:
        self.at = "setup"
        self._executable = executable
        #: The places of what was enqueued, and how much of it the CPU knows to be done.
        self._enqueued: list[str] = []
        self._done = 0
        #: Events that were signalled and not yet waited for.
        self._events: dict[int, Completion] = {}
        #: Staging buffers that are mapped, how, and by which command; those whose event was waited
        #: for; and the last command of the GPU that used each.
        self._mapped: dict[int, tuple[int, Map]] = {}
        self._arrived: set[int] = set()
        self._used: dict[int, int] = {}
        shared = {n: b.bytes // 4 for n, b in enumerate(executable.buffers) if b.place == "shared"}
        self._read = {number: np.zeros(size, np.int64) for number, size in shared.items()}
        self._written = {number: np.zeros(size, np.int64) for number, size in shared.items()}

    # Commands.

    def enqueue(self, signals: int | None = None) -> None:
        """The command at `at` is the queue's next."""
        self._enqueued.append(self.at)
        if signals is not None:
            self._events[signals] = Completion(len(self._enqueued))

    def wait(self, command: Wait) -> None:
        event = self._events.pop(command.event, None)
        if event is None:
            raise OrderError(f"{self.at} waits for the event {command.event}: nothing signals it.")
        self._done = max(self._done, event.done)
        if event.buffer is not None:
            self._arrived.add(event.buffer)

    def map(self, command: Map) -> None:
        if command.buffer in self._mapped:
            self._refuse_mapping(command.buffer, "it is mapped already")
        self.enqueue()
        done = len(self._enqueued) if command.access == "read" else 0
        self._events[command.signals] = Completion(done, command.buffer)
        self._mapped[command.buffer] = len(self._enqueued), command

    def unmap(self, command: Unmap) -> None:
        self._seen(command.buffer)
        del self._mapped[command.buffer]
        self._arrived.discard(command.buffer)
        self.enqueue()

    # Memory.

    def cpu_uses(self, access: Access, *, writes: bool) -> None:
        """The CPU reads or writes a region now."""
        buffer = self._executable.tensors[access.tensor].buffer
        place = self._executable.buffers[buffer].place
        if place == "gpu":
            raise OrderError(f"{self.at}: the CPU sees nothing of buffers[{buffer}], the GPU's.")
        if place == "staging":
            wanted = "write" if writes else "read"
            if self._seen(buffer).access != wanted:
                self._refuse_mapping(buffer, f"it is not mapped to {wanted} it")
            used = self._used.get(buffer, 0)
            if used > self._done:
                self._refuse_mapping(buffer, f"{self._enqueued[used - 1]} may still use it")
        elif place == "shared":
            self._check_done(self._written[buffer], access, "writes", writes=writes)
            if writes:
                self._check_done(self._read[buffer], access, "reads", writes=True)

    def gpu_uses(self, access: Access, *, writes: bool) -> None:
        """The command that was enqueued last reads or writes a region."""
        buffer = self._executable.tensors[access.tensor].buffer
        place = self._executable.buffers[buffer].place
        if place == "cpu":
            raise OrderError(f"{self.at}: the GPU sees nothing of buffers[{buffer}], the CPU's.")
        if place == "staging" and buffer in self._mapped:
            self._refuse_mapping(buffer, "the GPU uses it while it is mapped")
        if place == "staging":
            self._used[buffer] = len(self._enqueued)
        if place == "shared":
            last = self._written if writes else self._read
            self._part(last[buffer], access)[:] = len(self._enqueued)

    def _seen(self, buffer: int) -> Map:
        """How a staging buffer is mapped that the CPU uses now."""
        if buffer not in self._mapped:
            self._refuse_mapping(buffer, "it is not mapped")
        since, command = self._mapped[buffer]
        if buffer not in self._arrived:
            self._refuse_mapping(buffer, f"nothing waited for {self._enqueued[since - 1]}")
        return command

    def _check_done(self, last: LastUse, access: Access, does: str, *, writes: bool) -> None:
        latest = int(self._part(last, access).max(initial=0))
        if latest > self._done:
            name = self._executable.tensors[access.tensor].name
            verb = "writes" if writes else "reads"
            raise OrderError(
                f"{self.at} {verb} {name} ({access.region}) on the CPU while "
                f"{self._enqueued[latest - 1]} {does} it on the GPU: no wait lies between."
            )

    def _part(self, last: LastUse, access: Access) -> LastUse:
        tensor = self._executable.tensors[access.tensor]
        held = tensor.held.shape(tensor.shape)
        whole = last[: held.elements].reshape(held)
        return whole[access.region.within(tensor.held).slices]

    def _refuse_mapping(self, buffer: int, problem: str) -> None:
        raise OrderError(f"{self.at}: the staging memory buffers[{buffer}]: {problem}.")
