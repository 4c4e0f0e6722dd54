"""The GPU's shard of a chain: kernels in order, with copies where storages differ.

What is fused, and in which variant and choice, is selected first: a convolution, or a product of a
few rows, computes the residual add behind it where both have one storage. What a device has refused
is not selected again; other variants stand in for it. Arguments of kernel plans become regions,
constants, memory or numbers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from codl.errors import CodlError, NoKernelError
from codl.ir.executable import (
    Argument,
    Constant,
    GpuOp,
    Launch,
    Refusal,
    Relayout,
    Scratch,
    Slice,
    Tensor,
)
from codl.ir.op_text import to_text
from codl.ir.ops.base import Op, Weights
from codl.ir.plan import Chain
from codl.ir.region import Region
from codl.ir.types import PLANAR, Storage
from codl.kernels import registry
from codl.kernels.base import (
    ENDS,
    ApartArg,
    Arg,
    Choice,
    ConstantArg,
    KernelLaunch,
    KernelPlan,
    ScratchArg,
    TensorArg,
)
from codl.kernels.kernel import Kernel
from codl.kernels.layout.transform import transform
from codl.kernels.source import compile_options, source_digest
from codl.kernels.tuning import Tuning
from codl.lower.assembly import Arena, Assembly
from codl.lower.partition import Part, Shard
from codl.lower.rules import active, fuses, mode_of, residual_adds
from codl.records.soc import Soc

#: Bytes of a buffer that kernels count in 32 bits.
MOST_BYTES = 1 << 32


@dataclass(frozen=True)
class Work:
    """A part of a layer, and the residual add that its kernels compute too, where there is one."""

    part: Part
    add: Part | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.part,) if self.add is None else (self.part, self.add)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.layer.name for part in self.parts)

    @property
    def label(self) -> str:
        return " + ".join(self.names)

    @property
    def result(self) -> Part:
        """The part whose output is stored."""
        return self.parts[-1]

    @property
    def reads(self) -> tuple[tuple[str, Region], ...]:
        """The tensors read, with the region of each; the residual is the last."""
        pairs = [
            pair for part in self.parts for pair in zip(part.layer.inputs, part.needs, strict=True)
        ]
        inside = self.part.layer.output
        return tuple(pair for pair in pairs if pair[0] != inside)


@dataclass(frozen=True)
class Selection:
    """A variant for a work, in a choice, with its kernels."""

    work: Work
    variant: Kernel
    choice: Choice | None
    plan: KernelPlan


@dataclass(frozen=True)
class Selector:
    """Selects kernels, `without` those that a device has refused.

    With `fuse` off every layer has kernels of its own.
    """

    soc: Soc
    tuning: Tuning
    without: Sequence[Refusal] = ()
    fuse: bool = True
    _plans: dict[tuple[Any, ...], KernelPlan] = field(default_factory=dict, repr=False)

    def plan(self, variant: Any, op: Op, choice: Choice | None = None) -> KernelPlan:
        """A variant's kernels for an op, made once for all layers that have it."""
        key = variant.name, op, None if choice is None else tuple(choice.items())
        if key not in self._plans:
            self._plans[key] = variant.plan(op, self.soc, choice)
        return self._plans[key]

    def select(
        self, shard: Shard, planned: Mapping[str, str], outputs: Collection[str]
    ) -> list[Selection]:
        """The kernels of a shard in order, with the `planned` variants, by layer, where they work.

        `outputs` are the tensors that are read outside the shard. Raises `NoKernelError` where no
        kernel is left for a layer.
        """
        single = [Work(part) for part in shard.parts]
        fused = works(shard, outputs, planned, self.soc) if self.fuse else single
        return [selection for work in fused for selection in self._selected(work, planned)]

    def _selected(self, work: Work, planned: Mapping[str, str]) -> list[Selection]:
        """Kernels for a work; an add that fails in its convolution has kernels of its own."""
        for variant, choice in self._options(work, planned[work.part.layer.name]):
            if not any(refusal.is_of(work.label, variant.name, choice) for refusal in self.without):
                return [Selection(work, variant, choice, self._plan(work, variant, choice))]
        if work.add is None:
            refusals = (str(refusal) for refusal in self.without if refusal.label == work.label)
            reasons = "; ".join(dict.fromkeys(refusals))
            name = work.part.layer.name
            raise NoKernelError(name, planned[name], reasons)
        return [x for part in work.parts for x in self._selected(Work(part), planned)]

    def _options(self, work: Work, planned: str) -> Iterator[tuple[Any, Choice | None]]:
        """The planned variant, then, of what is not fused, every other one that accepts the op.

        Each in its tuned choice first, where it has one, and then in its default; and where there
        is no other variant, the planned one in its other choices.
        """
        op = work.part.op
        first: Any = registry.find(op, planned, "gpu")
        refusal = first.refusal(op, self.soc)
        if refusal is not None:
            raise CodlError(f"{planned} cannot run {work.part.layer.name!r}: {refusal}.")
        others: list[Any] = [v for v in registry.variants(op, "gpu", self.soc) if v.name != planned]
        for variant in (first, *(others if work.add is None else ())):
            # Choices are known of the op without what is fused with it.
            choice = self.tuning.choice(variant, op, self.soc)
            for option in (None,) if choice is None else (choice, None):
                yield variant, option
        if not others:
            for option in first.choices(op, self.soc)[1:]:
                yield first, option

    def _plan(self, work: Work, variant: Any, choice: Choice | None) -> KernelPlan:
        """An add that is computed too comes before the activation, which is the add's."""
        op = work.part.op
        if work.add is None:
            return self.plan(variant, op, choice)
        return self.plan(variant, active(op, work.add.op), choice).adding(mode_of(work.add.op))


def works(
    shard: Shard, outputs: Collection[str], variants: Mapping[str, str], soc: Soc
) -> list[Work]:
    """The shard in order, each residual add with its convolution where that is to compute it.

    So an add may come before its turn: what it reads is there by then, and what it makes is read
    later. `outputs` are the tensors that are read outside the shard; `variants` those planned, by
    layer.
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


@dataclass(frozen=True)
class Arguments:
    """What the arguments of a plan's launches stand for."""

    tensors: Mapping[TensorArg, tuple[Tensor, Region]]
    constants: int | None
    scratch: Mapping[str, int]
    images: frozenset[str]

    @property
    def image_count(self) -> int:
        """Images of the regions; a region of one image is read again for every other image."""
        return max((region.images.size for _, region in self.tensors.values()), default=1)

    def value(self, arg: Arg, image: int, assembly: Assembly) -> Argument:
        """What a kernel gets that computes from this image on."""
        if isinstance(arg, TensorArg):
            tensor, region = self.tensors[arg]
            first = image if region.images.size > 1 else 0
            return Slice(assembly.tensors.number(tensor), region, first)
        if isinstance(arg, ConstantArg):
            assert self.constants is not None
            return Constant(self.constants, arg.name, arg.name in self.images)
        if isinstance(arg, ScratchArg):
            return Scratch(self.scratch[arg.name])
        if isinstance(arg, ApartArg):
            tensor, region = self.tensors[arg.tensor]
            return tensor.image_stride if region.images.size > 1 else 0
        return float(arg) if isinstance(arg, float) else int(arg)


class KernelLowering:
    """Emits launches into an assembly; memory that only kernels need is the arena's."""

    def __init__(self, assembly: Assembly, arena: Arena, soc: Soc) -> None:
        self._assembly, self._arena, self._soc = assembly, arena, soc

    def launch(
        self,
        plan: KernelPlan,
        tensors: Mapping[TensorArg, tuple[Tensor, Region]],
        *,
        step: int,
        constants: int | None = None,
    ) -> None:
        """Emit a plan's launches, for every image of the regions.

        `tensors` gives every tensor argument its tensor and the region meant. Raises `ValueError`
        for a tensor in another storage than the plan's.
        """
        for argument, (tensor, _) in tensors.items():
            if tensor.storage != plan.storage(argument):
                wanted = plan.storage(argument)
                raise ValueError(f"{plan.source} wants {argument} {wanted}, not {tensor.storage}")
        if _is_wide(plan, tensors):
            plan = plan.wide()
        scratch = {name: self._arena.scratch(size) for name, size in plan.scratch.items()}
        arguments = Arguments(tensors, constants, scratch, plan.images)
        program = self._assembly.program(plan)
        for image in range(1 if plan.whole_batch else arguments.image_count):
            for planned in plan.launches:
                self._emit(planned, program, arguments, image + planned.image, step)
        for buffer in scratch.values():
            self._arena.give(buffer)

    def constants(
        self, plan: KernelPlan, ops: Sequence[str], variant: str, weights: Weights
    ) -> int | None:
        """What a plan's kernels read of weights, packed; None where they read none.

        `ops`, as text, and `variant` say with the plan all that the packing depends on but weights.
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

    def _emit(
        self, planned: KernelLaunch, program: int, arguments: Arguments, image: int, step: int
    ) -> None:
        values = (arguments.value(arg, image, self._assembly) for arg in planned.args)
        self._assembly.emit(
            Launch(
                step=step,
                program=program,
                kernel=planned.kernel,
                global_size=tuple(map(int, planned.global_size)),
                local_size=planned.local_size and tuple(map(int, planned.local_size)),
                args=tuple(values),
            )
        )

    def copy(self, source: Tensor, target: Tensor, region: Region, *, step: int) -> None:
        """Emit kernels that copy `region` between two tensors of one shape, in any storages.

        Between two layouts other than the planar one they go through it where they must.
        """
        layouts = (source.storage.layout, target.storage.layout)
        if layouts[1] == "image" and not target.is_whole_blocks(region):
            self._copy_within_texels(source, target, region, step)
            return
        whole = source.is_whole_blocks(region, 4) and target.is_whole_blocks(region, 4)
        if "planar" not in layouts and (layouts[0] == layouts[1] or not whole):
            self._copy_through(source, target, region, step)
            return
        # Of two sides the one with the larger blocks says where the region lies in them.
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
        self.launch(
            plan,
            {a: (t, region.led_by(lead) if t is blocked else region) for a, t in sides.items()},
            step=step,
        )

    def _copy_through(self, source: Tensor, target: Tensor, region: Region, step: int) -> None:
        between = self._arena.device(source.name, source.shape, region, PLANAR)
        self.copy(source, between, region, step=step)
        self.copy(between, target, region, step=step)
        self._arena.give(between.buffer)

    def _copy_within_texels(
        self, source: Tensor, target: Tensor, region: Region, step: int
    ) -> None:
        """A copy to channels of an image that share texels with others.

        A kernel cannot both read and write an image, so these others go out and in with them.
        """
        around = target.blocks_around(region)
        storage = Storage("planar", target.storage.element)
        between = self._arena.device(target.name, target.shape, around, storage)
        self.copy(target, between, around, step=step)
        self.copy(source, between, region, step=step)
        self.copy(between, target, around, step=step)
        self._arena.give(between.buffer)


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
        """Emit a shard's kernels; raises `NoKernelError` where no kernel is left for a layer."""
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
        output = self._arena.device(name, shape, part.region, storage)
        return output, kept or output


def kept_storages(parts: Sequence[tuple[Part, str]], selector: Selector) -> dict[str, Storage]:
    """How to keep every tensor that parts read or write: as its writer, or first reader, wants it.

    `parts` come in order, each with the name of its variant.
    """
    storages: dict[str, Storage] = {}
    for part, name in parts:
        # No choice changes a storage.
        plan = selector.plan(registry.find(part.op, name, "gpu"), part.op)
        for index, tensor in enumerate(part.layer.inputs):
            storages.setdefault(tensor, plan.storage(TensorArg("input", index)))
        storages[part.layer.output] = plan.storage(TensorArg("output"))
    return storages


def _is_wide(plan: KernelPlan, tensors: Mapping[TensorArg, tuple[Tensor, Region]]) -> bool:
    """Whether a plan's kernels count more bytes of a buffer than 32 bits do."""
    held = [tensor.bytes for tensor, _ in tensors.values()]
    scratch = [size for size in plan.scratch.values() if isinstance(size, int)]
    return max([*held, *scratch], default=0) >= MOST_BYTES
