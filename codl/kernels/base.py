"""Types of kernel variants: implementations of an op on one processor, described and not run.

A GPU variant turns an op into a `KernelPlan`: a `.cl` file with macros, launches with sizes and
arguments, and constants. `codl.runtime` compiles and runs plans. This module does not import
OpenCL, so plans are made, tested and predicted without a driver.

The `Storage` of a GPU tensor is a memory object with a layout and an element type. Kernels
accumulate in float32 for any element type. Layouts:

- `blocked`: a buffer, `nc{V}hw{V}` with V channels to a block (the SoC's `gpu.vector_width`;
  `nc4hw4` for V = 4). Element (c, y, x) lies at
  `((c // V) * block_stride + offset + y * W + x) * V + c % V` elements from the start.
- `planar`: a buffer, `nchw`. Element (c, y, x) lies at `c * channel_stride + offset + y * W + x`.
- `image`: an `image2d_t` of RGBA texels, `W * ceil(C / 4)` wide and `N * H` high, as in MACE.
  Channels 4 b ... 4 b + 3 of pixel (y, x) are the texel (`column` + b * W + x, `row` + y).

Constants and scratch memory may also be images, in MACE's layouts for filters and Winograd; the
variants document them. A clamping sampler returns zeros outside of an image. A kernel reads or
writes an image, never both.

Offsets and strides are kernel arguments, in pixels or elements, so that a kernel works in place on
rows and blocks of a larger tensor. Channels beyond the last are zeros up to a full block, and
kernels keep them finite. A plan is for one image; a batch runs it per image, at the image's offset,
unless the plan has `whole_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

from codl.ir.columns import Columns
from codl.ir.ops.base import Op, Weights
from codl.ir.records.soc import Soc
from codl.ir.records.tuned import Choice as Choice
from codl.ir.types import BLOCKED, ConstantArray, ImageSize, Processor, Storage


@dataclass(frozen=True)
class TensorArg:
    """A tensor argument of an op's input or output; it expands to three kernel arguments.

    Blocked: `__global ELEMENT *data, int offset, int block_stride`. Planar: `__global ELEMENT
    *data, int offset, int channel_stride`. Image: `image2d_t image, int column, int row`.
    """

    role: Literal["input", "output"]
    index: int = 0


@dataclass(frozen=True)
class ConstantArg:
    """A packed weight, by its name in the result of `KernelPlan.pack`.

    It is a `__global` pointer to the packed type, or an `image2d_t` if in `KernelPlan.images`.
    """

    name: str


#: The only input of an op, and its output.
ENDS = (TensorArg("input"), TensorArg("output"))


@dataclass(frozen=True)
class ScratchArg:
    """Scratch memory by its name in `KernelPlan.scratch`: `__global float *` or `image2d_t`."""

    name: str


@dataclass(frozen=True)
class ApartArg:
    """The distance between images in a buffer, an `int` in pixels; 0 if all share one."""

    tensor: TensorArg


Arg: TypeAlias = TensorArg | ConstantArg | ScratchArg | ApartArg | int | float
#: The first arguments of most kernels with weights.
WEIGHTED: tuple[Arg, ...] = (*ENDS, ConstantArg("weight"), ConstantArg("bias"))


@dataclass(frozen=True)
class KernelLaunch:
    """One enqueued kernel. Python ints become `int` arguments, floats `float` arguments."""

    kernel: str
    global_size: tuple[int, ...]
    args: tuple[Arg, ...]
    local_size: tuple[int, ...] | None = None
    #: The number of its first image, in a plan for a whole batch.
    image: int = 0
    #: Work-items with work in each dimension; () where not given.
    used: tuple[int, ...] = ()

    def of_images(self, count: int, tensors: Iterable[TensorArg]) -> KernelLaunch:
        """The launch for `count` images, which become the third dimension."""
        sizes = (*self.global_size, 1)[:2]
        local = self.local_size and (*(*self.local_size, 1)[:2], 1)
        return replace(
            self,
            global_size=(*sizes, count),
            local_size=local,
            used=(*(*self.used, 1)[:2], count) if self.used else (),
            args=(*self.args, *(ApartArg(tensor) for tensor in tensors)),
        )


def no_constants(weights: Weights) -> Mapping[str, ConstantArray]:
    return {}


@dataclass(frozen=True)
class KernelPlan:
    """The kernels, constants and scratch memory by which a GPU variant computes one op.

    `source` is a `.cl` file as in `codl.kernels.source`, `defines` its macros. `pack` arranges the
    op's weights once, as float32 or float16. `scratch` names buffers by size in bytes, and images
    by image size. `images` names the constants that become images, packed as (rows, columns, 4).
    Programs of equal source and defines are compiled once, so sizes that vary with a split belong
    in `args`. `storages` has the tensors that are not blocked float32. With `whole_batch`, launches
    compute all images.
    """

    source: str
    launches: tuple[KernelLaunch, ...]
    defines: Mapping[str, int | float | str] = field(default_factory=dict)
    pack: Callable[[Weights], Mapping[str, ConstantArray]] = no_constants
    scratch: Mapping[str, int | ImageSize] = field(default_factory=dict)
    images: frozenset[str] = frozenset()
    storages: Mapping[TensorArg, Storage] = field(default_factory=dict)
    whole_batch: bool = False

    def storage(self, tensor: TensorArg) -> Storage:
        return self.storages.get(tensor, BLOCKED)

    def adding(self) -> KernelPlan:
        """The plan with a second input, a residual, added before the activation.

        The input has the output's shape and layout. Sources take it as in `conv2d/added.cl`.
        """
        output, added = TensorArg("output"), TensorArg("input", 1)

        def taking(launch: KernelLaunch) -> KernelLaunch:
            apart = [ApartArg(added)] if ApartArg(output) in launch.args else []
            return replace(launch, args=(*launch.args, added, *apart))

        launches = (taking(x) if output in x.args else x for x in self.launches)
        return replace(
            self,
            launches=tuple(launches),
            defines={**self.defines, "ADDED": 1},
            storages={**self.storages, added: self.storage(output)},
        )


#: The library that runs a variant; a "replayed" variant has only latencies measured elsewhere.
Backend: TypeAlias = Literal["ncnn", "ort", "openvino", "opencl", "replayed"]
#: The CPU's libraries by number; replayed variants count as the first library's.
LIBRARIES: tuple[Backend, ...] = ("ncnn", "ort", "openvino")


class Variant(Protocol):
    """An implementation of one kind of op on one processor.

    Ops are passed as `Any`, and are always of the variant's `op_kind`. GPU variants are
    `codl.kernels.kernel.Kernel`s, CPU variants `codl.kernels.cpu.CpuKernel`s.
    """

    @property
    def op_kind(self) -> str: ...

    @property
    def processor(self) -> Processor: ...

    @property
    def name(self) -> str:
        """Name such as `cpu_gemm`, unique within the op kind."""

    @property
    def backend(self) -> Backend: ...

    @property
    def is_plannable(self) -> bool:
        """False for a variant that is rarely the fastest; it runs only by explicit request."""

    @property
    def takes_batch(self) -> bool:
        """True where one run computes all images of a batch."""

    @property
    def op_columns(self) -> type[Columns] | None:
        """The type of columns that features are computed from; None for features per op."""

    @property
    def transforms_weights(self) -> bool:
        """True where stored weights are transformed, such as to points of Winograd tiles.

        Then `weight_growth` is the ratio of stored to original elements; see `Tuning`.
        """

    def changes_nonfinite(self, op: Any) -> bool:
        """True where NaN or infinities of `op` become finite, or spread to other elements.

        Library functions drop NaN; tiles mix pixels, and channel blocks mix groups.
        """

    def refusal(self, op: Any, soc: Soc) -> str | None:
        """The reason why this variant cannot compute `op`, as rule and value; None if it can."""

    def features(self, op: Any, soc: Soc) -> dict[str, float]:
        """Analytic features of `op` for predictors (the paper's section 5.2).

        They count blocks, waves, padded multiply-adds and bytes after tiling and padding. Names are
        equal for all ops. Training and planning both call this.
        """


def work(op: Op) -> dict[str, float]:
    """Operations of an op, and the float32 bytes of its read inputs, its weights and its output."""
    inputs = 4.0 * op.read_elements
    return {
        "flops": float(op.flops),
        "input_bytes": inputs,
        "weight_bytes": float(op.bytes - op.output.bytes) - inputs,
        "output_bytes": float(op.output.bytes),
    }
