"""One segment of a program on real devices: everything bound at compile time, then only run.

The order inside a stage keeps both processors busy: what the GPU has and the CPU lacks is sent off
first, then the CPU hands over what the GPU lacks, then the GPU's whole shard is enqueued, and only
then does the CPU wait for its own share of the exchange and compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from codl.ir import Weights
from codl.ir.plan import Chain
from codl.ir.soc import Soc
from codl.kernels import registry
from codl.lower.partition import Shard
from codl.runtime.bound_kernel import BoundKernel
from codl.runtime.cpu_session import CpuShard
from codl.runtime.ncnn_net import CpuLayer, Home
from codl.runtime.opencl import OpenClDevice
from codl.runtime.profiler import Timeline
from codl.runtime.transfer import ToCpu, ToGpu, enqueue


@dataclass(frozen=True)
class Stage:
    """What runs for one segment; `net` is None, or `kernels` empty, where a side has no part."""

    label: str
    to_cpu: tuple[ToCpu, ...]
    to_gpu: tuple[ToGpu, ...]
    kernels: tuple[BoundKernel, ...]
    net: CpuShard | None
    gpu: OpenClDevice

    def run(self, timeline: Timeline | None = None) -> None:
        """Share what each side lacks, and let both compute; the GPU may go on afterwards."""
        for move in self.to_cpu:
            move.begin(timeline)
        if self.to_cpu:
            self.gpu.queue.flush()
        for hand in self.to_gpu:
            hand.run(timeline)
        if self.kernels or self.to_gpu:
            enqueue(self.kernels, self.gpu, timeline, "kernel")
            self.gpu.queue.flush()
        for move in self.to_cpu:
            move.end(timeline)
        if self.net is not None:
            for step in self.net.steps:
                start = perf_counter()
                step.net.run()
                if timeline is not None:
                    timeline.cpu("net", step.group.label, start, perf_counter())


def build_cpu_shard(
    shard: Shard,
    chain: Chain,
    homes: dict[str, Home],
    outputs: Sequence[str],
    soc: Soc,
    weights: Mapping[str, Weights],
) -> CpuShard | None:
    """The CPU's shard of a chain over the home arrays; None where it is empty.

    `weights` are those of every part, by the name of its layer.
    """
    if not shard.parts:
        return None
    layers = [
        CpuLayer(
            name=part.layer.name,
            op=part.op,
            variant=registry.find(part.op, chain.variants[part.layer.name]["cpu"]),  # type: ignore[arg-type]
            inputs=tuple(zip(part.layer.inputs, part.needs, strict=True)),
            output=part.layer.output,
            region=part.region,
            weights=weights[part.layer.name],
        )
        for part in shard.parts
    ]
    inputs = {name: homes[name].of(region) for name, region in shard.inputs.items()}
    results = {name: homes[name].of(shard.outputs[name]) for name in outputs}
    return CpuShard(layers, inputs, results, soc)
