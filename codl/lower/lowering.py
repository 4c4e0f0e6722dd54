"""From a plan to an executable: everything is decided here, and nothing is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from codl.ir.executable import (
    Constant,
    Executable,
    Fill,
    Flush,
    Launch,
    Map,
    Port,
    Refusal,
    Stage,
    Transfer,
    Unmap,
    Wait,
)
from codl.ir.network import Network
from codl.ir.plan import Plan
from codl.ir.region import Region
from codl.ir.soc import Soc
from codl.ir.tensor import Tensor
from codl.ir.types import BLOCKED, PLANAR, Processor, Storage
from codl.kernels.tuning import Tuning
from codl.lower.arena import GpuArena, HostArena
from codl.lower.assembly import Assembly
from codl.lower.cpu import lower_cpu
from codl.lower.gpu import GpuLowering, kept_storages
from codl.lower.kernels import KernelLowering
from codl.lower.liveness import lifetimes
from codl.lower.program import PartitionedPlan, Segment, TensorMove, build_program
from codl.lower.selection import Selector
from codl.lower.transfers import TransferLowering

#: What constants of the network are called.
VALUE = "value"


def lower(
    network: Network,
    plan: Plan,
    soc: Soc,
    tuning: Tuning,
    *,
    without: Sequence[Refusal] = (),
    fuse: bool = True,
) -> Executable:
    """Lower a plan for a network on a SoC; equal arguments give equal executables everywhere.

    `tuning` has the tuned choices of kernels, `without` what a device has refused to run. With
    `fuse` off, for comparisons, every layer has kernels of its own. Raises `MismatchError` where
    the plan is for another model or SoC, and `DeviceError` where no kernel is left for a layer.
    """
    program = build_program(network, plan, soc)
    return Lowering(network, program, Selector(soc, tuning, tuple(without)), fuse=fuse).run()


class Lowering:
    """One executable in the making; memory is taken and given back as stages go by.

    What enters and leaves the network, and what is constant, has memory of its own.
    """

    def __init__(
        self, network: Network, program: PartitionedPlan, selector: Selector, *, fuse: bool
    ) -> None:
        self._network, self._program, self._soc = network, program, selector.soc
        self._assembly = Assembly()
        self._host_arena = HostArena(self._assembly)
        self._gpu_arena = GpuArena(self._assembly, self._soc)
        self._kernels = KernelLowering(self._assembly, self._gpu_arena, self._soc)
        self._gpu = GpuLowering(self._assembly, self._gpu_arena, self._kernels, selector, fuse=fuse)
        #: Where tensors lie on either side, by name.
        self._host: dict[str, Tensor] = {}
        self._device: dict[str, Tensor] = {}
        self._transfers = TransferLowering(self._assembly, self._kernels, self._host, self._device)
        self._lives = lifetimes(program, shared_in_place=self._soc.gpu.sees_host_memory)
        results = {holder for holder, _ in network.outputs.values()}
        self._lasting = {*network.inputs, *network.constants, *results}
        planned = [
            (part, segment.chain.variants[part.layer.name]["gpu"])
            for segment in program.segments
            for part in segment.gpu.parts
        ]
        self._storages: Mapping[str, Storage] = kept_storages(planned, self._soc)

    def run(self) -> Executable:
        for name in sorted(self._lasting):
            self._take_host(name)
        self._fill_constants()
        setup = self._assembly.take_commands()
        stages = []
        for index, segment in enumerate(self._program.segments):
            self._begin(index)
            stages.append(self._stage(segment))
            self._end(index)
        self._begin(len(stages))
        stages.append(self._shared("outputs", self._program.final))
        if self._soc.gpu.sees_host_memory and self._program.is_read_at_the_end:
            stages = self._wait_at_the_end(stages)
        assembly, network = self._assembly, self._network
        return Executable(
            model=network.name,
            network=network.digest,
            soc=self._soc.name,
            buffers=tuple(assembly.buffers),
            constants=tuple(assembly.constants),
            texts=assembly.texts,
            programs=assembly.programs.values,
            nets=tuple(assembly.nets),
            steps=tuple(assembly.steps),
            setup=(*setup, *self._transfers.mapped),
            stages=tuple(stage for stage in stages if stage.commands),
            inputs={name: self._port(name, name, shape) for name, shape in network.inputs.items()},
            outputs={
                name: self._port(name, holder, shape)
                for name, (holder, shape) in network.outputs.items()
            },
            tensors=assembly.tensors.values,
        )

    def _wait_at_the_end(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stages with a wait for the last kernel, and whatever is enqueued before it."""
        stage, place, last = next(
            (stage, place, command)
            for stage, one in reversed([*enumerate(stages)])
            for place, command in reversed([*enumerate(one.commands)])
            if isinstance(command, Launch)
        )
        event = self._assembly.event() if last.signals is None else last.signals
        commands = list(stages[stage].commands)
        commands[place] = replace(last, signals=event)
        waited = [*stages]
        waited[stage] = replace(stages[stage], commands=tuple(commands))
        waited[-1] = replace(waited[-1], commands=(*waited[-1].commands, Wait(last.step, event)))
        return waited

    def _port(self, name: str, holder: str, shape: tuple[int, ...]) -> Port:
        tensor = self._assembly.tensors.number(self._host[holder])
        return Port(tensor, tuple(shape), self._network.types.get(name, "float32"))

    # Constants of the network.

    def _fill_constants(self) -> None:
        """Put them where each side reads them; those for the GPU go through one staging buffer."""
        constants = self._network.constants
        on_gpu = [name for name in constants if name in self._storages]
        largest = max((self._network.shapes[name].bytes for name in on_gpu), default=0)
        buffer = self._assembly.buffer("staging", largest) if on_gpu else -1
        for name, value in constants.items():
            number = self._assembly.add_constants(f"constant {name}", {VALUE: value})
            constant, whole = Constant(number, VALUE), Region.whole(self._network.shapes[name])
            host = self._assembly.access(self._host[name], whole)
            self._assembly.emit(Fill(None, constant, host))
            if name in self._storages:
                self._take_device(name)
                self._upload(name, constant, whole, buffer)

    def _upload(self, name: str, constant: Constant, whole: Region, buffer: int) -> None:
        assembly, target = self._assembly, self._device[name]
        staging = Tensor(name, buffer, target.shape, whole, PLANAR, 1)
        accesses = [assembly.access(tensor, whole) for tensor in (staging, target)]
        step = assembly.step(Transfer(f"constant {name}", "to_gpu", *accesses))
        event = assembly.event()
        assembly.emit(
            Map(step, buffer, "write", event),
            Wait(step, event),
            Fill(step, constant, accesses[0]),
            Unmap(step, buffer),
        )
        self._kernels.copy(staging, target, whole, step=step)

    # Memory.

    def _begin(self, stage: int) -> None:
        """Take memory for what is first held at a stage."""
        for name in self._program.held["cpu"]:
            if self._starts("cpu", name, stage) and name not in self._host:
                self._take_host(name)
        for name in self._program.held["gpu"]:
            if self._starts("gpu", name, stage) and name not in self._device:
                self._take_device(name)

    def _end(self, stage: int) -> None:
        """Give back the memory of what nothing needs after a stage."""
        for name, tensor in self._host.items():
            if self._ends("cpu", name, stage) and name not in self._lasting:
                self._host_arena.give(tensor)
        for name, tensor in self._device.items():
            if self._ends("gpu", name, stage) and name not in self._network.constants:
                self._gpu_arena.give(tensor)

    def _starts(self, processor: Processor, name: str, stage: int) -> bool:
        life = self._lives[processor].get(name)
        return life is not None and life.first == stage

    def _ends(self, processor: Processor, name: str, stage: int) -> bool:
        life = self._lives[processor].get(name)
        return life is not None and life.last == stage

    def _take_host(self, name: str) -> None:
        held = self._program.held["cpu"][name]
        is_shared = self._soc.gpu.sees_host_memory and name in self._program.moved
        shape = self._network.shapes[name]
        self._host[name] = self._host_arena.take(name, shape, held, is_shared=is_shared)

    def _take_device(self, name: str) -> None:
        """What is held may be more than any one part, and then too large for an image."""
        shape, held = self._network.shapes[name], self._program.held["gpu"][name]
        storage = self._storages.get(name, BLOCKED)
        if not self._gpu_arena.fits(shape, held, storage):
            storage = Storage(element=storage.element)
        self._device[name] = self._gpu_arena.take(name, shape, held, storage)

    # Stages.

    def _stage(self, segment: Segment) -> Stage:
        return self._shared(segment.chain.label, segment.transfers, segment)

    def _shared(
        self, label: str, transfers: tuple[TensorMove, ...], segment: Segment | None = None
    ) -> Stage:
        """The commands of a stage, in the order that keeps both processors busy.

        What the GPU has and the CPU lacks is sent off first, then the CPU hands over what the GPU
        lacks, then the GPU's whole shard is enqueued, and only then does the CPU wait for what it
        gets and compute.
        """
        emit = self._assembly.emit
        to_cpu = [move for move in transfers if move.direction == "to_cpu"]
        to_gpu = [move for move in transfers if move.direction == "to_gpu"]
        pending = [self._transfers.begin_to_cpu(move) for move in to_cpu]
        if pending:
            emit(Flush())
        for move in to_gpu:
            self._transfers.to_gpu(move)
        if segment is not None:
            self._gpu.lower(segment.gpu, segment.chain, self._device)
        if to_gpu or (segment is not None and segment.gpu.parts):
            emit(Flush())
        for one in pending:
            emit(*one.commands)
        if segment is not None and segment.cpu.parts:
            left = [name for name in segment.outputs if name in segment.cpu.outputs]
            lower_cpu(segment.cpu, segment.chain, self._host, left, self._assembly, self._soc)
        return Stage(label, self._assembly.take_commands())
