"""Builder of an executable: deduplicated parts, and the memory plan of tensors and scratch.

Stages are counted from 0; the last exchange counts as one more. Kernels run in the order in which
they are enqueued, so GPU memory is free once its last command is enqueued. CPU memory is free only
after the CPU has next waited for the GPU, because a kernel may still have to read it. The memory
plan takes the smallest free buffer that fits (best fit), or else allocates one. Buffers are never
freed, and a buffer that is taken again still holds its old, finite values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from hashlib import sha256
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec import structs

from codl.ir import executable
from codl.ir.constants import Arrays, Constants
from codl.ir.executable import Buffer, Command, Executable, Net, Place, Program, Step, Tensor
from codl.ir.network import Network
from codl.ir.records.soc import Soc
from codl.ir.region import Region, Shape
from codl.ir.types import BLOCKED, PLANAR, PROCESSORS, ImageSize, Processor, Storage
from codl.kernels.base import KernelPlan
from codl.kernels.source import compile_options, text_of
from codl.kernels.tiling import image_refusal
from codl.lower.partition import PartitionedPlan

#: A stage number beyond every stage, also of tensors that a processor holds and does not use.
NEVER = 1 << 30
#: Buffers of one kind: their place, and the size where they are images.
Kind: TypeAlias = tuple[Place, ImageSize | None]


class Lifetime(NamedTuple):
    """The first and the last stage in which a tensor needs memory."""

    first: int
    last: int


def lifetimes(
    partitioned: PartitionedPlan, *, shared_in_place: bool
) -> Mapping[Processor, Mapping[str, Lifetime]]:
    """The lifetime of each tensor by processor; with `shared_in_place`, kernels read CPU arrays."""
    lives: dict[Processor, dict[str, Lifetime]] = {"cpu": {}, "gpu": {}}

    def use(processor: Processor, tensor: str, stage: int) -> None:
        first, last = lives[processor].get(tensor, (stage, stage))
        lives[processor][tensor] = Lifetime(min(first, stage), max(last, stage))

    exchanges = partitioned.exchanges
    waits = [any(t.direction == "to_cpu" for t in moves) for moves in exchanges]
    for stage, moves in enumerate(exchanges):
        for move in moves:
            use("cpu", move.tensor, stage)
            use("gpu", move.tensor, stage)
            if move.direction == "to_cpu" and stage:  # sent right after the GPU's previous shard
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
    """Memory for tensors of both processors and for scratch, as buffers of an assembly.

    A buffer that is given back may be taken at once, because commands run in order.
    """

    def __init__(self, assembly: Assembly, soc: Soc) -> None:
        self._assembly, self._soc = assembly, soc
        self._free: dict[Kind, list[int]] = {}

    def host(self, name: str, shape: Shape, held: Region, *, is_shared: bool) -> Tensor:
        """A planar float32 array for a region of `name`; with `is_shared`, kernels access it."""
        place: Place = "shared" if is_shared else "cpu"
        buffer = self._take(place, held.shape(shape).bytes)
        return Tensor(name, buffer, shape, held, PLANAR, 1)

    def device(self, name: str, shape: Shape, held: Region, storage: Storage) -> Tensor:
        """GPU memory for a region of the tensor `name`, in whole blocks of channels."""
        block = {"blocked": self._soc.gpu.vector_width, "planar": 1, "image": 4}[storage.layout]
        empty = Tensor(name, -1, shape, held, storage, block)
        buffer = self._take("gpu", empty.bytes, empty.image_size)
        return Tensor(name, buffer, shape, held, storage, block)

    def scratch(self, size: int | ImageSize) -> int:
        """The number of a buffer of at least `size` bytes, or of an image of that size."""
        image = size if isinstance(size, ImageSize) else None
        return self._take("gpu", size if isinstance(size, int) else size.bytes, image)

    def give(self, buffer: int) -> None:
        """Give back a buffer; no later command may read or write it for its old tensor."""
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
    """The memory of a network's tensors by name: `host` arrays and `device` tensors.

    `storages` has the storage of each tensor on the device. Inputs, outputs and constants have
    memory of their own; other tensors give theirs back after their last stage.
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
        #: The tensors whose memory the CPU never gives back; the GPU keeps the constants.
        self._lasting = {*network.inputs, *fixed, *results}
        for name in sorted(self._lasting):
            self._take_host(name)

    def begin(self, stage: int) -> None:
        """Take memory for the tensors whose lifetime begins at a stage."""
        for name in self._partitioned.held["cpu"]:
            if self._life("cpu", name).first == stage and name not in self.host:
                self._take_host(name)
        for name in self._partitioned.held["gpu"]:
            if self._life("gpu", name).first == stage and name not in self.device:
                self.take_device(name)

    def end(self, stage: int) -> None:
        """Give back the memory of the tensors whose lifetime ends at a stage."""
        for name, tensor in self.host.items():
            if self._life("cpu", name).last == stage and name not in self._lasting:
                self._arena.give(tensor.buffer)
        for name, tensor in self.device.items():
            if self._life("gpu", name).last == stage and name not in self._network.constants:
                self._arena.give(tensor.buffer)

    def take_device(self, name: str) -> Tensor:
        """Take device memory for a tensor; a region too large for an image becomes a buffer."""
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
        return self._lives[processor].get(name, Lifetime(NEVER, NEVER))


T = TypeVar("T", bound=Hashable)


class Numbered(Generic[T]):
    """Numbers distinct values in the order in which they come."""

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
    """Collects the parts of an executable; commands gather until `take_commands`."""

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

    def access(self, tensor: Tensor, region: Region) -> executable.Access:
        return executable.Access(self.tensors.number(tensor), region)

    def program(self, plan: KernelPlan) -> int:
        text = text_of(plan.source)
        digest = sha256(text.encode()).hexdigest()
        self.texts[digest] = text
        return self.programs.number(Program(plan.source, digest, compile_options(plan.defines)))

    def add_constants(
        self, how: str, weights: Arrays, pack: Callable[[], Arrays] | None = None
    ) -> int:
        """Add constants that `pack` makes from weights, or the weights themselves."""
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
        last = self.commands.pop()
        assert isinstance(last, executable.Launch)
        self.emit(structs.replace(last, signals=event))

    def executable(self, **ports: Any) -> Executable:
        """The executable of all parts."""
        return Executable(
            buffers=tuple(self.buffers),
            constants=tuple(self.constants),
            texts=self.texts,
            programs=self.programs.values,
            nets=tuple(self.nets),
            steps=tuple(self.steps),
            tensors=self.tensors.values,
            **ports,
        )

    def take_commands(self) -> tuple[Command, ...]:
        """The commands that were emitted since the last call."""
        taken, self.commands = tuple(self.commands), []
        return taken
