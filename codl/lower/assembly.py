"""Builder of an executable: its deduplicated parts, and the memory plan of tensors and scratch.

Stages are counted from 0; the last exchange is one more. Kernels run in the order in which they
are enqueued, so the GPU's memory is free for others once the last command that uses it is
enqueued. The CPU's is not: a kernel may still have to read it, until the CPU has next waited for
the GPU. Memory that is taken again holds what was there, which is finite too. A new buffer is
allocated where no free one is large enough; of the free ones the smallest that fits is taken (best
fit), and none is ever freed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, TypeAlias, TypeVar

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
    Tensor,
)
from codl.ir.network import Network
from codl.ir.region import Region, Shape
from codl.ir.types import BLOCKED, PLANAR, PROCESSORS, ImageSize, Processor, Storage
from codl.kernels.base import KernelPlan
from codl.kernels.image import image_refusal
from codl.kernels.source import (
    FLAG_KERNEL,
    FLAG_SOURCE,
    compile_options,
    flag_options,
    flag_text,
    source_text,
)
from codl.lower.partition import PartitionedPlan
from codl.records.soc import Soc

#: A stage that never comes.
NEVER = 1 << 30
#: Buffers of one kind: their place, and the size where they are images.
Kind: TypeAlias = tuple[Place, ImageSize | None]


@dataclass(frozen=True)
class Lifetime:
    """The first and the last stage that memory is needed in."""

    first: int
    last: int

    def until(self, stage: int) -> Lifetime:
        return Lifetime(min(self.first, stage), max(self.last, stage))


#: What a processor is given and does not use.
UNUSED = Lifetime(NEVER, NEVER)


def lifetimes(
    partitioned: PartitionedPlan, *, shared_in_place: bool
) -> Mapping[Processor, Mapping[str, Lifetime]]:
    """By processor and tensor, of all that a processor ever holds.

    `shared_in_place`: kernels read the CPU's arrays, and not copies of them.
    """
    lives: dict[Processor, dict[str, Lifetime]] = {"cpu": {}, "gpu": {}}

    def use(processor: Processor, tensor: str, stage: int) -> None:
        lifetime = lives[processor].get(tensor, Lifetime(stage, stage))
        lives[processor][tensor] = lifetime.until(stage)

    exchanges = partitioned.exchanges
    waits = [any(t.direction == "to_cpu" for t in moves) for moves in exchanges]
    for stage, moves in enumerate(exchanges):
        for move in moves:
            use("cpu", move.tensor, stage)
            use("gpu", move.tensor, stage)
            if move.direction == "to_cpu" and stage:  # sent behind the GPU's shard before
                use("cpu", move.tensor, stage - 1)
            if move.direction == "to_gpu" and shared_in_place:
                later = (s for s in range(stage + 1, len(waits)) if waits[s])
                use("cpu", move.tensor, next(later, NEVER) - 1)
    for stage, segment in enumerate(partitioned.segments):
        for side, shard in zip(PROCESSORS, (segment.cpu, segment.gpu), strict=True):
            for tensor in (*shard.inputs, *(n for n in segment.outputs if n in shard.outputs)):
                use(side, tensor, stage)
    return lives


class Arena:
    """Memory for tensors of either side and for scratch of kernels, as buffers of an assembly.

    Whatever is given back may be taken at once: commands run in order.
    """

    def __init__(self, assembly: Assembly, soc: Soc) -> None:
        self._assembly, self._soc = assembly, soc
        self._free: dict[Kind, list[int]] = {}

    def host(self, name: str, shape: Shape, held: Region, *, is_shared: bool) -> Tensor:
        """The CPU's array for a region of the tensor `name`: planar float32.

        In host memory, or in memory that the GPU sees as it is.
        """
        place: Place = "shared" if is_shared else "cpu"
        buffer = self._take(place, held.shape(shape).bytes)
        return Tensor(name, buffer, shape, held, PLANAR, 1)

    def device(self, name: str, shape: Shape, held: Region, storage: Storage) -> Tensor:
        """The GPU's memory for a region of the tensor `name`, in whole blocks of channels."""
        block = {"blocked": self._soc.gpu.vector_width, "planar": 1, "image": 4}[storage.layout]
        empty = Tensor(name, -1, shape, held, storage, block)
        buffer = self._take("gpu", empty.bytes, empty.image_size)
        return Tensor(name, buffer, shape, held, storage, block)

    def scratch(self, size: int | ImageSize) -> int:
        """The number of a buffer of at least `size` bytes, or of an image of that size."""
        if isinstance(size, ImageSize):
            return self._take("gpu", size.bytes, size)
        return self._take("gpu", size)

    def give(self, buffer: int) -> None:
        """No command from here on reads or writes this buffer."""
        freed = self._assembly.buffers[buffer]
        self._free.setdefault((freed.place, freed.image), []).append(buffer)

    def _take(self, place: Place, size: int, image: ImageSize | None = None) -> int:
        free = self._free.setdefault((place, image), [])
        buffers = self._assembly.buffers
        fitting = [number for number in free if buffers[number].bytes >= size]
        if not fitting:
            return self._assembly.buffer(place, size, image)
        best = min(fitting, key=lambda number: buffers[number].bytes)
        free.remove(best)
        return best


class NetworkMemory:
    """Where the tensors of a network lie, by name: `host` arrays and `device` tensors.

    `storages` are those that the device keeps tensors in. What enters and leaves the network and
    what is constant has memory of its own; that of the others is given back stage by stage.
    """

    def __init__(
        self,
        network: Network,
        partitioned: PartitionedPlan,
        arena: Arena,
        storages: Mapping[str, Storage],
        soc: Soc,
    ) -> None:
        self.host: dict[str, Tensor] = {}
        self.device: dict[str, Tensor] = {}
        self._network, self._partitioned, self._arena = network, partitioned, arena
        self._storages, self._soc = storages, soc
        self._lives = lifetimes(partitioned, shared_in_place=soc.gpu.sees_host_memory)
        results = {holder for holder, _ in network.outputs.values()}
        fixed = network.constants.keys() & partitioned.held["cpu"].keys()
        ports: Collection[str] = {*network.inputs, *fixed, *results}
        #: What the CPU and the GPU never give back.
        self._lasting: Collection[str] = ports
        self._kept: Collection[str] = network.constants.keys()
        for name in sorted(ports):
            self._take_host(name)

    def begin(self, stage: int) -> None:
        """Take memory for what is first held at a stage."""
        for name in self._partitioned.held["cpu"]:
            if self._life("cpu", name).first == stage and name not in self.host:
                self._take_host(name)
        for name in self._partitioned.held["gpu"]:
            if self._life("gpu", name).first == stage and name not in self.device:
                self.take_device(name)

    def end(self, stage: int) -> None:
        """Give back the memory of what nothing needs after a stage."""
        for name, tensor in self.host.items():
            if self._life("cpu", name).last == stage and name not in self._lasting:
                self._arena.give(tensor.buffer)
        for name, tensor in self.device.items():
            if self._life("gpu", name).last == stage and name not in self._kept:
                self._arena.give(tensor.buffer)

    def take_device(self, name: str) -> Tensor:
        """What is held may be more than any one part, and then too large for an image."""
        shape, held = self._network.shapes[name], self._partitioned.held["gpu"][name]
        storage = self._storages.get(name, BLOCKED)
        if storage.layout == "image" and image_refusal(self._soc, [held.shape(shape)]):
            storage = Storage(element=storage.element)
        self.device[name] = self._arena.device(name, shape, held, storage)
        return self.device[name]

    def _take_host(self, name: str) -> None:
        held = self._partitioned.held["cpu"][name]
        is_shared = self._soc.gpu.sees_host_memory and name in self._partitioned.moved
        shape = self._network.shapes[name]
        self.host[name] = self._arena.host(name, shape, held, is_shared=is_shared)

    def _life(self, processor: Processor, name: str) -> Lifetime:
        return self._lives[processor].get(name, UNUSED)


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
        options = flag_options(soc.gpu.opencl_version)
        program = self._program(FLAG_SOURCE, flag_text(), options)
        buffer = self.buffer("flag", FLAG_BYTES)
        self.emit(Raise(step, program, FLAG_KERNEL, buffer, event))

    @property
    def version(self) -> int:
        """Of the executable: what has no flags is as it was before there were any."""
        has_flags = any(buffer.place == "flag" for buffer in self.buffers)
        return WITH_FLAGS if has_flags else VERSION

    def take_commands(self) -> tuple[Command, ...]:
        """What was emitted since the last call."""
        taken, self.commands = tuple(self.commands), []
        return taken
