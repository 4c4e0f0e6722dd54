"""Base classes of kernel variants: `CpuKernel`, and `Kernel` of the GPU, as entries of tables.

On the CPU an entry is a `CpuKernel`: functions that describe an op and count what it costs. On the
GPU it is a subclass of `Kernel`, and a variant for each of its storages: it names its op and its
source, and gives launches, macros and counts. This module makes the `KernelPlan` of them, in every
storage, and the defaults of all else that a variant says. Counts and tilings are written once, for
whole numbers or for columns of them: an op alone is a column of one, and `launch` takes the one
number out of such a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np

from codl.ir.columns import Column, Columns, FeatureColumns
from codl.ir.ops.base import Weights
from codl.ir.types import (
    ARITHMETIC,
    BLOCKED,
    BLOCKED_HALF,
    IMAGE,
    IMAGE_HALF,
    PLANAR,
    PLANAR_HALF,
    ConstantArray,
    Element,
    ImageSize,
    Processor,
    Storage,
)
from codl.kernels.base import (
    ApartArg,
    Arg,
    Backend,
    Choice,
    KernelLaunch,
    KernelPlan,
    TensorArg,
    no_constants,
)
from codl.kernels.feature_columns import ChoiceColumns, first_choice, single, unique
from codl.kernels.image import image_refusal
from codl.kernels.tiling import (
    GROUP,
    TEXEL,
    base_defines,
    ceil_div,
    group_shapes,
    item_grid,
    rounds,
    strip,
    waves,
)
from codl.records.soc import Soc

#: The storages of most entries: buffers in blocks of channels, buffers of any rank, and images.
BLOCKS, PLANES, IMAGES = (BLOCKED, BLOCKED_HALF), (PLANAR, PLANAR_HALF), (IMAGE, IMAGE_HALF)
ANY_DEVICE, REAL_GPU, CPU_DEVICE = frozenset({"cpu", "gpu"}), frozenset({"gpu"}), frozenset({"cpu"})

#: Mesa's platform of OpenCL.
MESA = "rusticl"
#: Global and local size, and of the first how much has work where that is told.
Sizes: TypeAlias = (
    tuple[tuple[int, ...], tuple[int, ...] | None]
    | tuple[tuple[int, ...], tuple[int, ...] | None, tuple[int, ...]]
)


@dataclass(frozen=True)
class Grid:
    """Work-items with `strip` tiles each: `strips` of them for each of `others`, such as blocks.

    On a GPU `teams` of them may share the sums of a tile, and `local` is the width and height of a
    work-group where it was chosen; else it is what fits best, as close to `wide` as may be.
    """

    soc: Soc
    strip: Any
    strips: Any
    others: Any
    teams: Any = 1
    local: tuple[Any, Any] | None = None
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
        """At most `most` of `tiles` consecutive tiles for a work-item, as the device wants it.

        A `choice` may have `teams`, `local_x` and `local_y`.
        """
        length, chosen = strip(tiles, others, most, soc), choice or {}
        local = (chosen["local_x"], chosen["local_y"]) if "local_x" in chosen else None
        strips = ceil_div(tiles, length)
        return cls(soc, length, strips, others, chosen.get("teams", 1), local, wide)

    @property
    def items(self) -> Any:
        return self.strips * self.others * self.teams

    @property
    def shape(self) -> tuple[Any, Any]:
        """Width and height of a work-group of a GPU."""
        if self.local is not None:
            return self.local
        return group_shapes(self.strips, self.others, self.teams, self.soc, wide=self.wide)

    @property
    def groups(self) -> Any:
        """Work-groups of a GPU."""
        width, high = self.shape
        return ceil_div(self.strips, width) * ceil_div(self.others, high)

    @property
    def features(self) -> dict[str, Any]:
        if self.soc.gpu.is_cpu:
            return {"work_items": self.items, "waves": waves(self.items, self.soc)}
        return {"work_items": self.items, "waves": rounds(self.groups, self.soc)}

    @property
    def sizes(self) -> Sizes:
        strips, others, teams = _number(self.strips), _number(self.others), _number(self.teams)
        shape = None if self.soc.gpu.is_cpu else tuple(_number(size) for size in self.shape)
        sizes = item_grid(strips, others, self.soc, shape=shape)
        if teams == 1:
            return sizes
        size, local, used = ((*each, teams) for each in sizes)
        return size, local, used


def launch(kernel: str, sizes: Sizes, *args: Arg, **named: Any) -> KernelLaunch:
    """A launch over `sizes`, of tensors and constants and then of numbers by their names.

    The names are those of the kernel's parameters, in their order; a column is of one op.
    """
    numbers = (_number(value) for value in named.values())
    names = (*("" for _ in args), *named)
    used = sizes[2] if len(sizes) == 3 else ()
    all_args = (*args, *numbers)
    return KernelLaunch(kernel, sizes[0], all_args, sizes[1], names=names, used=used)


def _number(value: Any) -> Any:
    """An argument, of which a column of one is its whole number."""
    return int(value.item()) if isinstance(value, np.ndarray | np.generic) else value


def apart(*tensors: TensorArg) -> dict[str, ApartArg]:
    """How far apart the images of tensors lie."""
    return {f"{tensor.role}_apart": ApartArg(tensor) for tensor in tensors}


#: Libraries whose sigmoid, clip or maximum makes numbers of NaN or infinities.
CHANGE_NONFINITE: tuple[Backend, ...] = ("ncnn", "openvino")


@dataclass(frozen=True)
class CpuKernel:
    """A library's implementation of an op: takes all images of a batch at once.

    `describe` says it in the library's terms; `count` gives the features over `op_columns`, or of
    an op where there are none.
    """

    op_kind: str
    describe: Callable[[Any], Any]
    count: Callable[[Any, Soc], Mapping[str, Any]]
    op_columns: type[Columns] | None = None
    refuse: Callable[[Any], str | None] = lambda op: None
    name: str = "cpu_direct"
    backend: Backend = "ncnn"
    is_plannable: bool = True
    #: How many times as many numbers its weights are as the op's, where it transforms them.
    growth: Callable[[Any], Column] | None = None
    processor: ClassVar[Processor] = "cpu"
    takes_batch: ClassVar[bool] = True

    @property
    def transforms_weights(self) -> bool:
        return self.growth is not None

    def refusal(self, op: Any, soc: Soc) -> str | None:
        if op.nonfinite and self.backend in CHANGE_NONFINITE:
            return f"{self.backend} changes NaN and infinities, got nonfinite=1"
        return self.refuse(op)

    def plan(self, op: Any, soc: Soc) -> Any:
        return self.describe(op)

    def features(self, op: Any, soc: Soc) -> dict[str, float]:
        if self.op_columns is not None:
            return single(self.feature_columns(self.op_columns.of([op]), soc))
        return {name: float(value) for name, value in self.count(op, soc).items()}

    def feature_columns(self, ops: Any, soc: Soc) -> FeatureColumns:
        """Features by name, each shaped (ops)."""
        return dict(self.count(ops, soc))

    def weight_growth(self, ops: Any) -> Column:
        """As `Variant.transforms_weights` says, shaped (ops)."""
        return np.ones(len(ops)) if self.growth is None else self.growth(ops)


class Kernel:
    """A GPU kernel whose features are counted op by op."""

    op_kind: ClassVar[str]
    #: Its name over floats in the usual storage.
    base_name: ClassVar[str] = "gpu_direct"
    source: ClassVar[str]
    storages: ClassVar[tuple[Storage, ...]] = PLANES
    #: The types of device that it is written for; on others it works, slowly.
    meant_for: ClassVar[frozenset[str]] = ANY_DEVICE
    #: Whether factors of its products come out of local memory.
    through_local: ClassVar[bool] = False
    #: Whether the images of a batch in buffers are computed at once where an op's are apart.
    batches: ClassVar[bool] = False
    #: The types of device on which it had better compute what follows it, too: see `adding`.
    adds_on: ClassVar[frozenset[str]] = frozenset()
    processor: ClassVar[Processor] = "gpu"
    backend: ClassVar[Backend] = "opencl"
    is_plannable: ClassVar[bool] = True
    transforms_weights: ClassVar[bool] = False
    op_columns: ClassVar[type[Columns] | None] = None

    #: Whether its source multiplies halves too where `ARITHMETIC` says so; see `common.cl`.
    multiplies_halves: ClassVar[bool] = False

    def __init__(self, storage: Storage | None = None, arithmetic: Element = "float32") -> None:
        self.storage = self.storages[0] if storage is None else storage
        self.arithmetic = arithmetic
        self.name = f"{self.base_name}{self.storage.suffix}{ARITHMETIC[arithmetic]}"
        self.takes_batch = self.batches and not self.in_images

    @classmethod
    def arithmetics(cls, storage: Storage) -> tuple[Element, ...]:
        """The types that it can multiply tensors in that are stored so."""
        is_half = cls.multiplies_halves and storage.element == "float16"
        return ("float16", "float32") if is_half else ("float32",)

    @property
    def in_images(self) -> bool:
        return self.storage.layout == "image"

    @property
    def among_planar(self) -> str | None:
        """The variant, by name, that is planned in its place among planar tensors, if any is.

        It takes what this one takes, and is not measured by itself.
        """
        return None

    def refusal(self, op: Any, soc: Soc) -> str | None:
        reason = self.refuse(op, soc)
        groups = getattr(op, "groups", 1)
        if op.nonfinite and (self.transforms_weights or 1 < groups < op.inputs[0].c):
            return "tiles of pixels or channels spread NaN and infinities, got nonfinite=1"
        if self.arithmetic == "float16":
            if not soc.gpu.half:
                return f"the device must have halves (cl_khr_fp16), got gpu.half: {soc.gpu.half}"
            reason = reason or self.refuse_halves(op)
        if reason is None and self.in_images:
            return image_refusal(soc, (*op.inputs, op.output))
        return reason

    def refuse(self, op: Any, soc: Soc) -> str | None:
        """Why it cannot take an op, whatever fits in images."""
        return None

    def refuse_halves(self, op: Any) -> str | None:
        """Why it cannot multiply halves of an op that it takes."""
        return None

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        """Every choice of tuning parameters worth trying; the first is what holds untuned."""
        return ({},)

    def block_counts(self, soc: Soc) -> tuple[int, ...]:
        """Numbers of blocks of output channels that a tile may have; none where that is no choice.

        Which of them a device is best with is found by a few ops.
        """
        return ()

    def block_choice(self, op: Any, soc: Soc, blocks: int) -> Choice | None:
        """Of `choices`, the usual one on a device that is best with `blocks` blocks."""
        return None

    def features(self, op: Any, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        """As of any variant. A `Tuning`, which knows the best choice, asks this and `plan`."""
        counts = self.counts(op, soc, self._chosen(op, soc, choice))
        return {name: float(value) for name, value in counts.items()}

    def counts(self, op: Any, soc: Soc, choice: Any) -> Mapping[str, Any]:
        """The features, of an op in a choice."""
        raise NotImplementedError

    def weight_growth(self, ops: Any, choice: ChoiceColumns) -> Column:
        """As `Variant.transforms_weights` says, shaped (ops), in a choice for each."""
        return np.ones(len(ops))

    def plan(self, op: Any, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        return self.build(op, soc, self._chosen(op, soc, choice))

    def build(self, op: Any, soc: Soc, choice: Choice) -> KernelPlan:
        """The plan of an op in a choice, most often by `assemble`."""
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
        scratch: Mapping[str, int | ImageSize] | None = None,
        images: Iterable[str] = (),
        floats: Iterable[TensorArg] = (),
        source: str | None = None,
    ) -> KernelPlan:
        """A plan of launches, in the variant's storage.

        Macros that are False are not defined. `floats` are tensors that are planar floats whatever
        the storage. Constants beside blocks and images are packed to its type of element, but for
        the bias, which costs next to nothing; those beside planar tensors are packed as they are.
        """
        arguments = dict.fromkeys(arg for each in launches for arg in each.args)
        is_planar = self.storage.layout == "planar"
        in_halves = self.storage.element == "float16" and not is_planar
        return KernelPlan(
            source=source or self.source,
            launches=launches,
            defines={
                **base_defines(op.activation, soc, self.storage),
                **defined({**self._arithmetic_macros(soc), **(macros or {})}),
            },
            pack=partial(_halved, pack) if in_halves else pack,
            scratch=scratch or {},
            images=frozenset(images),
            storages={
                arg: PLANAR if arg in floats else self.storage
                for arg in arguments
                if isinstance(arg, TensorArg)
            },
            whole_batch=is_planar or self.takes_batch,
        )

    def _arithmetic_macros(self, soc: Soc) -> dict[str, bool]:
        is_half = self.arithmetic == "float16"
        by_mesa = is_half and self.in_images and soc.gpu.platform == MESA
        return {"HALF_ARITHMETIC": is_half, "RUSTICL": by_mesa}

    def width(self, soc: Soc) -> int:
        """Channels of a block, or of a texel."""
        return TEXEL if self.in_images else soc.gpu.vector_width

    def stored(self, elements: Any) -> Any:
        """Bytes of a number of elements, as they are stored."""
        return float(self.storage.element_bytes) * elements


class ColumnKernel(Kernel):
    """A GPU kernel whose features are counted over columns of many ops.

    `default_columns` gives the choice that holds untuned, `alternatives` the others. `counts` is
    given columns and, for every parameter of a choice, a column.
    """

    op_columns: ClassVar[type[Columns]]

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        """The choice that holds for each op untuned; without any parameters by default."""
        return {}

    def block_columns(self, ops: Any, soc: Soc, blocks: int) -> ChoiceColumns:
        """The same on a device that is best with `blocks` blocks, one of `block_counts`."""
        return self.default_columns(ops, soc)

    def block_choice(self, op: Any, soc: Soc, blocks: int) -> Choice | None:
        return first_choice(self.block_columns(self.op_columns.of([op]), soc, blocks))

    def alternatives(self, op: Any, soc: Soc, first: Choice) -> Iterable[Choice]:
        """Choices worth trying beside the first."""
        return ()

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        first = self._chosen(op, soc, None)
        return unique([first, *self.alternatives(op, soc, first)])

    def _chosen(self, op: Any, soc: Soc, choice: Choice | None) -> Choice:
        if choice is not None:
            return choice
        return first_choice(self.default_columns(self.op_columns.of([op]), soc))

    def features(self, op: Any, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        return single(self.feature_columns(self.op_columns.of([op]), soc, choice))

    def feature_columns(
        self, ops: Any, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        """Features by name, each shaped (ops), in the default choices where none are given."""
        if choice is None:
            choice = self.default_columns(ops, soc)
        return dict(self.counts(ops, soc, _columns(choice, len(ops))))

    def alone(self, op: Any, soc: Soc, choice: Choice) -> tuple[Any, Soc, dict[str, Column]]:
        """An op and its choice as columns of one."""
        return self.op_columns.of([op]), soc, _columns(choice, 1)


def _columns(choice: ChoiceColumns, count: int) -> dict[str, Column]:
    return {
        name: np.broadcast_to(np.asarray(value, np.float64), (count,))
        for name, value in choice.items()
    }


def _halved(
    pack: Callable[[Weights], Mapping[str, ConstantArray]], weights: Weights
) -> Mapping[str, ConstantArray]:
    return {k: v if k == "bias" else v.astype(np.float16) for k, v in pack(weights).items()}


def defined(macros: Mapping[str, int | float | str | bool]) -> dict[str, int | float | str]:
    """Macros without those that are False; what is True is 1."""
    return {
        name: 1 if value is True else value for name, value in macros.items() if value is not False
    }


def of_every_storage(*entries: type[Kernel]) -> list[Kernel]:
    """The variants of entries that come in order of preference, by storages, buffers first.

    Of an entry over halves that which multiplies in them comes before that which does not.
    """
    storages = dict.fromkeys(storage for entry in entries for storage in entry.storages)
    in_order = sorted(storages, key=lambda storage: storage in IMAGES)
    return [
        entry(storage, arithmetic)
        for storage in in_order
        for entry in entries
        if storage in entry.storages
        for arithmetic in entry.arithmetics(storage)
    ]
