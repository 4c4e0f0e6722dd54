"""Order of an executable's commands: proof that no two of them race for memory.

An enqueued command may run at any time until the CPU has waited for an event at or after it. The
order of accesses to memory of both processors must hold for any such time. The event of an
overwriting map means that the memory is mapped, and nothing about earlier commands: an NVIDIA
driver (580.159) signals it while earlier kernels still read the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir.executable import (
    Access,
    Command,
    Copy,
    Executable,
    Fill,
    GpuOp,
    Launch,
    Map,
    Net,
    Port,
    RunNet,
    Slice,
    Step,
    Unmap,
    Wait,
)

#: Number of the last queue command that used each element of a buffer, from 1.
LastUse: TypeAlias = NDArray[np.int64]


class OrderError(CodlError):
    """Two commands race for memory, or a wait is for an event that nothing signals."""


#: Commands with their places in the executable.
Placed: TypeAlias = tuple[str, Command]


class OrderWalk:
    """Follows the commands of an executable; subclasses may also compute.

    `at` is the present command. Raises `OrderError` for racing commands.
    """

    def __init__(self, executable: Executable) -> None:
        self.at = "setup"
        self.executable = executable
        #: Places of the enqueued commands, and number of commands known to have finished.
        self._enqueued: list[str] = []
        self._done = 0
        #: Effects of waiting for signalled events: the number of finished commands, and the mapped
        #: buffer, if any.
        self._events: dict[int, tuple[int, int | None]] = {}
        #: Mapped staging buffers with the number of their map command; buffers whose map was waited
        #: for; and the last GPU command that used each buffer.
        self._mapped: dict[int, tuple[int, Map]] = {}
        self._arrived: set[int] = set()
        self._used: dict[int, int] = {}
        shared = {n: b.bytes // 4 for n, b in enumerate(executable.buffers) if b.place == "shared"}
        self._read = {number: np.zeros(size, np.int64) for number, size in shared.items()}
        self._written = {number: np.zeros(size, np.int64) for number, size in shared.items()}
        self._interpret(executable.setup, "setup")

    # Commands.

    def enqueue(self, signals: int | None = None) -> None:
        """Enqueue the present command."""
        self._enqueued.append(self.at)
        if signals is not None:
            self._events[signals] = len(self._enqueued), None

    def wait(self, command: Wait) -> None:
        event = self._events.pop(command.event, None)
        if event is None:
            raise OrderError(f"{self.at} waits for the event {command.event}: nothing signals it.")
        done, buffer = event
        self._done = max(self._done, done)
        if buffer is not None:
            self._arrived.add(buffer)

    def map(self, command: Map) -> None:
        if command.buffer in self._mapped:
            self._refuse_mapping(command.buffer, "it is mapped already")
        self.enqueue()
        done = len(self._enqueued) if command.access == "read" else 0
        self._events[command.signals] = done, command.buffer
        self._mapped[command.buffer] = len(self._enqueued), command

    def unmap(self, command: Unmap) -> None:
        self._seen(command.buffer)
        del self._mapped[command.buffer]
        self._arrived.discard(command.buffer)
        self.enqueue()

    # Memory.

    def cpu_uses(self, access: Access, *, writes: bool) -> None:
        """Record that the CPU reads or writes a region now."""
        buffer = self.executable.tensors[access.tensor].buffer
        place = self.executable.buffers[buffer].place
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
        """Record that the last enqueued command reads or writes a region."""
        buffer = self.executable.tensors[access.tensor].buffer
        place = self.executable.buffers[buffer].place
        if place == "cpu":
            raise OrderError(f"{self.at}: the GPU sees nothing of buffers[{buffer}], the CPU's.")
        if place == "staging" and buffer in self._mapped:
            self._refuse_mapping(buffer, "the GPU uses it while it is mapped")
        if place == "staging":
            self._used[buffer] = len(self._enqueued)
        if place == "shared":
            last = self._written if writes else self._read
            self._last_uses(last[buffer], access)[:] = len(self._enqueued)

    def _seen(self, buffer: int) -> Map:
        """The map of a staging buffer that the CPU uses now; raises `OrderError` if not mapped."""
        if buffer not in self._mapped:
            self._refuse_mapping(buffer, "it is not mapped")
        since, command = self._mapped[buffer]
        if buffer not in self._arrived:
            self._refuse_mapping(buffer, f"nothing waited for {self._enqueued[since - 1]}")
        return command

    def _check_done(self, last: LastUse, access: Access, does: str, *, writes: bool) -> None:
        latest = int(self._last_uses(last, access).max(initial=0))
        if latest > self._done:
            name = self.executable.tensors[access.tensor].name
            verb = "writes" if writes else "reads"
            raise OrderError(
                f"{self.at} {verb} {name} ({access.region}) on the CPU while "
                f"{self._enqueued[latest - 1]} {does} it on the GPU: no wait lies between."
            )

    def _last_uses(self, last: LastUse, access: Access) -> LastUse:
        tensor = self.executable.tensors[access.tensor]
        held = tensor.held.shape(tensor.shape)
        whole = last[: held.elements].reshape(held)
        return whole[access.region.within(tensor.held).slices]

    def _refuse_mapping(self, buffer: int, problem: str) -> None:
        raise OrderError(f"{self.at}: the staging memory buffers[{buffer}]: {problem}.")

    # The walk.

    def run(self) -> None:
        """Follow one inference."""
        self._caller_uses(self.executable.inputs, writes=True)
        for number, stage in enumerate(self.executable.stages):
            self._interpret(stage.commands, f"stages[{number}].commands")
        self._caller_uses(self.executable.outputs, writes=False)

    def _caller_uses(self, ports: Mapping[str, Port], *, writes: bool) -> None:
        """Record that the caller writes inputs before a run, or reads outputs after it."""
        self.at = "the caller"
        for port in ports.values():
            held = self.executable.tensors[port.tensor].held
            self.cpu_uses(Access(port.tensor, held), writes=writes)

    def _interpret(self, commands: Sequence[Command], where: str) -> None:
        placed = [
            (f"{where}[{number}] ({describe(command, self.executable)})", command)
            for number, command in enumerate(commands)
        ]
        # Grouped by the step of a launch; None for other commands.
        steps = groupby(placed, lambda pair: pair[1].step if isinstance(pair[1], Launch) else None)
        for step, group in steps:
            if step is None:
                for self.at, command in group:
                    self._on_cpu(command)
            else:
                self._launch(step, list(group))

    def _on_cpu(self, command: Command) -> None:
        """A command of the CPU, or one that it enqueues."""
        if isinstance(command, RunNet):
            self._run_net(self.executable.nets[command.net])
        elif isinstance(command, Copy):
            self._copy(command)
        elif isinstance(command, Fill):
            self.cpu_uses(command.target, writes=True)
        elif isinstance(command, Wait):
            self.wait(command)
        elif isinstance(command, Map):
            self.map(command)
        elif isinstance(command, Unmap):
            self.unmap(command)

    def _copy(self, command: Copy) -> None:
        self.cpu_uses(command.source, writes=False)
        self.cpu_uses(command.target, writes=True)

    def _run_net(self, net: Net) -> None:
        for access in net.reads:
            self.cpu_uses(access, writes=False)
        for access in net.writes:
            self.cpu_uses(access, writes=True)

    def _launch(self, number: int, group: Sequence[Placed]) -> None:
        """The launches of a step."""
        _, _, target = self._enqueue(self.executable.steps[number], group)
        self.gpu_uses(target, writes=True)

    def _enqueue(
        self, step: Step, group: Sequence[Placed]
    ) -> tuple[list[Launch], tuple[Access, ...], Access]:
        """Enqueue the launches of a step; returns them with the step's reads and target."""
        launches = [launch for _, launch in group if isinstance(launch, Launch)]
        for self.at, launch in zip((at for at, _ in group), launches, strict=True):
            self.enqueue(launch.signals)
        reads, target = self._accesses(step, launches)
        for access in reads:
            self.gpu_uses(access, writes=False)
        return launches, reads, target

    def _accesses(
        self, step: Step, launches: Sequence[Launch]
    ) -> tuple[tuple[Access, ...], Access]:
        """The reads and the target of a step's kernels.

        If no kernel uses one end of a transfer, the CPU copies it from or to staging memory.
        """
        if isinstance(step, GpuOp):
            self._refuse_others(step, launches)
            return step.reads, step.writes
        tensors, buffers = self.executable.tensors, self.executable.buffers
        touched = {slice.tensor for slice in slices_of(launches)}
        staged = [t for t in touched if buffers[tensors[t].buffer].place == "staging"]

        def in_staging(access: Access) -> Access:
            if access.tensor in touched:
                return access
            if len(staged) != 1 or not tensors[staged[0]].held.covers(access.region):
                name = tensors[access.tensor].name
                raise CodlError(f"{self.at}: no kernel touches {name} ({access.region}).")
            return Access(staged[0], access.region)

        return (in_staging(step.source),), in_staging(step.target)

    def _refuse_others(self, step: GpuOp, launches: Sequence[Launch]) -> None:
        """Raise `CodlError` if the kernels of an op use other regions than its step."""
        said = {(access.tensor, access.region) for access in (*step.reads, step.writes)}
        touched = {(slice.tensor, slice.region) for slice in slices_of(launches)}
        for tensor, region in said ^ touched:
            name = self.executable.tensors[tensor].name
            raise CodlError(
                f"{self.at}: of {name} ({region}) the step {step.label!r} and its kernels "
                "do not say the same."
            )


def check_order(executable: Executable) -> None:
    """Raise `OrderError` if two commands race, in one run or between two.

    Outputs of racing commands depend on timing, so no run can show that they are right.
    """
    walk = OrderWalk(executable)
    for _ in range(2):
        walk.run()


def describe(command: Command, executable: Executable) -> str:
    """Kind and object of a command, such as `launch of conv1`."""
    kind = type(command).__name__.lower()
    if isinstance(command, RunNet):
        return f"run of {executable.nets[command.net].label}"
    step: int | None = getattr(command, "step", None)
    return kind if step is None else f"{kind} of {executable.steps[step].label}"


def slices_of(launches: Sequence[Launch]) -> Iterator[Slice]:
    for launch in launches:
        yield from (arg for arg in launch.args if isinstance(arg, Slice))
