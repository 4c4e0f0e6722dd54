"""What a kernel variant is: one implementation of an op on one processor, described, not run.

A GPU variant turns an op into a `KernelPlan`: which `.cl` file, compiled with which macros,
launched with which sizes and arguments, over which constants. `codl.runtime` compiles and runs
plans; nothing here imports OpenCL, so plans can be made, tested and predicted without a driver.

How a tensor lies on the GPU is its `Storage`: a memory object with a layout, and the type of its
elements. Whatever that type, kernels compute and accumulate in float32. The layouts:

- `blocked`: a buffer, `nc{V}hw{V}` with V channels to a block (the SoC's `gpu.vector_width`;
  `nc4hw4` for V = 4). Element (c, y, x) lies at
  `((c // V) * block_stride + offset + y * W + x) * V + c % V` elements from the start.
- `planar`: a buffer, `nchw`. Element (c, y, x) lies at `c * channel_stride + offset + y * W + x`.
- `image`: an `image2d_t` of RGBA texels, `W * ceil(C / 4)` wide and `N * H` high, as MACE has it.
  Channels 4 b ... 4 b + 3 of pixel (y, x) are the texel (`column` + b * W + x, `row` + y).

Constants and scratch memory may be images too, in the layouts that MACE has for filters and for
Winograd; the variants that use them say which texel is where. Reading outside an image through a
clamping sampler gives zeros. A kernel either reads an image or writes it, never both.

Offsets and strides come as kernel arguments, in pixels or elements, so a kernel works in place on
any rows and any blocks of a larger tensor. Channels beyond the last are stored as zeros up to a
full block, and kernels keep them finite. A plan is made for one image; a batch runs it once for
each, at that image's offset, unless the plan says `whole_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

from codl.ir.columns import Columns
from codl.ir.ops.base import Op, Weights
from codl.ir.types import BLOCKED, ConstantArray, ImageSize, Processor, Storage
from codl.records.soc import Soc
from codl.records.tuned import Choice as Choice


@dataclass(frozen=True)
class TensorArg:
    """An op's input or output; expands to three kernel arguments.

    Of a blocked tensor `__global ELEMENT *data, int offset, int block_stride`; of a planar one
    `__global ELEMENT *data, int offset, int channel_stride`; of an image `image2d_t image,
    int column, int row` (see the module's layouts).
    """

    role: Literal["input", "output"]
    index: int = 0


@dataclass(frozen=True)
class ConstantArg:
    """A packed weight by its name in the result of `KernelPlan.pack`.

    `__global const float *` or `half *`, as it is packed; `image2d_t` where the plan says so.
    """

    name: str


#: An op's only input, and its output.
ENDS = (TensorArg("input"), TensorArg("output"))


@dataclass(frozen=True)
class ScratchArg:
    """Scratch memory by its name in `KernelPlan.scratch`: `__global float *` or `image2d_t`."""

    name: str


@dataclass(frozen=True)
class ApartArg:
    """How far apart the images of an input or output in a buffer lie: `int`, in pixels.

    0 of one that is read again for every image of the others.
    """

    tensor: TensorArg


Arg: TypeAlias = TensorArg | ConstantArg | ScratchArg | ApartArg | int | float
#: What most kernels of ops with weights begin with.
WEIGHTED: tuple[Arg, ...] = (*ENDS, ConstantArg("weight"), ConstantArg("bias"))


@dataclass(frozen=True)
class KernelLaunch:
    """One enqueued kernel. Ints become `int` arguments, floats `float` ones."""

    kernel: str
    global_size: tuple[int, ...]
    args: tuple[Arg, ...]
    local_size: tuple[int, ...] | None = None
    #: The first image that it computes, of a plan for a whole batch.
    image: int = 0
    #: The kernel's parameters that numbers are for, as far as they are told; "" of other arguments.
    names: tuple[str, ...] = ()
    #: How many of the work-items in each dimension have work; () where that is not told.
    used: tuple[int, ...] = ()

    def of_images(self, count: int, tensors: Iterable[TensorArg]) -> KernelLaunch:
        """The same for `count` images: the third dimension, and how far apart they lie."""
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
    """How a GPU variant computes one op.

    `source` is a `.cl` file as `codl.kernels.source` names it; `defines` its macros; `pack`
    arranges the op's weights once, at compile time (float32 or float16); `scratch` names buffers by
    size in bytes, and images by their size. `images` are the constants that become images:
    packed as (rows, columns, 4). Equal source and defines are compiled once, so sizes that vary
    with a split belong in `args`, not in `defines`. `storages` says how tensors lie that are not
    blocked float32; `whole_batch` that the launches compute all images and not only one.
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

    def wide(self) -> KernelPlan:
        """The same plan for tensors of so many elements that 32 bits do not count them."""
        return replace(self, defines={**self.defines, "WIDE": 1})

    def adding(self, mode: str = "add") -> KernelPlan:
        """The same plan with a second input, such as a residual, added before the activation.

        Or, by the mode `mul`, multiplied by behind it. It lies as the output does, and has its
        shape. Sources take it as `conv2d/added.cl` and `matmul/gpu_rows.cl` say.
        """
        output, added = TensorArg("output"), TensorArg("input", 1)

        def taking(launch: KernelLaunch) -> KernelLaunch:
            apart = [ApartArg(added)] if ApartArg(output) in launch.args else []
            return replace(launch, args=(*launch.args, added, *apart))

        launches = (taking(x) if output in x.args else x for x in self.launches)
        return replace(
            self,
            launches=tuple(launches),
            defines={**self.defines, "ADDED": 1, **({} if mode == "add" else {"MULTIPLIED": 1})},
            storages={**self.storages, added: self.storage(output)},
        )


#: What runs a variant: ncnn, ONNX Runtime, OpenVINO, our own OpenCL kernels; or nothing, for
#: latencies that were measured elsewhere.
Backend: TypeAlias = Literal["ncnn", "ort", "openvino", "opencl", "replayed"]
#: The CPU's libraries, by number; what was measured elsewhere counts as the first one's.
LIBRARIES: tuple[Backend, ...] = ("ncnn", "ort", "openvino")


class Variant(Protocol):
    """One implementation of one kind of op on one processor.

    Ops are passed as `Any`: a variant is only ever given ops of its `op_kind`. Those of the GPU are
    `codl.kernels.kernel.Kernel`s; those of the CPU `CpuKernel`s.
    """

    @property
    def op_kind(self) -> str: ...

    @property
    def processor(self) -> Processor: ...

    @property
    def name(self) -> str:
        """Such as `cpu_gemm`; unique among the variants of an op kind."""
        ...

    @property
    def backend(self) -> Backend: ...

    @property
    def is_plannable(self) -> bool:
        """Whether it may be planned; one that is hardly ever the best runs only when asked for."""
        ...

    @property
    def takes_batch(self) -> bool:
        """Whether all images of a batch are computed at once, and not one after the other."""
        ...

    @property
    def op_columns(self) -> type[Columns] | None:
        """What its features are computed over; None where they are computed op by op."""
        ...

    @property
    def transforms_weights(self) -> bool:
        """Whether its weights lie in memory as something else, such as points of Winograd's tiles.

        Then `weight_growth` says how many times as many numbers those are; see `Tuning`.
        """
        ...

    def refusal(self, op: Any, soc: Soc) -> str | None:
        """Why this variant cannot do `op` (the rule and the value), or None where it can."""
        ...

    def features(self, op: Any, soc: Soc) -> dict[str, float]:
        """What `op` costs in this variant, extracted analytically (the paper's section 5.2).

        Counted after tiling and padding: blocks, waves, padded multiply-adds, bytes. The same names
        for every op; training and planning both call this.
        """
        ...


def work(op: Op) -> dict[str, float]:
    """Operations, and the bytes of what is read of inputs, of weights and output as float32."""
    inputs = 4.0 * op.read_elements
    return {
        "flops": float(op.flops),
        "input_bytes": inputs,
        "weight_bytes": float(op.bytes - op.output.bytes) - inputs,
        "output_bytes": float(op.output.bytes),
    }
