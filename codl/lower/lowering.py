"""Lowers a plan to an executable: plain data with buffers, programs, nets and commands.

Data sharing depends on the device. Where kernels can read and write host memory in place
(fine-grained shared virtual memory), a transfer is one kernel between layouts, and an event
signals its end. Elsewhere the region goes through mapped staging memory and is copied once
more. Staging memory of transfers to the GPU is mapped again at once for the next inference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import structs

from codl.errors import MismatchError
from codl.ir.executable import (
    Access,
    Command,
    Constant,
    Copy,
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
from codl.ir.ops.base import Array
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.ir.region import Region
from codl.ir.types import PLANAR, PROCESSORS, Element
from codl.kernels.tuning import Tuning
from codl.lower.assembly import Arena, Assembly, NetworkMemory
from codl.lower.gpu import GpuLowering, KernelLowering, Selector, kept_storages
from codl.lower.nets import CpuLayer, Group, grouped, lower_ncnn, variant_of
from codl.lower.partition import PartitionedPlan, Segment, TensorMove, partition_plan

#: The name of the array of a network constant.
VALUE = "value"


def lower(
    network: Network,
    plan: Plan,
    soc: Soc,
    tuning: Tuning,
    *,
    without: Sequence[Refusal] = (),
) -> Executable:
    """Lower a plan of a network for a SoC; equal arguments give equal executables everywhere.

    `tuning` has the tuned choices of kernels, and `without` the kernels that a device has refused.
    Raises `MismatchError` where the plan is for another model or SoC, or has no variant for a
    layer, and `NoKernelError` where a layer has no kernel left.
    """
    selector = Selector(soc, tuning, tuple(without))
    partitioned = partition_plan(network, plan, soc)
    _check_variants(partitioned)
    return Lowering(partitioned, selector).run()


def _check_variants(partitioned: PartitionedPlan) -> None:
    """Raise `MismatchError` for a part without a variant."""
    for segment in partitioned.segments:
        for processor, shard in zip(PROCESSORS, (segment.cpu, segment.gpu), strict=True):
            for layer in (part.layer for part in shard.parts):
                if processor not in segment.chain.variants.get(layer.name, {}):
                    raise MismatchError(
                        f"The plan has no {processor} kernel variant for {layer.name!r}, and the "
                        f"{processor} computes a part of it. `codl search` makes a plan that has."
                    )


class Lowering:
    """Builds one executable, stage by stage; tensors take and give back memory as stages go by."""

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
        #: The CPU's commands in the next stage for each region that the GPU is sending.
        self._arrivals: list[tuple[Command, ...]] = []

    def run(self) -> Executable:
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
        exchanges = enumerate(self._partitioned.exchanges)
        last = {move.direction: stage for stage, moves in exchanges for move in moves}
        # No wait for the GPU follows a send, as nothing reads its last outputs.
        is_read_at_the_end = last.get("to_gpu", -1) >= last.get("to_cpu", 0)
        if self._soc.gpu.sees_host_memory and is_read_at_the_end:
            stages = self._wait_at_the_end(stages)
        network = self._network
        return self._assembly.executable(
            model=network.name,
            network=network.digest,
            soc=self._soc.name,
            setup=(*setup, *self._transfers.mapped),
            stages=tuple(stage for stage in stages if stage.commands),
            inputs={name: self._port(name, name, shape) for name, shape in network.inputs.items()},
            outputs={
                name: self._port(name, holder, shape)
                for name, (holder, shape) in network.outputs.items()
            },
        )

    def _wait_at_the_end(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stages, with a wait for the last launch at the end."""
        stage, place, last = next(
            (stage, place, command)
            for stage, candidate in reversed([*enumerate(stages)])
            for place, command in reversed([*enumerate(candidate.commands)])
            if isinstance(command, Launch)
        )
        event = self._assembly.event() if last.signals is None else last.signals
        commands = list(stages[stage].commands)
        commands[place] = structs.replace(last, signals=event)
        waited = [*stages]
        waited[stage] = structs.replace(stages[stage], commands=tuple(commands))
        waited[-1] = structs.replace(
            waited[-1], commands=(*waited[-1].commands, Wait(last.step, event))
        )
        return waited

    def _port(self, name: str, holder: str, shape: tuple[int, ...]) -> Port:
        tensor = self._assembly.tensors.number(self._memory.host[holder])
        return Port(tensor, tuple(shape), self._network.types.get(name, "float32"))

    # Network constants.

    def _fill_constants(self) -> None:
        """Write the constants to both processors; the GPU's go through one staging buffer."""
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
        # The next constant overwrites the staging buffer.
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

        The CPU sends its transfers to the GPU, enqueues the GPU's shard, and enqueues the GPU's
        transfers for the `following` stage. Then it waits for the transfers of this stage and
        computes its own shard.
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
        """Enqueue the GPU's transfers to the CPU; the CPU waits for them in the next stage."""
        self._arrivals = [
            self._transfers.begin_to_cpu(move) for move in transfers if move.direction == "to_cpu"
        ]
        if self._arrivals:
            self._assembly.emit(Flush())

    def _lower_cpu(self, segment: Segment) -> None:
        """Emit the CPU's nets; tensors between two nets get memory of their own."""
        assembly, tensors, shard = self._assembly, self._memory.host, segment.cpu
        layers = []
        for part in shard.parts:
            planned = segment.chain.variants[part.layer.name]["cpu"]
            layers.append(CpuLayer.of(part, variant_of(part, planned, self._soc), self._soc))
        left = shard.left(segment.outputs)
        places = {
            name: assembly.access(tensors[name], region)
            for name, region in (*shard.inputs.items(), *left.items())
        }
        groups = grouped(layers)
        made = [{layer.output for layer in group} for group in groups]
        between = {
            name
            for group, own in zip(groups, made, strict=True)
            for layer in group
            for name in {name for name, _ in layer.inputs} - own
        }
        for part in shard.parts:
            name, shape, region = part.layer.output, part.layer.op.output, part.region
            if name not in places and name in between:
                buffer = assembly.buffer("cpu", region.shape(shape).bytes)
                own_memory = Tensor(name, buffer, shape, region, PLANAR, 1)
                places[name] = assembly.access(own_memory, region)
        for members in groups:
            net = lower_net(Group.of(members, places), assembly)
            assembly.emit(RunNet(assembly.net(net)))


def lower_net(group: Group, assembly: Assembly) -> Net:
    """Lower a group of layers to a net of the library that runs them."""
    if group.layers[0].variant.backend == "ncnn":
        return lower_ncnn(group, assembly)
    from codl.lower.onnx import lower_onnx  # only where other libraries run a net

    return lower_onnx(group, assembly)


def in_range(value: Array, element: Element) -> Array:
    """A constant with its finite values clipped to the range of `element`.

    Masks contain the lowest float32. As float16 it would become infinite, and 0 times that is NaN.
    The array itself is returned where nothing has to be clipped.
    """
    most = np.finfo(element).max
    if element == "float32" or not (np.abs(value[np.isfinite(value)]) > most).any():
        return value
    return np.where(np.isfinite(value), np.clip(value, -most, most), value)


# Data sharing.


class TransferLowering:
    """Emits transfers between `host` arrays and `device` tensors, both by tensor name."""

    def __init__(
        self,
        assembly: Assembly,
        kernels: KernelLowering,
        host: Mapping[str, Tensor],
        device: Mapping[str, Tensor],
        soc: Soc,
    ) -> None:
        self._assembly, self._kernels, self._soc = assembly, kernels, soc
        self._host, self._device = host, device
        #: Mappings of staging memory before the first inference.
        self.mapped: list[Map] = []

    def begin_to_cpu(self, move: TensorMove) -> tuple[Command, ...]:
        """Emit the GPU's commands of a transfer; return the CPU's, which receive the region."""
        host, device, step = self._sides(move)
        event = self._assembly.event()
        if self._is_shared(host):
            self._kernels.copy(device, host, move.region, step=step)
            self._assembly.signal(event)
            return (Wait(step, event),)
        staging = self._staging(move, host)
        self._kernels.copy(device, staging, move.region, step=step)
        self._assembly.emit(Map(step, staging.buffer, "read", event))
        copy = Copy(step, self._access(staging, move), self._access(host, move))
        return Wait(step, event), copy, Unmap(step, staging.buffer)

    def to_gpu(self, move: TensorMove) -> None:
        """Emit a whole transfer; kernels that are enqueued later see the region."""
        host, device, step = self._sides(move)
        if self._is_shared(host):
            self._kernels.copy(host, device, move.region, step=step)
            return
        staging, event = self._staging(move, host), self._assembly.event()
        mapping = Map(step, staging.buffer, "write", event)
        self.mapped.append(mapping)
        self._assembly.emit(
            Wait(step, event),
            Copy(step, self._access(host, move), self._access(staging, move)),
            Unmap(step, staging.buffer),
        )
        self._kernels.copy(staging, device, move.region, step=step)
        self._assembly.emit(mapping)

    def _sides(self, move: TensorMove) -> tuple[Tensor, Tensor, int]:
        """The host tensor, the device tensor, and the number of the transfer's step."""
        host, device = self._host[move.tensor], self._device[move.tensor]
        source, target = (host, device) if move.direction == "to_gpu" else (device, host)
        accesses = self._access(source, move), self._access(target, move)
        label = f"{move.tensor} ({move.region})"
        return host, device, self._assembly.step(Transfer(label, move.direction, *accesses))

    def _is_shared(self, host: Tensor) -> bool:
        return self._assembly.buffers[host.buffer].place == "shared"

    def _access(self, tensor: Tensor, move: TensorMove) -> Access:
        return self._assembly.access(tensor, move.region)

    def _staging(self, move: TensorMove, host: Tensor) -> Tensor:
        buffer = self._assembly.buffer("staging", move.region.shape(host.shape).bytes)
        return Tensor(host.name, buffer, host.shape, move.region, PLANAR, 1)
