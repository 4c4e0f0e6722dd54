"""Collects what an executable is made of, each thing once, and gives it its number."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import sha256
from typing import Generic, TypeVar

from msgspec.structs import replace

from codl.ir.constants import Arrays, Constants
from codl.ir.executable import Access, Buffer, Command, Launch, Net, Place, Program, Step
from codl.ir.region import Region
from codl.ir.tensor import Tensor
from codl.ir.types import ImageSize
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
        text = source_text(plan)
        digest = sha256(text.encode()).hexdigest()
        self.texts[digest] = text
        return self.programs.number(Program(plan.source, digest, compile_options(plan.defines)))

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

    def take_commands(self) -> tuple[Command, ...]:
        """What was emitted since the last call."""
        taken, self.commands = tuple(self.commands), []
        return taken
