"""The GPU's shard of a chain: kernels in order, with copies where storages differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from codl.ir.executable import GpuOp, Relayout
from codl.ir.op_text import to_text
from codl.ir.plan import Chain
from codl.ir.region import Region
from codl.ir.soc import Soc
from codl.ir.tensor import Tensor
from codl.ir.types import Storage
from codl.kernels import registry
from codl.kernels.base import ENDS, KernelPlan, TensorArg
from codl.lower.assembly import Assembly
from codl.lower.kernels import KernelLowering
from codl.lower.memory import Arena
from codl.lower.partition import Part, Shard
from codl.lower.selection import Selection, Selector


class GpuLowering:
    """Lowers shards of one network over `tensors`, which live on between chains."""

    def __init__(
        self,
        assembly: Assembly,
        arena: Arena,
        kernels: KernelLowering,
        selector: Selector,
    ) -> None:
        self._assembly, self._arena, self._kernels = assembly, arena, kernels
        self._selector = selector
        self._tensors: dict[str, Tensor] = {}
        #: Copies of tensors in other storages, or of parts of them, valid inside one chain.
        self._copies: dict[tuple[str, Storage, Region], Tensor] = {}
        #: Of tensors that the chain reads or makes, what it has to do with.
        self._regions: dict[str, Region] = {}

    def lower(self, shard: Shard, chain: Chain, tensors: Mapping[str, Tensor]) -> None:
        """Emit a shard's kernels; raises `DeviceError` where no kernel is left for a layer."""
        self._tensors, self._copies, self._regions = dict(tensors), {}, dict(shard.inputs)
        planned = {part.layer.name: chain.variants[part.layer.name]["gpu"] for part in shard.parts}
        selected = self._selector.select(shard, planned, tensors)
        last_reader = {name: one for one in selected for name, _ in one.work.reads}
        for selection in selected:
            if not self._views(selection, tensors):
                self._emit(selection)
            for name in dict(selection.work.reads):
                if last_reader[name] is selection:
                    self._release(name, is_kept=name in tensors)

    def _release(self, name: str, *, is_kept: bool) -> None:
        """Give back what no further part reads."""
        if not is_kept:
            self._give(self._tensors.pop(name))
        for key in [key for key in self._copies if key[0] == name]:
            self._give(self._copies.pop(key))

    def _give(self, tensor: Tensor) -> None:
        """Give back the memory of a tensor, unless it is another's too."""
        others = (*self._tensors.values(), *self._copies.values())
        if all(other.buffer != tensor.buffer for other in others):
            self._arena.give(tensor.buffer)

    def _views(self, selection: Selection, kept: Collection[str]) -> bool:
        """Let a work's output be its input's memory, where both are planar and this chain's alone.

        `kept` live on between chains. False where something is left to do for the work.
        """
        work, ends = selection.work, [selection.plan.storage(end) for end in ENDS]
        if not work.part.op.keeps_order or ends[0].layout != "planar" or ends[0] != ends[1]:
            return False
        (name, need), output = work.reads[0], work.result.layer.output
        source = self._tensors[name]
        if not {name, output}.isdisjoint(kept) or (source.storage, source.held) != (ends[0], need):
            return False
        shape, held = work.part.layer.op.output, work.part.region
        self._tensors[output] = replace(source, name=output, shape=shape, held=held)
        self._regions[output] = held
        return True

    def _emit(self, selection: Selection) -> None:
        work, plan, result = selection.work, selection.plan, selection.work.result
        arguments: dict[TensorArg, tuple[Tensor, Region]] = {}
        for index, (name, need) in enumerate(work.reads):
            argument = TensorArg("input", index)
            tensor = self._read(name, plan.storage(argument), need)
            arguments[argument] = (tensor, need)
        target, stored = self._target(result, plan.storage(TensorArg("output")))
        arguments[TensorArg("output")] = (target, result.region)
        weights = work.part.layer.op.restrict_weights(work.part.layer.weights, work.part.region)
        ops = tuple(to_text(part.op) for part in work.parts)
        constants = self._kernels.constants(plan, ops, selection.variant.name, weights)
        step = self._assembly.step(self._gpu_op(selection, ops, arguments, constants))
        self._kernels.launch(plan, arguments, step=step, constants=constants)
        output = result.layer.output
        if stored is not target:
            self._copy(target, stored, result.region, result.region)
            self._arena.give(target.buffer)
        self._tensors[output], self._regions[output] = stored, result.region

    def _gpu_op(
        self,
        selection: Selection,
        ops: tuple[str, ...],
        arguments: Mapping[TensorArg, tuple[Tensor, Region]],
        constants: int | None,
    ) -> GpuOp:
        work = selection.work
        *reads, writes = (self._assembly.access(*pair) for pair in arguments.values())
        return GpuOp(
            label=work.label,
            layers=work.names,
            ops=ops,
            variant=selection.variant.name,
            choice=None if selection.choice is None else dict(selection.choice),
            reads=tuple(reads),
            writes=writes,
            constants=constants,
        )

    def _copy(self, source: Tensor, target: Tensor, region: Region, around: Region) -> None:
        """Copy `region`, and `around` it as far as blocks of channels go."""
        accesses = (self._assembly.access(tensor, region) for tensor in (source, target))
        step = self._assembly.step(Relayout(f"transform {source.name}", *accesses))
        self._kernels.copy(source, target, around, step=step)

    def _read(self, name: str, storage: Storage, need: Region) -> Tensor:
        """The tensor in a storage, or a copy, from which a kernel reads what it needs in place."""
        tensor = self._tensors[name]
        if tensor.storage == storage and tensor.serves(need):
            return tensor
        if tensor.storage != storage:
            tensor = self._copied(tensor, storage, self._regions.get(name, tensor.held))
            if tensor.serves(need):
                return tensor
        return self._copied(tensor, storage, need)

    def _copied(self, tensor: Tensor, storage: Storage, region: Region) -> Tensor:
        """A region of a tensor in a storage, copied there once."""
        around = region
        if tensor.storage != storage:
            around = tensor.blocks_around(region, self._selector.soc.gpu.vector_width)
        key = (tensor.name, storage, around)
        if key not in self._copies:
            copy = self._arena.device(tensor.name, tensor.shape, around, storage)
            self._copy(tensor, copy, region, around)
            self._copies[key] = copy
        return self._copies[key]

    def _target(self, part: Part, storage: Storage) -> tuple[Tensor, Tensor]:
        """Where a part's kernels write, and where its output is then kept."""
        name, shape = part.layer.output, part.layer.op.output
        kept = self._tensors.get(name)
        fits = kept is not None and kept.serves(part.region)
        if kept is not None and fits and kept.storage == storage:
            return kept, kept
        own = self._arena.device(name, shape, part.region, storage)
        return own, kept or own


def kept_storages(parts: Sequence[tuple[Part, str]], soc: Soc) -> dict[str, Storage]:
    """How to keep every tensor that parts read or write: as its writer, or first reader, wants it.

    `parts` come in order, each with the name of its variant.
    """
    storages: dict[str, Storage] = {}
    for part, name in parts:
        variant: Any = registry.find(part.op, name, "gpu")
        plan: KernelPlan = variant.plan(part.op, soc)  # no choice changes a storage
        for index, tensor in enumerate(part.layer.inputs):
            storages.setdefault(tensor, plan.storage(TensorArg("input", index)))
        storages[part.layer.output] = plan.storage(TensorArg("output"))
    return storages
