"""From kernel plans to launches: arguments become regions, constants, memory or numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from codl.ir.executable import Argument, Constant, Launch, Scratch, Slice
from codl.ir.ops.base import Weights
from codl.ir.region import Region
from codl.ir.soc import Soc
from codl.ir.tensor import Tensor
from codl.ir.types import PLANAR, Storage
from codl.kernels.base import (
    ApartArg,
    Arg,
    ConstantArg,
    KernelLaunch,
    KernelPlan,
    ScratchArg,
    TensorArg,
)
from codl.kernels.layout.transform import transform
from codl.kernels.source import compile_options, source_digest
from codl.lower.assembly import Assembly
from codl.lower.memory import Arena


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
        if not any(isinstance(arg, ConstantArg) for one in plan.launches for arg in one.args):
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
