"""The GPU's half of a chain: kernels bound in order, with transforms where layouts differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codl.device.memory import GpuTensor, TensorPool
from codl.device.opencl import BoundKernel, OpenClDevice
from codl.errors import DeviceError
from codl.execute.supply import Supply
from codl.kernels.base import KernelPlan, Storage, TensorArg
from codl.ops import Region
from codl.ops.chain import Half, Part
from codl.ops.plan import Chain


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


class GpuHalf:
    """Compiles and binds kernels over `tensors`, which live on; others are the pool's."""

    def __init__(
        self,
        half: Half,
        chain: Chain,
        tensors: Mapping[str, GpuTensor],
        gpu: OpenClDevice,
        pool: TensorPool,
        supply: Supply,
    ) -> None:
        self.kernels: list[BoundKernel] = []
        self.fallbacks: list[Fallback] = []
        #: How the outputs of all parts are stored while they are computed.
        self.storages: set[Storage] = set()
        self._gpu, self._pool, self._supply = gpu, pool, supply
        self._tensors = dict(tensors)
        #: Copies of tensors in other storages, valid inside this chain.
        self._copies: dict[tuple[str, Storage], GpuTensor] = {}
        last_reader = {name: part for part in half.parts for name in part.layer.inputs}
        for part in half.parts:
            self._add(part, chain.variants[part.layer.name]["gpu"])
            for name in dict.fromkeys(part.layer.inputs):
                if last_reader[name] is part:
                    self._leave(name, kept=name in tensors)

    def _leave(self, name: str, *, kept: bool) -> None:
        """Give back what no further part reads."""
        if not kept:
            self._pool.give(self._tensors.pop(name))
        for key in [key for key in self._copies if key[0] == name]:
            self._pool.give(self._copies.pop(key))

    def _add(self, part: Part, name: str) -> None:
        """Bind a part in the variant that is planned or, where the device fails, the next one.

        Every kernel runs once here: some failures only show at the first launch.
        """
        failed: list[tuple[str, str]] = []
        for way in self._supply.ways(part, name):
            tensors, copies = dict(self._tensors), dict(self._copies)
            try:
                kernels = self._bind(part, way.plan)
                self._gpu.warm_up(kernels)
            except DeviceError as error:
                failed.append((way.variant.name, str(error)))
                # What the failed attempt would have filled is no copy of anything.
                self._tensors, self._copies = tensors, copies
                continue
            self.kernels += kernels
            self.storages.add(way.plan.storage(TensorArg("output")))
            instead = way.variant.name
            self.fallbacks += [Fallback(part.layer.name, v, r, instead) for v, r in failed]
            return
        reasons = "; ".join(f"{variant}: {reason}" for variant, reason in failed)
        raise DeviceError(f"No kernel variant of {part.layer.name!r} works here. {reasons}")

    def _bind(self, part: Part, plan: KernelPlan) -> list[BoundKernel]:
        layer, gpu = part.layer, self._gpu
        kernels: list[BoundKernel] = []
        arguments: dict[TensorArg, tuple[GpuTensor, Region]] = {}
        for index, (name, need) in enumerate(zip(layer.inputs, part.needs, strict=True)):
            argument = TensorArg("input", index)
            arguments[argument] = (self._read(name, plan.storage(argument), kernels), need)
        target, stored = self._target(part, plan.storage(TensorArg("output")))
        arguments[TensorArg("output")] = (target, part.region)
        weights = self._supply.weights(part, "gpu")
        kernels += gpu.bind(plan, arguments, weights=weights, label=layer.name, pool=self._pool)
        if stored is not target:
            kernels += gpu.transform(target, stored, part.region, f"transform {layer.output}")
            self._pool.give(target)
        self._tensors[layer.output] = stored
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


def kept_storages(parts: list[tuple[Part, str]], supply: Supply) -> dict[str, Storage]:
    """How to keep every tensor that parts read or write: as its writer, or first reader, wants it.

    `parts` come in order, each with the name of its variant. What must lie in an image is checked
    by whoever knows how much of it is kept.
    """
    storages: dict[str, Storage] = {}
    for part, name in parts:
        plan = next(iter(supply.ways(part, name))).plan
        for index, tensor in enumerate(part.layer.inputs):
            storages.setdefault(tensor, plan.storage(TensorArg("input", index)))
        storages[part.layer.output] = plan.storage(TensorArg("output"))
    return storages
