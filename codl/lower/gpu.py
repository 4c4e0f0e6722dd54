"""Lowers the GPU's shard of a chain: kernels in order, with copies between storages.

First the kernels are selected: fused adds, variants and tuned choices. A convolution
computes the residual add behind it if both have the same storage. Kernels that a
device has refused are replaced by other variants. Then kernel arguments become regions, constants,
scratch memory or numbers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from codl.errors import CodlError, NoKernelError
from codl.ir import executable
from codl.ir.executable import Constant, GpuOp, Launch, Refusal, Relayout, Scratch, Slice, Tensor
from codl.ir.op_text import to_text
from codl.ir.ops.base import Op, Weights
from codl.ir.plan import Chain
from codl.ir.records.soc import Soc
from codl.ir.region import Region, Span
from codl.ir.types import PLANAR, Storage
from codl.kernels import base, registry
from codl.kernels.base import ENDS, Arg, Choice, ConstantArg, KernelPlan, ScratchArg, TensorArg
from codl.kernels.kernel import Kernel
from codl.kernels.layout import transform
from codl.kernels.source import compile_options, source_digest
from codl.kernels.tuning import Tuning
from codl.lower.assembly import Arena, Assembly
from codl.lower.partition import Part, Shard, fuses, residual_adds

#: The size in bytes from which kernels need 64-bit offsets.
MOST_BYTES = 1 << 32


@dataclass(frozen=True)
class Work:
    """A part of a layer, with the residual add that the same kernels compute, if any."""

    part: Part
    add: Part | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.part,) if self.add is None else (self.part, self.add)

    @property
    def label(self) -> str:
        return " + ".join(part.layer.name for part in self.parts)

    @property
    def result(self) -> Part:
        """The part whose output the kernels store."""
        return self.parts[-1]

    @property
    def reads(self) -> tuple[tuple[str, Region], ...]:
        """The tensors that the kernels read, each with its region; a residual comes last."""
        pairs = [
            pair for part in self.parts for pair in zip(part.layer.inputs, part.needs, strict=True)
        ]
        inside = self.part.layer.output
        return tuple(pair for pair in pairs if pair[0] != inside)


@dataclass(frozen=True)
class Selection:
    work: Work
    variant: Kernel
    choice: Choice | None
    plan: KernelPlan


@dataclass(frozen=True)
class Selector:
    """Selects kernels except refused ones."""

    soc: Soc
    tuning: Tuning
    without: Sequence[Refusal] = ()
    _plans: dict[tuple[Any, ...], KernelPlan] = field(default_factory=dict, repr=False)

    def plan(self, variant: Any, op: Op, choice: Choice | None = None) -> KernelPlan:
        key = variant.name, op, None if choice is None else tuple(choice.items())
        if key not in self._plans:
            self._plans[key] = variant.plan(op, self.soc, choice)
        return self._plans[key]

    def select(
        self, shard: Shard, planned: Mapping[str, str], outputs: Collection[str]
    ) -> list[Selection]:
        """The kernels of a shard in order, in the `planned` variants by layer where they work.

        `outputs` are the tensors that other chains read. Raises `NoKernelError` for a layer without
        a kernel that works.
        """
        fused = works(shard, outputs, planned, self.soc)
        return [selection for work in fused for selection in self._selected(work, planned)]

    def _selected(self, work: Work, planned: Mapping[str, str]) -> list[Selection]:
        """The kernels of a work; where its fused add was refused, two separate selections."""
        refused = [(x.label, x.variant, x.choice) for x in self.without]
        for variant, choice in self._options(work, planned[work.part.layer.name]):
            chosen = None if choice is None else dict(choice)
            if (work.label, variant.name, chosen) not in refused:
                return [Selection(work, variant, choice, self._plan(work, variant, choice))]
        if work.add is None:
            refusals = (str(refusal) for refusal in self.without if refusal.label == work.label)
            reasons = "; ".join(dict.fromkeys(refusals))
            name = work.part.layer.name
            raise NoKernelError(name, planned[name], reasons)
        return [x for part in work.parts for x in self._selected(Work(part), planned)]

    def _options(self, work: Work, planned: str) -> Iterator[tuple[Any, Choice | None]]:
        """Variants and choices for a work, the planned variant first.

        Without a fused add, all other variants that accept the op follow. Each comes in its tuned
        choice, if any, and then in its default choice. If the op has only the planned variant, all
        other choices of that variant follow.
        """
        op = work.part.op
        first: Any = registry.find(op, planned, "gpu")
        refusal = first.refusal(op, self.soc)
        if refusal is not None:
            raise CodlError(f"{planned} cannot run {work.part.layer.name!r}: {refusal}.")
        others: list[Any] = [v for v in registry.variants(op, "gpu", self.soc) if v.name != planned]
        for variant in (first, *(others if work.add is None else ())):
            # The tuning has choices of ops without fused adds.
            choice = self.tuning.choice(variant, op, self.soc)
            for option in (None,) if choice is None else (choice, None):
                yield variant, option
        if not others:
            for option in first.choices(op, self.soc)[1:]:
                yield first, option

    def _plan(self, work: Work, variant: Any, choice: Choice | None) -> KernelPlan:
        """The kernels of a work; a fused add comes before the activation."""
        op = work.part.op
        if work.add is None:
            return self.plan(variant, op, choice)
        return self.plan(variant, op.with_activation(work.add.op.activation), choice).adding()


def works(
    shard: Shard, outputs: Collection[str], variants: Mapping[str, str], soc: Soc
) -> list[Work]:
    """The works of a shard in order; an add is fused with its convolution where variants allow.

    A fused add runs earlier than in the shard: its inputs exist by then. `outputs` are the tensors
    that other chains read, and `variants` are the planned ones by layer.
    """
    parts = {part.layer.name: part for part in shard.parts}
    adds: dict[str, Part] = {}
    for name, layer in residual_adds([part.layer for part in shard.parts], outputs).items():
        conv, add = parts[name], parts[layer.name]
        planned = [registry.find(part.op, variants[part.layer.name]) for part in (conv, add)]
        if conv.region == add.region and fuses(planned[0], planned[1], soc):
            adds[name] = add
    fused = {add.layer.name for add in adds.values()}
    return [Work(part, adds.get(name)) for name, part in parts.items() if name not in fused]


class KernelLowering:
    """Emits launches into an assembly; scratch memory comes from the arena."""

    def __init__(self, assembly: Assembly, arena: Arena, soc: Soc) -> None:
        self._assembly, self._arena, self._soc = assembly, arena, soc

    def compute(
        self,
        plan: KernelPlan,
        arguments: Mapping[TensorArg, tuple[Tensor, Region]],
        weights: Weights,
        choice: Choice | None,
        **described: Any,
    ) -> None:
        """Emit the launches of a kernel plan as a step; `described` are fields of its `GpuOp`.

        The output is the last of the `arguments`, which are as in `launch`.
        """
        constants = self._constants(plan, described["ops"], described["variant"], weights)
        *reads, writes = (self._assembly.access(*pair) for pair in arguments.values())
        chosen = None if choice is None else dict(choice)
        gpu_op = GpuOp(
            **described, choice=chosen, reads=tuple(reads), writes=writes, constants=constants
        )
        self.launch(plan, arguments, step=self._assembly.step(gpu_op), constants=constants)

    def launch(
        self,
        plan: KernelPlan,
        tensors: Mapping[TensorArg, tuple[Tensor, Region]],
        *,
        step: int,
        constants: int | None = None,
    ) -> None:
        """Emit the launches of a kernel plan for all images of the regions.

        `tensors` maps each tensor argument to a tensor and a region of it. Raises `ValueError` for
        a tensor in another storage than the plan's.
        """
        for argument, (tensor, _) in tensors.items():
            if tensor.storage != plan.storage(argument):
                wanted = plan.storage(argument)
                raise ValueError(f"{plan.source} wants {argument} {wanted}, not {tensor.storage}")
        sizes = [tensor.bytes for tensor, _ in tensors.values()]
        sizes += [size for size in plan.scratch.values() if isinstance(size, int)]
        if max(sizes, default=0) >= MOST_BYTES:
            plan = replace(plan, defines={**plan.defines, "WIDE": 1})
        scratch = {name: self._arena.scratch(size) for name, size in plan.scratch.items()}
        program = self._assembly.program(plan)

        def value(arg: Arg, image: int) -> executable.Argument:
            """The value of an argument of a launch that computes from `image` on."""
            if isinstance(arg, TensorArg):
                tensor, region = tensors[arg]
                # Regions of one image serve all images.
                first = image if region.images.size > 1 else 0
                return Slice(self._assembly.tensors.number(tensor), region, first)
            if isinstance(arg, ConstantArg):
                assert constants is not None
                return Constant(constants, arg.name, arg.name in plan.images)
            if isinstance(arg, ScratchArg):
                return Scratch(scratch[arg.name])
            if isinstance(arg, base.ApartArg):
                tensor, region = tensors[arg.tensor]
                return tensor.blocks * tensor.pixels if region.images.size > 1 else 0
            return float(arg) if isinstance(arg, float) else int(arg)

        images = max((region.images.size for _, region in tensors.values()), default=1)
        for image in range(1 if plan.whole_batch else images):
            for planned in plan.launches:
                self._assembly.emit(
                    Launch(
                        step=step,
                        program=program,
                        kernel=planned.kernel,
                        global_size=tuple(map(int, planned.global_size)),
                        local_size=planned.local_size and tuple(map(int, planned.local_size)),
                        args=tuple(value(arg, image + planned.image) for arg in planned.args),
                    )
                )
        for buffer in scratch.values():
            self._arena.give(buffer)

    def _constants(
        self, plan: KernelPlan, ops: Sequence[str], variant: str, weights: Weights
    ) -> int | None:
        """Add the packed weights of a kernel plan; None for kernels that read no weights.

        The packing depends on the weights, the `ops` as text, the `variant` and the plan.
        """
        if not any(isinstance(arg, ConstantArg) for launch in plan.launches for arg in launch.args):
            return None
        how = {
            "ops": list(ops),
            "variant": variant,
            "source": plan.source,
            "digest": source_digest(plan),
            "options": compile_options(plan.defines),
            "weights": sorted(weights),
        }
        return self._assembly.add_constants(json.dumps(how), weights, lambda: plan.pack(weights))

    def copy(self, source: Tensor, target: Tensor, region: Region, *, step: int) -> None:
        """Emit a copy of `region` between equal shapes in any storages, some via a planar one."""
        layouts = (source.storage.layout, target.storage.layout)
        if layouts[1] == "image" and not target.is_whole_blocks(region):
            self._copy_within_texels(source, target, region, step)
            return
        whole = source.is_whole_blocks(region, 4) and target.is_whole_blocks(region, 4)
        if "planar" not in layouts and (layouts[0] == layouts[1] or not whole):
            between = self._arena.device(source.name, source.shape, region, PLANAR)
            self.copy(source, between, region, step=step)
            self.copy(between, target, region, step=step)
            self._arena.give(between.buffer)
            return
        # The tensor with the larger blocks decides where the region begins in a block.
        blocked = max((source, target), key=lambda tensor: tensor.block)
        lead = blocked.lead(region)
        plan = transform(
            source.storage,
            target.storage,
            region.shape(source.shape),
            self._soc,
            lead=lead,
            ends=region.channels.stop == blocked.held.channels.stop,
        )
        sides = {TensorArg("input"): source, TensorArg("output"): target}
        first, last = region.channels
        led = region._replace(channels=Span(first - lead, last))
        self.launch(
            plan,
            {a: (t, led if t is blocked else region) for a, t in sides.items()},
            step=step,
        )

    def _copy_within_texels(
        self, source: Tensor, target: Tensor, region: Region, step: int
    ) -> None:
        """Copy to channels of an image that share texels with other channels.

        A kernel cannot both read and write an image, so the other channels are copied out and back.
        """
        around = target.blocks_around(region)
        storage = Storage("planar", target.storage.element)
        between = self._arena.device(target.name, target.shape, around, storage)
        self.copy(target, between, around, step=step)
        self.copy(source, between, region, step=step)
        self.copy(between, target, around, step=step)
        self._arena.give(between.buffer)


class GpuLowering:
    def __init__(
        self, assembly: Assembly, arena: Arena, kernels: KernelLowering, selector: Selector
    ) -> None:
        self._assembly, self._arena, self._kernels = assembly, arena, kernels
        self._selector = selector
        self._tensors: dict[str, Tensor] = {}
        #: Copies of tensors or regions in other storages, valid inside one chain.
        self._copies: dict[tuple[str, Storage, Region], Tensor] = {}
        #: The region of each tensor that the chain reads or makes.
        self._regions: dict[str, Region] = {}

    def lower(self, shard: Shard, chain: Chain, tensors: Mapping[str, Tensor]) -> None:
        """Emit a shard's kernels; raises `NoKernelError` for a layer without a working one."""
        self._tensors, self._copies, self._regions = dict(tensors), {}, dict(shard.inputs)
        planned = {part.layer.name: chain.variants[part.layer.name]["gpu"] for part in shard.parts}
        selected = self._selector.select(shard, planned, tensors)
        last_reader = {
            name: selection for selection in selected for name, _ in selection.work.reads
        }
        for selection in selected:
            if not self._views(selection, tensors):
                self._emit(selection)
            for name in dict(selection.work.reads):
                if last_reader[name] is selection:
                    self._release(name, is_kept=name in tensors)

    def _release(self, name: str, *, is_kept: bool) -> None:
        """Give back the memory of a tensor that no later work reads, and of its copies."""
        if not is_kept:
            self._give(self._tensors.pop(name))
        for key in [key for key in self._copies if key[0] == name]:
            self._give(self._copies.pop(key))

    def _give(self, tensor: Tensor) -> None:
        """Give back the memory of a tensor, unless another tensor is a view of it."""
        others = (*self._tensors.values(), *self._copies.values())
        if all(other.buffer != tensor.buffer for other in others):
            self._arena.give(tensor.buffer)

    def _views(self, selection: Selection, kept: Collection[str]) -> bool:
        """Make the output a view of the input, where the op keeps the order of elements.

        Both must be planar and live only in this chain (`kept` tensors live on). Returns False
        where kernels have to compute the work.
        """
        work, ends = selection.work, [selection.plan.storage(end) for end in ENDS]
        if not work.part.op.keeps_order or ends[0].layout != "planar" or ends[0] != ends[1]:
            return False
        (name, need), output = work.reads[0], work.result.layer.output
        source = self._tensors[name]
        if not {name, output}.isdisjoint(kept) or (source.storage, source.held) != (ends[0], need):
            return False
        shape, held = work.part.layer.op.output, work.part.region
        self._tensors[output] = structs.replace(source, name=output, shape=shape, held=held)
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
        self._kernels.compute(
            plan,
            arguments,
            weights,
            selection.choice,
            label=work.label,
            layers=tuple(part.layer.name for part in work.parts),
            ops=tuple(to_text(part.op) for part in work.parts),
            variant=selection.variant.name,
        )
        output = result.layer.output
        if stored is not target:
            self._copy(target, stored, result.region, result.region)
            self._arena.give(target.buffer)
        self._tensors[output], self._regions[output] = stored, result.region

    def _copy(self, source: Tensor, target: Tensor, region: Region, around: Region) -> None:
        """Emit a copy of `region`; `around` is the region extended to whole blocks of channels."""
        accesses = (self._assembly.access(tensor, region) for tensor in (source, target))
        step = self._assembly.step(Relayout(f"transform {source.name}", *accesses))
        self._kernels.copy(source, target, around, step=step)

    def _read(self, name: str, storage: Storage, need: Region) -> Tensor:
        """The tensor, or a copy of it, from which a kernel can read the region `need`."""
        tensor = self._tensors[name]
        if tensor.storage == storage and tensor.serves(need):
            return tensor
        if tensor.storage != storage:
            tensor = self._copied(tensor, storage, self._regions.get(name, tensor.held))
            if tensor.serves(need):
                return tensor
        return self._copied(tensor, storage, need)

    def _copied(self, tensor: Tensor, storage: Storage, region: Region) -> Tensor:
        """A copy of a region of a tensor in a storage; each copy is made once."""
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
        """The tensor that the kernels of a part write, and the tensor that keeps the output."""
        name, shape = part.layer.output, part.layer.op.output
        kept = self._tensors.get(name)
        fits = kept is not None and kept.serves(part.region)
        if kept is not None and fits and kept.storage == storage:
            return kept, kept
        output = self._arena.device(name, shape, part.region, storage)
        return output, kept or output


def kept_storages(parts: Sequence[tuple[Part, str]], selector: Selector) -> dict[str, Storage]:
    """Storages by tensor: its writer's or first reader's; `parts` have variants, in order."""
    storages: dict[str, Storage] = {}
    for part, name in parts:
        # Choices do not change the storage.
        plan = selector.plan(registry.find(part.op, name, "gpu"), part.op)
        for index, tensor in enumerate(part.layer.inputs):
            storages.setdefault(tensor, plan.storage(TensorArg("input", index)))
        storages[part.layer.output] = plan.storage(TensorArg("output"))
    return storages
