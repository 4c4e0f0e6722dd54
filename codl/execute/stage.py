"""One segment of a program on real devices: everything bound at compile time, then only run.

The order inside a stage keeps both processors busy: what the GPU has and the CPU lacks is sent off
first, then the CPU hands over what the GPU lacks, then the GPU's whole half is enqueued, and only
then does the CPU wait for its own share of the exchange and compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from codl.device.cpu import CpuLayer, Home
from codl.device.half import CpuHalf
from codl.device.memory import GpuTensor, SharedBuffer
from codl.device.opencl import BoundKernel, OpenClDevice
from codl.execute.program import Transfer
from codl.execute.timeline import Timeline
from codl.kernels import registry
from codl.ops import Shape
from codl.ops.chain import Half
from codl.ops.plan import Chain
from codl.soc import Soc

if TYPE_CHECKING:
    import pyopencl as cl


class Exchange:
    """What both directions of a transfer have in common: shared memory, a transform, a home."""

    def __init__(
        self, move: Transfer, shape: Shape, tensor: GpuTensor, home: Home, gpu: OpenClDevice
    ) -> None:
        self.label = f"{move.tensor} ({move.region})"
        self._gpu = gpu
        self._shared = SharedBuffer(gpu, shape, move.region)
        self._home = home.view()
        ends = (tensor, self._shared.tensor)
        source, target = ends if move.direction == "to_cpu" else reversed(ends)
        self._kernels = gpu.transform(source, target, move.region, f"transform {move.tensor}")
        gpu.warm_up(self._kernels)


class ToCpu(Exchange):
    """GPU to CPU: a transform kernel into shared memory, a map, and a copy into the home array."""

    _ready: cl.Event

    def begin(self, timeline: Timeline | None) -> None:
        """Enqueue the transform and the map behind it; does not wait."""
        _enqueue(self._kernels, self._gpu, timeline, "transform")
        self._ready = self._shared.map(write=False)

    def end(self, timeline: Timeline | None) -> None:
        """Wait for the map, copy, hand the memory back."""
        start = perf_counter()
        self._gpu.wait(self._ready)
        mapped = perf_counter()
        np.copyto(self._home, self._shared.array)
        copied = perf_counter()
        self._shared.unmap()
        if timeline is not None:
            timeline.cpu("sync", self.label, start, mapped)
            timeline.cpu("copy", self.label, mapped, copied)
            timeline.cpu("unmap", self.label, copied, perf_counter())


class ToGpu(Exchange):
    """CPU to GPU: a copy into shared memory, an unmap, and a transform kernel.

    The memory is mapped again at once, for the next inference, off this one's critical path.
    """

    def __init__(
        self, move: Transfer, shape: Shape, tensor: GpuTensor, home: Home, gpu: OpenClDevice
    ) -> None:
        super().__init__(move, shape, tensor, home, gpu)
        self._ready = self._shared.map(write=True)

    def run(self, timeline: Timeline | None) -> None:
        start = perf_counter()
        self._gpu.wait(self._ready)
        mapped = perf_counter()
        np.copyto(self._shared.array, self._home)
        copied = perf_counter()
        self._shared.unmap()
        if timeline is not None:
            timeline.cpu("map", self.label, start, mapped)
            timeline.cpu("copy", self.label, mapped, copied)
            timeline.cpu("unmap", self.label, copied, perf_counter())
        _enqueue(self._kernels, self._gpu, timeline, "transform")
        self._ready = self._shared.map(write=True)


@dataclass(frozen=True)
class Stage:
    """What runs for one segment; `net` is None, or `kernels` empty, where a side has no part."""

    label: str
    to_cpu: tuple[ToCpu, ...]
    to_gpu: tuple[ToGpu, ...]
    kernels: tuple[BoundKernel, ...]
    net: CpuHalf | None
    gpu: OpenClDevice

    def run(self, timeline: Timeline | None = None) -> None:
        for move in self.to_cpu:
            move.begin(timeline)
        if self.to_cpu:
            self.gpu.queue.flush()
        for hand in self.to_gpu:
            hand.run(timeline)
        if self.kernels or self.to_gpu:
            _enqueue(self.kernels, self.gpu, timeline, "kernel")
            self.gpu.queue.flush()
        for move in self.to_cpu:
            move.end(timeline)
        if self.net is not None:
            for step in self.net.steps:
                start = perf_counter()
                step.net.run()
                if timeline is not None:
                    timeline.cpu("net", step.group.label, start, perf_counter())


def _enqueue(
    kernels: Sequence[BoundKernel],
    gpu: OpenClDevice,
    timeline: Timeline | None,
    kind: str,
) -> None:
    if timeline is None:
        gpu.submit(kernels)
        return
    for kernel in kernels:
        timeline.gpu(kind, kernel.name, kernel.enqueue(gpu.queue))


def build_cpu_half(
    half: Half, chain: Chain, homes: dict[str, Home], outputs: Sequence[str], soc: Soc
) -> CpuHalf | None:
    """The CPU's half of a chain over the home arrays; None where it is empty."""
    if not half.parts:
        return None
    layers = [
        CpuLayer(
            name=part.layer.name,
            op=part.op,
            variant=registry.find(part.op, chain.variants[part.layer.name]["cpu"]),  # type: ignore[arg-type]
            inputs=tuple(zip(part.layer.inputs, part.needs, strict=True)),
            output=part.layer.output,
            region=part.region,
            weights=part.layer.op.restrict_weights(part.layer.weights, part.region),
        )
        for part in half.parts
    ]
    inputs = {name: homes[name].of(region) for name, region in half.inputs.items()}
    results = {name: homes[name].of(half.outputs[name]) for name in outputs}
    return CpuHalf(layers, inputs, results, soc)
