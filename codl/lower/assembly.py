"""Collects what an executable is made of, each thing once, and gives it its number."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import sha256
from typing import Generic, TypeVar

from msgspec.structs import replace

from codl.ir.constants import Arrays, Constants
from codl.ir.executable import (
    FLAG_BYTES,
    VERSION,
    WITH_FLAGS,
    Access,
    Buffer,
    Command,
    Launch,
    Net,
    Place,
    Program,
    Raise,
    Step,
)
from codl.ir.region import Region
from codl.ir.soc import Soc
from codl.ir.tensor import Tensor
from codl.ir.types import ImageSize
from codl.kernels import flag
from codl.kernels.base import KernelPlan
from codl.kernels.source import compile_options, source_text

T = TypeVar("T", bound=Hashable)


class Numbered(Generic[T]):
    """Values in the order in which they were first seen."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def __getitem__(self, number: int) -> T:
        return self.values[number]

    @property
    def values(self) -> tuple[T, ...]:
        return tuple(self._numbers)


class Assembly:
    """An executable in the making; commands go to the list that is open."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.tensors: Numbered[Tensor] = Numbered()
        self.programs: Numbered[Program] = Numbered()
        self.texts: dict[str, str] = {}
        self.constants: list[Constants] = []
        self.nets: list[Net] = []
        self.steps: list[Step] = []
        self.commands: list[Command] = []
        self._events = 0

    def buffer(self, place: Place, size: int, image: ImageSize | None = None) -> int:
        self.buffers.append(Buffer(place, size, image))
        return len(self.buffers) - 1

    def access(self, tensor: Tensor, region: Region) -> Access:
        return Access(self.tensors.number(tensor), region)

    def program(self, plan: KernelPlan) -> int:
        return self._program(plan.source, source_text(plan), compile_options(plan.defines))

    def _program(self, name: str, text: str, options: str) -> int:
        digest = sha256(text.encode()).hexdigest()
        self.texts[digest] = text
        return self.programs.number(Program(name, digest, options))

    def add_constants(
        self, how: str, weights: Arrays, pack: Callable[[], Arrays] | None = None
    ) -> int:
        """Constants that `pack` makes of weights, or the weights as they are."""
        self.constants.append(Constants(how, weights, pack or (lambda: weights)))
        return len(self.constants) - 1

    def net(self, net: Net) -> int:
        self.nets.append(net)
        return len(self.nets) - 1

    def step(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def event(self) -> int:
        self._events += 1
        return self._events - 1

    def emit(self, *commands: Command) -> None:
        self.commands += commands

    def signal(self, event: int) -> None:
        """Let the launch that was emitted last signal an event."""
        last = self.commands.pop()
        assert isinstance(last, Launch)
        self.emit(replace(last, signals=event))

    def raise_flag(self, event: int, *, step: int, soc: Soc) -> None:
        """Let a flag of its own signal an event when all that was emitted so far is done."""
        options = flag.flag_options(soc.gpu.opencl_version)
        program = self._program(flag.SOURCE, flag.flag_text(), options)
        buffer = self.buffer("flag", FLAG_BYTES)
        self.emit(Raise(step, program, flag.KERNEL, buffer, event))

    @property
    def version(self) -> int:
        """Of the executable: what has no flags is as it was before there were any."""
        has_flags = any(buffer.place == "flag" for buffer in self.buffers)
        return WITH_FLAGS if has_flags else VERSION

    def take_commands(self) -> tuple[Command, ...]:
        """What was emitted since the last call."""
        taken, self.commands = tuple(self.commands), []
        return taken
