"""Base classes of the GPU's kernel variants.

A `Kernel` subclass names its op kind and source, and defines launches, macros and counts. Each of
its storages makes a variant. Counts and tilings work on integers and on columns; a single op is a
column of length 1, from which `launch` takes the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from codl.ir import types
from codl.ir.columns import Column, Columns, FeatureColumns, ceil_div, round_up
from codl.ir.ops.base import Weights
from codl.ir.ops.window import WindowColumns, WindowOp
from codl.ir.records.soc import Soc
from codl.ir.types import ARITHMETIC, PLANAR, ConstantArray, Element, Processor, Storage
from codl.kernels import base
from codl.kernels.base import ApartArg, Choice, KernelLaunch, KernelPlan, TensorArg, no_constants
from codl.kernels.source import MOST_UNROLLED
from codl.kernels.tiling import (
    GROUP,
    TEXEL,
    ChoiceColumns,
    base_defines,
    first_choice,
    group_shapes,
    image_refusal,
    in_order,
    least,
    rounds,
    single,
    strip,
    waves,
)

#: Storages of most kernels: buffers in channel blocks, planar buffers, and images.
BLOCKS, PLANES, IMAGES = (
    (types.BLOCKED, types.BLOCKED_HALF),
    (PLANAR, types.PLANAR_HALF),
    (types.IMAGE, types.IMAGE_HALF),
)
ANY_DEVICE, REAL_GPU, CPU_DEVICE = frozenset({"cpu", "gpu"}), frozenset({"gpu"}), frozenset({"cpu"})

#: The OpenCL platform of Mesa.
MESA = "rusticl"
#: Global and local size, and optionally the part of the global size with work.
Sizes: TypeAlias = (
    tuple[tuple[int, ...], tuple[int, ...] | None]
    | tuple[tuple[int, ...], tuple[int, ...] | None, tuple[int, ...]]
)


@dataclass(frozen=True)
class Grid:
    """A grid of `strips` x `others` work-items with `strip` tiles each; `others` may be blocks.

    On a GPU `teams` work-items may share a tile's sums, and work-groups are as close to the width
    `wide` as possible.
    """

    soc: Soc
    strip: Any
    strips: Any
    others: Any
    teams: Any = 1
    wide: int = GROUP

    @classmethod
    def of(
        cls,
        tiles: Any,
        others: Any,
        most: Any,
        soc: Soc,
        *,
        choice: Mapping[str, Any] | None = None,
        wide: int = GROUP,
    ) -> Grid:
        """A grid of `tiles`, at most `most` per item; `choice` may set teams."""
        length = strip(tiles, others, most, soc)
        return cls(
            soc, length, ceil_div(tiles, length), others, (choice or {}).get("teams", 1), wide
        )

    @property
    def items(self) -> Any:
        return self.strips * self.others * self.teams

    @property
    def shape(self) -> tuple[Any, Any]:
        """Width and height of a work-group on a GPU."""
        return group_shapes(self.strips, self.others, self.teams, self.soc, wide=self.wide)

    @property
    def groups(self) -> Any:
        width, high = self.shape
        return ceil_div(self.strips, width) * ceil_div(self.others, high)

    @property
    def features(self) -> dict[str, Any]:
        if self.soc.gpu.is_cpu:
            return {"work_items": self.items, "waves": waves(self.items, self.soc)}
        return {"work_items": self.items, "waves": rounds(self.groups, self.soc)}

    @property
    def sizes(self) -> Sizes:
        """Global size, local size, and work-items with work.

        On a CPU `others` (channel blocks) is the fast dimension, so that consecutive work-items
        reuse a strip of the input. On a GPU neighbours compute neighbouring pixels.
        """
        strips, others, teams = _number(self.strips), _number(self.others), _number(self.teams)
        if self.soc.gpu.is_cpu:
            sizes = (others, strips), (1, 1), (others, strips)
        else:
            width, high = (_number(size) for size in self.shape)
            launched = round_up(strips, width), round_up(others, high)
            sizes = launched, (width, high), (strips, others)
        if teams == 1:
            return sizes
        size, local, used = ((*each, teams) for each in sizes)
        return size, local, used

    def launch(self, kernel: str, *args: base.Arg, **named: Any) -> KernelLaunch:
        """A launch over the grid, whose first number is the strip; see `launch`."""
        return launch(kernel, self.sizes, *args, strip=self.strip, **named)


def launch(kernel: str, sizes: Sizes, *args: base.Arg, **named: Any) -> KernelLaunch:
    """A launch over `sizes`, with tensors and constants first, then named numbers.

    The names are the kernel's parameters, in order; a column must have length 1.
    """
    used = sizes[2] if len(sizes) == 3 else ()
    return KernelLaunch(
        kernel, sizes[0], (*args, *map(_number, named.values())), sizes[1], used=used
    )


def _number(value: Any) -> Any:
    """The value of an argument: an integer from a column of length 1, else unchanged."""
    return int(value.item()) if isinstance(value, np.ndarray | np.generic) else value


def apart(*tensors: TensorArg) -> dict[str, ApartArg]:
    """Distances between the images of tensors, by argument name."""
    return {f"{tensor.role}_apart": ApartArg(tensor) for tensor in tensors}


class Kernel:
    """A GPU kernel with features per op."""

    op_kind: ClassVar[str]
    #: Name of its float32 variant in the first storage.
    base_name: ClassVar[str] = "gpu_direct"
    source: ClassVar[str]
    storages: ClassVar[tuple[Storage, ...]] = PLANES
    #: Device types that it is written for; it works on others, but slowly.
    meant_for: ClassVar[frozenset[str]] = ANY_DEVICE
    #: True if its products read factors from local memory.
    through_local: ClassVar[bool] = False
    #: True if one launch computes all images of a batch in buffers.
    batches: ClassVar[bool] = False
    #: Device types on which it should compute a following add (see `adding`).
    adds_on: ClassVar[frozenset[str]] = frozenset()
    processor: ClassVar[Processor] = "gpu"
    backend: ClassVar[base.Backend] = "opencl"
    is_plannable: ClassVar[bool] = True
    transforms_weights: ClassVar[bool] = False
    op_columns: ClassVar[type[Columns] | None] = None

    #: True if the source can multiply in float16; see `ARITHMETIC` in `common.cl`.
    multiplies_halves: ClassVar[bool] = False
    #: Choices of tuning parameters, the default first; `items` are those of a work-group.
    tried: ClassVar[tuple[Choice, ...]] = ({},)

    #: Name of the unmeasured variant for the same ops among planar tensors, if any.
    planar_fallback: str | None = None

    def __init__(self, storage: Storage | None = None, arithmetic: Element = "float32") -> None:
        self.storage = self.storages[0] if storage is None else storage
        self.arithmetic = arithmetic
        self.name = f"{self.base_name}{self.storage.suffix}{ARITHMETIC[arithmetic]}"
        self.takes_batch = self.batches and not self.in_images

    @property
    def in_images(self) -> bool:
        return self.storage.layout == "image"

    def changes_nonfinite(self, op: Any) -> bool:
        groups = getattr(op, "groups", 1)
        is_mixed = groups > 1 and not groups == op.inputs[0].c == op.output.c
        return self.transforms_weights or is_mixed

    def refusal(self, op: Any, soc: Soc) -> str | None:
        reason = self.refuse(op, soc)
        if op.nonfinite and self.changes_nonfinite(op):
            return "tiles of pixels or channels spread NaN and infinities, got nonfinite=1"
        if reason is None and not self.allowed(soc):
            least = min(choice["items"] for choice in self.tried)
            return f"work-groups of {least} are needed, got at most {soc.gpu.max_work_group_size}"
        if self.arithmetic == "float16":
            if not soc.gpu.half:
                return f"the device must have halves (cl_khr_fp16), got gpu.half: {soc.gpu.half}"
            reason = reason or self.refuse_halves(op)
        if reason is None and self.in_images:
            return image_refusal(soc, (*op.inputs, op.output))
        return reason

    def refuse(self, op: Any, soc: Soc) -> str | None:
        """The reason why it cannot compute an op, apart from image sizes; None if it can."""
        return None

    def refuse_halves(self, op: Any) -> str | None:
        """The reason why it cannot multiply an accepted op in float16; None if it can."""
        return None

    def allowed(self, soc: Soc) -> tuple[Choice, ...]:
        """Choices of `tried` whose work-groups fit the device."""
        most = soc.gpu.max_work_group_size
        return tuple(choice for choice in self.tried if choice.get("items", 1) <= most)

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        """Choices of tuning parameters to try; the first is the default."""
        return self.allowed(soc)

    def features(self, op: Any, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        counts = self.counts(op, soc, self._chosen(op, soc, choice))
        return {name: float(value) for name, value in counts.items()}

    def counts(self, op: Any, soc: Soc, choice: Any) -> Mapping[str, Any]:
        raise NotImplementedError

    def plan(self, op: Any, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        return self.build(op, soc, self._chosen(op, soc, choice))

    def build(self, op: Any, soc: Soc, choice: Choice) -> KernelPlan:
        """The plan of an op in a choice, usually made by `assemble`."""
        raise NotImplementedError

    def _chosen(self, op: Any, soc: Soc, choice: Choice | None) -> Choice:
        return self.choices(op, soc)[0] if choice is None else choice

    def assemble(
        self,
        op: Any,
        soc: Soc,
        *launches: KernelLaunch,
        macros: Mapping[str, int | float | str | bool] | None = None,
        pack: Callable[[Weights], Mapping[str, ConstantArray]] = no_constants,
        scratch: Mapping[str, int | types.ImageSize] | None = None,
        images: Iterable[str] = (),
        floats: Iterable[TensorArg] = (),
        source: str | None = None,
    ) -> KernelPlan:
        """A plan of launches in the variant's storage.

        Macros that are False are omitted. `floats` are tensors that are planar float32 in any
        storage. Constants have the storage's element type in blocks and images, except the bias,
        which costs little; with planar tensors they stay as packed.
        """

        def halved(weights: Weights) -> Mapping[str, ConstantArray]:
            return {k: v if k == "bias" else v.astype(np.float16) for k, v in pack(weights).items()}

        arguments = dict.fromkeys(arg for each in launches for arg in each.args)
        is_planar = self.storage.layout == "planar"
        in_halves = self.storage.element == "float16" and not is_planar
        is_half = self.arithmetic == "float16"
        by_mesa = is_half and self.in_images and soc.gpu.platform == MESA
        flags = {"HALF_ARITHMETIC": is_half, "RUSTICL": by_mesa, **(macros or {})}
        return KernelPlan(
            source=source or self.source,
            launches=launches,
            defines={
                **base_defines(op.activation, soc, self.storage),
                **{k: int(v) if v is True else v for k, v in flags.items() if v is not False},
            },
            pack=halved if in_halves else pack,
            scratch=scratch or {},
            images=frozenset(images),
            storages={
                arg: PLANAR if arg in floats else self.storage
                for arg in arguments
                if isinstance(arg, TensorArg)
            },
            whole_batch=is_planar or self.takes_batch,
        )

    def width(self, soc: Soc) -> int:
        """Channels of a block or texel."""
        return TEXEL if self.in_images else soc.gpu.vector_width

    def stored(self, elements: Any) -> Any:
        return float(self.storage.element_bytes) * elements


class ColumnKernel(Kernel):
    """A GPU kernel with features over columns of many ops.

    `ranked` has the choices of tuning parameters. `counts` receives columns, including one per
    parameter.
    """

    op_columns: ClassVar[type[Columns]]

    def ranked(self, ops: Any, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Choices by name, and their rank; the lowest rank is the default, infinity is invalid.

        All have a shape that broadcasts to (choices, ops).
        """
        return {}, np.zeros((1, len(ops)))

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        return least(*self.ranked(ops, soc))

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        return in_order(*self.ranked(self.op_columns.of([op]), soc))

    def _chosen(self, op: Any, soc: Soc, choice: Choice | None) -> Choice:
        if choice is not None:
            return choice
        return first_choice(self.default_columns(self.op_columns.of([op]), soc))

    def features(self, op: Any, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        return single(self.feature_columns(self.op_columns.of([op]), soc, choice))

    def feature_columns(
        self, ops: Any, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        """Features by name, each shaped (ops); without a `choice`, in the default choices."""
        if choice is None:
            choice = self.default_columns(ops, soc)
        return dict(self.counts(ops, soc, _columns(choice, len(ops))))

    def alone(self, op: Any, soc: Soc, choice: Choice) -> tuple[Any, Soc, dict[str, Column]]:
        return self.op_columns.of([op]), soc, _columns(choice, 1)


def _columns(choice: ChoiceColumns, count: int) -> dict[str, Column]:
    return {
        name: np.broadcast_to(np.asarray(value, np.float64), (count,))
        for name, value in choice.items()
    }


def of_every_storage(*entries: type[Kernel]) -> list[Kernel]:
    """Variants of all entries by storage, buffers first, then in order of the entries.

    For float16 storage, a variant that multiplies in float16 comes first.
    """
    storages = dict.fromkeys(storage for entry in entries for storage in entry.storages)
    in_order = sorted(storages, key=lambda storage: storage in IMAGES)
    arithmetics: tuple[Element, ...] = ("float16", "float32")
    return [
        entry(storage, arithmetic)
        for storage in in_order
        for entry in entries
        if storage in entry.storages
        for arithmetic in arithmetics
        if arithmetic == "float32" or (entry.multiplies_halves and storage.element == "float16")
    ]


# Windows of convolution and pooling kernels.


def window_args(op: WindowOp) -> dict[str, int]:
    """The arguments of `WINDOW_ARGS` in `window.cl`, in order."""
    shape = op.inputs[0]
    return {
        "in_h": shape.h,
        "in_w": shape.w,
        "out_w": op.out_hw.w,
        "kernel_h": op.kernel.h,
        "kernel_w": op.kernel.w,
        "stride_h": op.stride.h,
        "stride_w": op.stride.w,
        "pad_top": op.pad.top,
        "pad_left": op.pad.left,
        "dilation_h": op.dilation.h,
        "dilation_w": op.dilation.w,
    }


@dataclass(frozen=True)
class RowTiles:
    """Tiles of `pixels` pixels of a row by blocks of channels."""

    pixels: Column
    blocks: Column
    in_row: Column
    tiles: Column
    grid: Grid

    @classmethod
    def of(
        cls,
        ops: WindowColumns,
        soc: Soc,
        pixels: Column,
        blocks: Column,
        longest: Column | float,
        **grid: Any,
    ) -> RowTiles:
        """Strips of at most `longest` tiles of a block; `grid` are arguments of `Grid.of`."""
        in_row = ceil_div(ops.ow, pixels)
        tiles = ops.oh * in_row
        return cls(pixels, blocks, in_row, tiles, Grid.of(tiles, blocks, longest, soc, **grid))


def window_macros(op: WindowOp, pixels: int) -> dict[str, int | bool]:
    """Macros of a row of a window under `pixels` neighbours, which is unrolled if short enough."""
    columns = (pixels - 1) * op.stride.w + (op.kernel.w - 1) * op.dilation.w + 1
    return {
        "PIXELS": pixels,
        "KERNEL_W": op.kernel.w,
        "STRIDE_W": op.stride.w,
        "DILATION_W": op.dilation.w,
        "SPAN": columns,
        "ROLLED": columns > MOST_UNROLLED,
    }


def span(ops: WindowColumns, pixels: Column | float) -> Column:
    """Input columns under the windows of `pixels` neighbours."""
    return (pixels - 1) * ops.sw + ops.extent_w
