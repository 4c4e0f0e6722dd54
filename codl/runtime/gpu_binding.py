"""The GPU's shard of a chain: kernels bound in order, with transforms where layouts differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codl.errors import DeviceError
from codl.ir import Region
from codl.ir.plan import Chain
from codl.ir.types import Storage
from codl.kernels import registry
from codl.kernels.base import KernelPlan, TensorArg
from codl.lower.fusion import Work, works
from codl.lower.partition import Part, Shard
from codl.runtime.bound_kernel import BoundKernel
from codl.runtime.kernel_provider import Supply
from codl.runtime.memory import GpuTensor, TensorPool
from codl.runtime.opencl import OpenClDevice


@dataclass(frozen=True)
class Fallback:
    """A kernel variant that a device could not build or run, and what took its place."""

    layer: str
    variant: str
    reason: str
    instead: str

    def __str__(self) -> str:
        return (
            f"{self.layer!r} runs in {self.instead} and not in {self.variant}, which fails here: "
            f"{self.reason}"
        )


class GpuShard:
    """Compiles and binds kernels over `tensors`, which live on; others are the pool's.

    With `fuse`, residual adds are computed by the convolutions before them where they can be.
    """

    def __init__(
        self,
        shard: Shard,
        chain: Chain,
        tensors: Mapping[str, GpuTensor],
        gpu: OpenClDevice,
        pool: TensorPool,
        supply: Supply,
        *,
        fuse: bool = True,
    ) -> None:
        self.kernels: list[BoundKernel] = []
        self.fallbacks: list[Fallback] = []
        #: How the outputs of all parts are stored while they are computed.
        self.storages: set[Storage] = set()
        #: The layers that are computed together, by the label of their kernels.
        self.fused: dict[str, tuple[str, ...]] = {}
        self._gpu, self._pool, self._supply = gpu, pool, supply
        self._tensors = dict(tensors)
        #: Copies of tensors in other storages, valid inside this chain.
        self._copies: dict[tuple[str, Storage], GpuTensor] = {}
        variants = {part.layer.name: chain.variants[part.layer.name]["gpu"] for part in shard.parts}
        alone = [Work(part) for part in shard.parts]
        ordered = works(shard, tensors, variants, gpu.soc) if fuse else alone
        last_reader = {name: work for work in ordered for name, _ in work.reads}
        for work in ordered:
            self._add(work, variants)
            for name in dict(work.reads):
                if last_reader[name] is work:
                    self._leave(name, kept=name in tensors)

    def _leave(self, name: str, *, kept: bool) -> None:
        """Give back what no further part reads."""
        if not kept:
            self._pool.give(self._tensors.pop(name))
        for key in [key for key in self._copies if key[0] == name]:
            self._pool.give(self._copies.pop(key))

    def _add(self, work: Work, variants: Mapping[str, str]) -> None:
        """Bind a work in the variant that is planned or, where the device fails, the next one.

        An add that fails in its convolution is bound by itself. Every kernel runs once here: some
        failures only show at the first launch.
        """
        failed: list[tuple[str, str]] = []
        planned = variants[work.part.layer.name]
        for way in self._supply.ways(work, planned):
            tensors, copies = dict(self._tensors), dict(self._copies)
            try:
                kernels = self._bind(work, way.plan)
                self._gpu.warm_up(kernels)
            except DeviceError as error:
                failed.append((way.variant.name, str(error)))
                # What the failed attempt would have filled is no copy of anything.
                self._tensors, self._copies = tensors, copies
                continue
            self.kernels += kernels
            self.storages.add(way.plan.storage(TensorArg("output")))
            used = way.variant.name
            self.fallbacks += [Fallback(work.label, v, r, used) for v, r in failed]
            if work.add is not None:
                self.fused[work.label] = work.names
            return
        reasons = "; ".join(f"{variant}: {reason}" for variant, reason in failed)
        if work.add is None:
            raise DeviceError(f"No kernel variant of {work.label!r} works here. {reasons}")
        if failed:  # and not a supply that has them apart
            instead = Fallback(work.label, f"one of {planned}", reasons, "two kernels")
            self.fallbacks.append(instead)
        for part in work.parts:
            self._add(Work(part), variants)

    def _bind(self, work: Work, plan: KernelPlan) -> list[BoundKernel]:
        gpu, result = self._gpu, work.result
        kernels: list[BoundKernel] = []
        arguments: dict[TensorArg, tuple[GpuTensor, Region]] = {}
        for index, (name, need) in enumerate(work.reads):
            argument = TensorArg("input", index)
            arguments[argument] = (self._read(name, plan.storage(argument), kernels), need)
        target, stored = self._target(result, plan.storage(TensorArg("output")))
        arguments[TensorArg("output")] = (target, result.region)
        weights = self._supply.weights(work.part, "gpu")
        kernels += gpu.bind(plan, arguments, weights=weights, label=work.label, pool=self._pool)
        output = result.layer.output
        if stored is not target:
            kernels += gpu.transform(target, stored, result.region, f"transform {output}")
            self._pool.give(target)
        self._tensors[output] = stored
        return kernels

    def _read(self, name: str, storage: Storage, kernels: list[BoundKernel]) -> GpuTensor:
        """The tensor in a storage; what copies it there is added to `kernels`."""
        tensor = self._tensors[name]
        if tensor.storage == storage:
            return tensor
        if (name, storage) not in self._copies:
            copy = self._pool.tensor(tensor.shape, tensor.region, storage)
            kernels += self._gpu.transform(tensor, copy, tensor.region, f"transform {name}")
            self._copies[name, storage] = copy
        return self._copies[name, storage]

    def _target(self, part: Part, storage: Storage) -> tuple[GpuTensor, GpuTensor]:
        """Where a part's kernels write, and where its output is then kept."""
        shape, region = part.layer.op.output, part.region
        kept = self._tensors.get(part.layer.output)
        if kept is not None and kept.storage == storage:
            return kept, kept
        own = self._pool.tensor(shape, region, storage)
        return own, kept or own


def kept_storages(parts: list[tuple[Part, str]], gpu: OpenClDevice) -> dict[str, Storage]:
    """How to keep every tensor that parts read or write: as its writer, or first reader, wants it.

    `parts` come in order, each with the name of its variant. What must lie in an image is checked
    by whoever knows how much of it is kept.
    """
    storages: dict[str, Storage] = {}
    for part, name in parts:
        variant: Any = registry.find(part.op, name)
        plan: KernelPlan = variant.plan(part.op, gpu.soc)  # no choice changes a storage
        for index, tensor in enumerate(part.layer.inputs):
            storages.setdefault(tensor, plan.storage(TensorArg("input", index)))
        storages[part.layer.output] = plan.storage(TensorArg("output"))
    return storages
