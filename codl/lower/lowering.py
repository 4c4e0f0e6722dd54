"""From a plan to an executable: everything is decided here, and nothing is touched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from codl.errors import MismatchError
from codl.ir.executable import (
    Access,
    Command,
    Constant,
    Executable,
    Fill,
    Flush,
    Launch,
    Map,
    Net,
    Port,
    Refusal,
    RunNet,
    Stage,
    Tensor,
    Transfer,
    Unmap,
    Wait,
)
from codl.ir.network import Network
from codl.ir.op_text import to_text
from codl.ir.ops.base import Array
from codl.ir.plan import Plan
from codl.ir.region import Region
from codl.ir.types import PLANAR, PROCESSORS, Element
from codl.kernels.tuning import Tuning
from codl.lower.assembly import Arena, Assembly, NetworkMemory
from codl.lower.gpu import GpuLowering, KernelLowering, Selector, kept_storages
from codl.lower.nets import CpuLayer, Group, grouped, lower_ncnn
from codl.lower.onnx import lower_onnx
from codl.lower.partition import Part, PartitionedPlan, Segment, TensorMove, partition_plan
from codl.lower.transfers import TransferLowering
from codl.records.soc import Soc

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
    the plan is for another model or SoC, lacks a variant, or has one that is wrong on the SoC, and
    `NoKernelError` where no kernel is left for a layer.
    """
    selector = Selector(soc, tuning, tuple(without), fuse)
    partitioned = partition_plan(network, plan, soc)
    _check_variants(partitioned, soc)
    return Lowering(partitioned, selector).run(network.digest)


def _check_variants(partitioned: PartitionedPlan, soc: Soc) -> None:
    """Raise `MismatchError` where a plan has no variant for what a processor is to compute.

    Or one in which the SoC file says that the op is wrong.
    """
    wrong = {(fallback.op, fallback.processor, fallback.variant) for fallback in soc.fallbacks}
    for segment in partitioned.segments:
        for processor, shard in zip(PROCESSORS, (segment.cpu, segment.gpu), strict=True):
            for layer in (part.layer for part in shard.parts):
                variant = segment.chain.variants.get(layer.name, {}).get(processor)
                if variant is None:
                    raise MismatchError(
                        f"The plan names no kernel variant of the {processor} for {layer.name!r}, "
                        "of which that computes a part: `codl search` makes one that does."
                    )
                if wrong and (to_text(layer.op), processor, variant) in wrong:
                    raise MismatchError(
                        f"The plan runs {layer.name!r} in {variant}, and the file of the SoC "
                        f"{soc.name!r} says that this op is wrong in it (fallbacks). `codl search` "
                        "makes a plan that keeps to it."
                    )


class Lowering:
    """One executable in the making; memory is taken and given back as stages go by."""

    def __init__(self, partitioned: PartitionedPlan, selector: Selector) -> None:
        self._partitioned, self._soc = partitioned, selector.soc
        network = self._network = partitioned.network
        planned = [
            (part, segment.chain.variants[part.layer.name]["gpu"])
            for segment in partitioned.segments
            for part in segment.gpu.parts
        ]
        self._storages = kept_storages(planned, selector)
        self._assembly = Assembly()
        arena = Arena(self._assembly, self._soc)
        self._memory = NetworkMemory(network, partitioned, arena, self._storages, self._soc)
        self._kernels = KernelLowering(self._assembly, arena, self._soc)
        self._gpu = GpuLowering(self._assembly, arena, self._kernels, selector)
        self._transfers = TransferLowering(
            self._assembly, self._kernels, self._memory.host, self._memory.device, self._soc
        )
        #: What the CPU does in the next stage with each region that is then on its way to it.
        self._arrivals: list[tuple[Command, ...]] = []

    def run(self, digest: str) -> Executable:
        """The executable of a network of this digest."""
        self._fill_constants()
        setup = self._assembly.take_commands()
        stages, (_, *following) = [], self._partitioned.exchanges
        for index, segment in enumerate(self._partitioned.segments):
            self._memory.begin(index)
            if not index:
                self._send_to_cpu(segment.transfers)
            stages.append(
                self._stage(segment.chain.label, segment.transfers, segment, following[index])
            )
            self._memory.end(index)
        self._memory.begin(len(stages))
        if not stages:
            self._send_to_cpu(self._partitioned.final)
        stages.append(self._stage("outputs", self._partitioned.final))
        if self._soc.gpu.sees_host_memory and self._partitioned.is_read_at_the_end:
            stages = self._wait_at_the_end(stages)
        assembly, network = self._assembly, self._network
        return Executable(
            model=network.name,
            network=digest,
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
            version=assembly.version,
        )

    def _wait_at_the_end(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stages with a wait for the last kernel, and whatever is enqueued before it."""
        stage, place, last = next(
            (stage, place, command)
            for stage, candidate in reversed([*enumerate(stages)])
            for place, command in reversed([*enumerate(candidate.commands)])
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
        tensor = self._assembly.tensors.number(self._memory.host[holder])
        return Port(tensor, tuple(shape), self._network.types.get(name, "float32"))

    # Constants of the network.

    def _fill_constants(self) -> None:
        """Put them where each side reads them; those for the GPU go through one staging buffer."""
        shapes, constants = self._network.shapes, self._network.constants
        held = self._partitioned.held
        on_gpu = {n: held["gpu"][n] for n in constants if n in self._storages and n in held["gpu"]}
        largest = max(
            (region.shape(shapes[name]).bytes for name, region in on_gpu.items()), default=0
        )
        buffer = self._assembly.buffer("staging", largest) if on_gpu else -1
        for name, value in constants.items():
            parts: dict[Region, Constant] = {}
            if name in held["cpu"]:
                constant = parts[held["cpu"][name]] = self._constant(name, held["cpu"][name], value)
                host = self._assembly.access(self._memory.host[name], held["cpu"][name])
                self._assembly.emit(Fill(None, constant, host))
            if name in on_gpu:
                part = on_gpu[name]
                stored = in_range(value, self._storages[name].element)
                same = parts.get(part) if stored is value else None
                self._upload(name, same or self._constant(name, part, stored), part, buffer)

    def _constant(self, name: str, part: Region, value: Array) -> Constant:
        """A part of a constant of the network, whose values are these."""
        number = self._assembly.add_constants(
            f"constant {name} ({part})",
            {VALUE: value},
            lambda: {VALUE: np.ascontiguousarray(value[part.slices])},
        )
        return Constant(number, VALUE)

    def _upload(self, name: str, constant: Constant, part: Region, buffer: int) -> None:
        assembly, target = self._assembly, self._memory.take_device(name)
        staging = Tensor(name, buffer, target.shape, part, PLANAR, 1)
        accesses = [assembly.access(tensor, part) for tensor in (staging, target)]
        step = assembly.step(Transfer(f"constant {name}", "to_gpu", *accesses))
        mapped, copied = assembly.event(), assembly.event()
        assembly.emit(
            Map(step, buffer, "write", mapped),
            Wait(step, mapped),
            Fill(step, constant, accesses[0]),
            Unmap(step, buffer),
        )
        self._kernels.copy(staging, target, part, step=step)
        # The next constant overwrites the buffer.
        assembly.signal(copied)
        assembly.emit(Wait(step, copied))

    # Stages.

    def _stage(
        self,
        label: str,
        transfers: tuple[TensorMove, ...],
        segment: Segment | None = None,
        following: tuple[TensorMove, ...] = (),
    ) -> Stage:
        """The commands of a stage, in the order that keeps both processors busy.

        The CPU sends to the GPU and enqueues the GPU's whole shard, and behind that what the GPU
        sends before the `following` stage. Only then does it wait for what it receives in this
        stage, and compute.
        """
        emit, arrivals = self._assembly.emit, self._arrivals
        to_gpu = [move for move in transfers if move.direction == "to_gpu"]
        for move in to_gpu:
            self._transfers.to_gpu(move)
        if segment is not None:
            self._gpu.lower(segment.gpu, segment.chain, self._memory.device)
        self._send_to_cpu(following)
        if not self._arrivals and (to_gpu or (segment is not None and segment.gpu.parts)):
            emit(Flush())
        for commands in arrivals:
            emit(*commands)
        if segment is not None and segment.cpu.parts:
            self._lower_cpu(segment)
        return Stage(label, self._assembly.take_commands())

    def _send_to_cpu(self, transfers: tuple[TensorMove, ...]) -> None:
        """Enqueue what the GPU sends before the next stage, where the CPU waits for it."""
        self._arrivals = [
            self._transfers.begin_to_cpu(move) for move in transfers if move.direction == "to_cpu"
        ]
        if self._arrivals:
            self._assembly.emit(Flush())

    def _lower_cpu(self, segment: Segment) -> None:
        """Emit the CPU's nets, in as few as libraries and order allow.

        What one net leaves to another has memory of its own.
        """
        assembly, tensors, shard = self._assembly, self._memory.host, segment.cpu
        planned = segment.chain.variants
        layers = [CpuLayer.of(p, planned[p.layer.name]["cpu"], self._soc) for p in shard.parts]
        left = shard.left(segment.outputs)
        places = {
            name: assembly.access(tensors[name], region)
            for name, region in (*shard.inputs.items(), *left.items())
        }
        groups = grouped(layers)
        between = _between(groups)
        for part in shard.parts:
            name = part.layer.output
            if name not in places and name in between:
                places[name] = self._own_memory(part)
        for members in groups:
            net = lower_net(Group.of(members, places), assembly)
            assembly.emit(RunNet(assembly.net(net)))

    def _own_memory(self, part: Part) -> Access:
        name, shape, region = part.layer.output, part.layer.op.output, part.region
        buffer = self._assembly.buffer("cpu", region.shape(shape).bytes)
        return self._assembly.access(Tensor(name, buffer, shape, region, PLANAR, 1), region)


def lower_net(group: Group, assembly: Assembly) -> Net:
    """A group of layers as a net of the library that runs them."""
    is_ncnn = group.layers[0].variant.backend == "ncnn"
    return (lower_ncnn if is_ncnn else lower_onnx)(group, assembly)


def in_range(value: Array, element: Element) -> Array:
    """A constant whose finite values stay finite as such elements; itself where all do anyhow.

    Masks have the lowest number of float32, of which halves would make an infinity: that times 0,
    where nothing is hidden, is no number.
    """
    most = np.finfo(element).max
    if element == "float32" or not (np.abs(value[np.isfinite(value)]) > most).any():
        return value
    return np.where(np.isfinite(value), np.clip(value, -most, most), value)


def _between(groups: Sequence[tuple[CpuLayer, ...]]) -> set[str]:
    """The tensors that a group reads and does not compute."""
    between: set[str] = set()
    for group in groups:
        read = {name for layer in group for name, _ in layer.inputs}
        between |= read - {layer.output for layer in group}
    return between
