"""Kernels that were measured elsewhere: known by their latencies, and not there to run.

A SoC of other people's measurements (`source: replayed`) has one variant for each processor and
kind of op: predictions include the library's choice among its kernels.
Latencies of other numbers of CPU threads than the SoC's have variants of their own, which are
trained on but never planned with. The original CoDL is made of MACE's kernels, which are in its
program `codl_op_run`: they are known by name, and have a variant each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NoReturn

from codl.errors import UnsupportedError
from codl.ir.columns import ceil_div, round_up
from codl.ir.ops.base import Op
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.window import Pool2d
from codl.ir.records.soc import Soc
from codl.ir.types import BLOCKED, PROCESSORS, Processor, Storage
from codl.kernels.base import Backend, Choice, work

#: Numbers of CPU threads that a table may have columns for, beside the SoC's own.
THREADS = (1, 2, 3, 4, 6, 8)
#: Memory of the GPU's tensors by the kernel's name.
MACE_MEMORY: Mapping[str, str] = {"mace_image": "image", "mace_buffer": "buffer"}
MACE_KERNELS: Mapping[tuple[str, Processor], tuple[str, ...]] = {
    (Conv2d.kind, "cpu"): ("mace_direct", "mace_gemm", "mace_winograd"),
    (Pool2d.kind, "cpu"): ("mace_direct",),
    ("fc", "cpu"): ("mace_gemv",),
    **{(kind, "gpu"): tuple(MACE_MEMORY) for kind in (Conv2d.kind, Pool2d.kind, "fc")},
}
#: Channels that Winograd needs at least, of the input and of the output.
WINOGRAD_CHANNELS = 8

#: Channels that phones' libraries keep together, on the CPU's vectors and in the GPU's texels.
BLOCK = 4
#: Output pixels and blocks of output channels that libraries' tiles usually hold.
TILE_PIXELS, CPU_TILE_PIXELS = 4, 16
#: Sizes of the output tiles that Winograd is done with.
WINOGRAD_TILES = (2, 4, 6)
#: TFLite on an Adreno keeps weights in constant memory up to this many bytes and output channels.
CONSTANT_BYTES, CONSTANT_CHANNELS = 3584, 32


def mace_cpu_kernel(op: Op) -> str:
    """The kernel that computes an op of one of these kinds on the CPU."""
    if op.kind == "fc":
        return "mace_gemv"
    if isinstance(op, Conv2d) and op.stride == (1, 1):
        if op.kernel == (1, 1):
            return "mace_gemm"
        if op.kernel == (3, 3) and min(op.input.c, op.out_channels) >= WINOGRAD_CHANNELS:
            return "mace_winograd"
    return "mace_direct"


def mace_refusal(op: Op, processor: Processor, kernel: str) -> str | None:
    """Why a kernel does not compute an op; None where it does."""
    if op.inputs[0].n != 1:
        return "codl_op_run has one image at a time"
    if isinstance(op, Conv2d) and op.groups != 1:
        return "codl_op_run has no convolution with groups"
    if isinstance(op, Conv2d | Pool2d) and op.dilation != (1, 1):
        return "codl_op_run has no dilation"
    if processor == "cpu" and kernel != mace_cpu_kernel(op):
        return f"codl_op_run computes it by {mace_cpu_kernel(op)}"
    return None


@dataclass(frozen=True)
class Replayed:
    """The kernels of another library for one kind of op on one processor.

    `threads` is the number of CPU threads, None for all that the SoC's CPU side has. `kernel` is
    one of `MACE_KERNELS`, or "" for whatever a library has.
    """

    op_kind: str
    processor: Processor
    threads: int | None = None
    kernel: str = ""
    storage: ClassVar[Storage] = BLOCKED
    meant_for: ClassVar[frozenset[str]] = frozenset()
    adds_on: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})
    planar_fallback: ClassVar[None] = None
    backend: ClassVar[Backend] = "replayed"
    op_columns: ClassVar[None] = None
    transforms_weights: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Such as `gpu_replayed`, `cpu_replayed_threads1`, or `cpu_mace_gemm`."""
        if self.kernel:
            return f"{self.processor}_{self.kernel}"
        return f"{self.processor}_replayed" + (f"_threads{self.threads}" if self.threads else "")

    @property
    def is_plannable(self) -> bool:
        return self.threads is None

    @property
    def takes_batch(self) -> bool:
        return self.processor == "cpu"

    def changes_nonfinite(self, op: Any) -> bool:
        return False

    def refusal(self, op: Any, soc: Soc) -> str | None:
        if soc.is_replayed:
            return mace_refusal(op, self.processor, self.kernel) if self.kernel else None
        return f"its latencies are replayed, and the SoC {soc.name!r} is {soc.source}"

    def features(self, op: Any, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        """What any op moves and computes, whatever the kernel."""
        return work(op)

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def plan(self, op: Any, soc: Soc, choice: Choice | None = None) -> NoReturn:
        raise UnsupportedError(
            f"{self.op_kind}_{self.name} cannot run: codl has its latencies, replayed from "
            "measurements of others, and not its kernels."
        )


@dataclass(frozen=True)
class ReplayedConv2d(Replayed):
    """Direct, as a matrix product or Winograd: whichever the library chose."""

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        """What any library's kernel pays for, by class of algorithm; which one ran is not known.

        Multiply-adds padded to blocks of channels and tiles, Winograd's tiles and transforms, bytes
        of padded tensors, the lengths of loops, and the window itself, which tells classes apart.
        """
        window = op.kernel.h * op.kernel.w
        channels, out_channels = round_up(op.input.c, BLOCK), round_up(op.out_channels, BLOCK)
        pixels = op.output.n * op.output.h * op.output.w
        per_group = 1 if op.is_depthwise else round_up(op.input.c // op.groups, BLOCK)
        loop = per_group * window
        macs = pixels * out_channels * loop
        if self.processor == "cpu":
            tiles = _cpu_tiles(pixels, out_channels, loop, self.threads or soc.cpu.threads)
        else:
            tiles = _gpu_tiles(op, out_channels, loop, macs)
        values = {
            "padded_macs": macs,
            **_by_class(op, macs),
            **_winograd(op, channels, out_channels),
            **tiles,
            "input_bytes": 4 * op.input.n * op.input.h * op.input.w * channels,
            "output_bytes": 4 * pixels * out_channels,
            "weight_bytes": 4 * out_channels * loop,
            "loop_length": loop,
            "window_copies": pixels * loop if window > 1 else 0,
            "pixels": pixels,
            "in_channels": channels,
            "out_channels": out_channels,
            "unpadded_in_channels": op.input.c,
            "unpadded_out_channels": op.out_channels,
            "window_height": op.kernel.h,
            "window_width": op.kernel.w,
            "stride": op.stride.h,
        }
        return {name: float(value) for name, value in values.items()}


def _cpu_tiles(pixels: int, out_channels: int, loop: int, threads: int) -> dict[str, float]:
    """Steps of the threads if channels, or tiles of pixels, are dealt out to them."""
    blocks = round_up(out_channels // BLOCK, threads) / threads
    tiles = round_up(ceil_div(pixels, CPU_TILE_PIXELS), threads) / threads
    return {"block_waves": blocks * pixels * loop, "pixel_waves": tiles * out_channels * loop}


def _gpu_tiles(op: Conv2d, out_channels: int, loop: int, macs: int) -> dict[str, float]:
    rows = round_up(op.output.w, TILE_PIXELS) * op.output.h * op.output.n
    items = rows // TILE_PIXELS * out_channels // BLOCK
    constant = (
        op.groups == 1
        and 2 * out_channels * op.input.c * op.kernel.h * op.kernel.w <= CONSTANT_BYTES
        and op.out_channels <= CONSTANT_CHANNELS
    )
    return {
        "work_items": items,
        "item_steps": items * loop,
        "padded_rows": rows,
        "constant_macs": macs * constant,
    }


def _suits_winograd(op: Conv2d) -> bool:
    return op.groups == 1 and op.kernel == (3, 3) and op.stride == (1, 1)


def _by_class(op: Conv2d, macs: int) -> dict[str, float]:
    """All multiply-adds under the class of algorithms that the op allows, 0 elsewhere."""
    every_pixel = op.stride == (1, 1)
    classes = {
        "depthwise_macs": op.is_depthwise,
        "grouped_macs": op.groups > 1,
        "pointwise_macs": op.kernel == (1, 1) and every_pixel,
        "winograd_macs": _suits_winograd(op),
        "line_macs": op.kernel != (1, 1) and 1 in op.kernel and every_pixel,
        "other_macs": True,
    }
    first = next(name for name, applies in classes.items() if applies)
    return {name: macs if name == first else 0 for name in classes}


def _winograd(op: Conv2d, channels: int, out_channels: int) -> dict[str, float]:
    """Products and transforms for every size of tile, and the transformed weights."""
    suits, features = _suits_winograd(op), {}
    for size in WINOGRAD_TILES:
        tiles = ceil_div(op.output.h, size) * ceil_div(op.output.w, size) * op.output.n
        points = tiles * (size + 2) ** 2 * suits
        features[f"macs_f{size}"] = points * channels * out_channels
        features[f"input_transforms_f{size}"] = points * channels
        features[f"output_transforms_f{size}"] = points * out_channels
    return {**features, "weights_transformed": channels * out_channels * suits}


@cache
def replayed_variants(op_kind: str) -> tuple[Replayed, ...]:
    """The variants of one kind of op: of either processor, of numbers of threads, and by name."""
    cls = ReplayedConv2d if op_kind == Conv2d.kind else Replayed
    more = (cls(op_kind, "cpu", threads) for threads in THREADS)
    named = (
        cls(op_kind, processor, kernel=kernel)
        for processor in PROCESSORS
        for kernel in MACE_KERNELS.get((op_kind, processor), ())
    )
    return (cls(op_kind, "cpu"), cls(op_kind, "gpu"), *more, *named)
