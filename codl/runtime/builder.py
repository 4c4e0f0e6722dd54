"""From a program to stages: allocates what it holds, and binds nets, kernels and exchanges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codl.ir import Network
from codl.ir.types import BLOCKED, Processor, Storage
from codl.lower.liveness import lifetimes
from codl.lower.program import Program, Segment, Transfer
from codl.runtime import transfer as exchange
from codl.runtime.bound_kernel import BoundKernel
from codl.runtime.cpu_session import CpuShard
from codl.runtime.gpu_binding import Fallback, GpuShard, kept_storages
from codl.runtime.host_arena import HomePool
from codl.runtime.kernel_provider import Supply
from codl.runtime.memory import GpuTensor, TensorPool
from codl.runtime.ncnn_net import Home
from codl.runtime.opencl import OpenClDevice
from codl.runtime.stage import Stage, build_cpu_shard


@dataclass(frozen=True)
class Memory:
    """Bytes of an engine, on either side: tensors, and weights as they are handed to the libraries.

    On the GPU they are arranged for the kernels; how ncnn arranges them it does not tell.
    """

    cpu_bytes: int
    gpu_bytes: int
    cpu_weight_bytes: int
    gpu_weight_bytes: int

    @property
    def total(self) -> int:
        return self.cpu_bytes + self.gpu_bytes + self.cpu_weight_bytes + self.gpu_weight_bytes


class Builder:
    """Stages of one engine, in order; memory is taken and given back as they go by.

    What enters and leaves the network, and what is constant, has memory of its own.
    """

    def __init__(
        self,
        network: Network,
        program: Program,
        gpu: OpenClDevice,
        supply: Supply,
        *,
        fuse: bool = True,
    ) -> None:
        self._network, self._program, self._gpu = network, program, gpu
        self._supply = supply
        self._shapes, self._fuse = network.shapes, fuse
        self.fallbacks: list[Fallback] = []
        #: The layers that the GPU computes together, by the label of their kernels.
        self.fused: dict[str, tuple[str, ...]] = {}
        self.storages: set[Storage] = set()
        self.homes: dict[str, Home] = {}
        self._pool, self._homes = TensorPool(gpu), HomePool(gpu)
        self._cpu_weight_bytes = 0
        self._gpu_weights: dict[int, int] = {}
        #: Homes that the GPU sees as they are.
        self._seen: dict[str, GpuTensor] = {}
        self._tensors: dict[str, GpuTensor] = {}
        self._lives = lifetimes(program, shared_in_place=gpu.sees_host_memory)
        results = {holder for holder, _ in network.outputs.values()}
        self._lasting = {*network.inputs, *network.constants, *results}
        planned = [
            (part, segment.chain.variants[part.layer.name]["gpu"])
            for segment in program.segments
            for part in segment.gpu.parts
        ]
        self._kept = kept_storages(planned, gpu)
        for name in sorted(self._lasting):
            self._take_home(name)
        for name, value in network.constants.items():
            np.copyto(self.homes[name].array, value)
            if name in self._kept:
                self._take_tensor(name)
                gpu.upload(self._tensors[name], value)

    def stages(self) -> list[Stage]:
        """One for each segment, and one that shares what the outputs lack at the end."""
        found = []
        for index, segment in enumerate(self._program.segments):
            self._begin(index)
            found.append(self._stage(segment))
            self._end(index)
        self._begin(len(found))
        return [*found, self._exchanges("outputs", self._program.final)]

    @property
    def memory(self) -> Memory:
        weights = (self._cpu_weight_bytes, sum(self._gpu_weights.values()))
        return Memory(self._homes.bytes, self._pool.bytes, *weights)

    def _begin(self, stage: int) -> None:
        """Take memory for what is first held at a stage."""
        for name in self._program.held["cpu"]:
            if self._starts("cpu", name, stage) and name not in self.homes:
                self._take_home(name)
        for name in self._program.held["gpu"]:
            if self._starts("gpu", name, stage) and name not in self._tensors:
                self._take_tensor(name)

    def _end(self, stage: int) -> None:
        """Give back the memory of what nobody needs after a stage."""
        for name in self.homes:
            if self._ends("cpu", name, stage) and name not in self._lasting:
                self._homes.give(name)
        for name, tensor in self._tensors.items():
            if self._ends("gpu", name, stage) and name not in self._network.constants:
                self._pool.give(tensor)

    def _starts(self, processor: Processor, name: str, stage: int) -> bool:
        life = self._lives[processor].get(name)
        return life is not None and life.first == stage

    def _ends(self, processor: Processor, name: str, stage: int) -> bool:
        life = self._lives[processor].get(name)
        return life is not None and life.last == stage

    def _take_home(self, name: str) -> None:
        held = self._program.held["cpu"][name]
        is_seen = self._gpu.sees_host_memory and name in self._program.moved
        home, seen = self._homes.take(name, self._shapes[name], held, seen=is_seen)
        self.homes[name] = home
        if seen is not None:
            self._seen[name] = seen

    def _take_tensor(self, name: str) -> None:
        """What is held may be more than any one part, and then too large for an image."""
        shape, held = self._shapes[name], self._program.held["gpu"][name]
        storage = self._kept.get(name, BLOCKED)
        if not GpuTensor.fits(self._gpu, shape, held, storage):
            storage = Storage(element=storage.element)
        self._tensors[name] = self._pool.tensor(shape, held, storage)

    def _stage(self, segment: Segment) -> Stage:
        chain = segment.chain
        gpu = GpuShard(
            segment.gpu,
            chain,
            self._tensors,
            self._gpu,
            self._pool,
            self._supply,
            fuse=self._fuse,
        )
        self.fallbacks += gpu.fallbacks
        self.fused |= gpu.fused
        self.storages |= gpu.storages
        mine = [name for name in segment.outputs if name in segment.cpu.outputs]
        weights = {part.layer.name: self._supply.weights(part, "cpu") for part in segment.cpu.parts}
        net = build_cpu_shard(segment.cpu, chain, self.homes, mine, self._gpu.soc, weights)
        self._gpu_weights |= {m.int_ptr: m.size for kernel in gpu.kernels for m in kernel.constants}
        self._cpu_weight_bytes += sum(v.nbytes for own in weights.values() for v in own.values())
        return self._exchanges(chain.label, segment.transfers, tuple(gpu.kernels), net)

    def _exchanges(
        self,
        label: str,
        transfers: tuple[Transfer, ...],
        kernels: tuple[BoundKernel, ...] = (),
        net: CpuShard | None = None,
    ) -> Stage:
        return Stage(
            label=label,
            to_cpu=tuple(
                exchange.to_cpu(t, *self._sides(t.tensor), self._gpu)
                for t in transfers
                if t.direction == "to_cpu"
            ),
            to_gpu=tuple(
                exchange.to_gpu(t, *self._sides(t.tensor), self._gpu)
                for t in transfers
                if t.direction == "to_gpu"
            ),
            kernels=kernels,
            net=net,
            gpu=self._gpu,
        )

    def _sides(self, name: str) -> tuple[GpuTensor, Home, GpuTensor | None]:
        """A tensor on the GPU, its home, and the home as the GPU sees it."""
        return self._tensors[name], self.homes[name], self._seen.get(name)
