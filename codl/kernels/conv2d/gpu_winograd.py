"""Winograd convolution on the GPU: products at points of tiles, fewer than taps of windows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir import columns
from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import (
    Conv2d,
    ConvColumns,
)
from codl.kernels import feature_columns as caches
from codl.kernels import registers
from codl.kernels.base import (
    WEIGHTED,
    Choice,
    ConstantArg,
    KernelLaunch,
    KernelPlan,
    ScratchArg,
    TensorArg,
)
from codl.kernels.conv2d import winograd_cuts
from codl.kernels.conv2d.gpu_direct import byte_columns, pack_bias
from codl.kernels.conv2d.winograd_cuts import SIDES, WinogradCut, WinogradTiling
from codl.kernels.feature_columns import (
    ChoiceColumns,
    unique,
)
from codl.kernels.tiling import base_defines, ceil_div, item_grid
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

#: Where the transforms of stride 1 interpolate, infinity aside: the first SIDE - 1.
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
#: Those at which a filter is far smaller than at others, where there are eight.
SMALL_POINTS = slice(3, 5)


class GpuWinograd(ForStorage, ByChoiceColumns):
    """Square windows, such as 3x3 with 16, 36 or 64 products for 4, 16 or 36 outputs."""

    op_kind: ClassVar[str] = "conv2d"
    base_name: ClassVar[str] = "gpu_winograd"
    #: There it reads a residual tile by tile, which takes longer than the add saves.
    adds_slowly_on: ClassVar[frozenset[str]] = frozenset({"cpu"})
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if _window(op) not in SIDES or op.dilation != (1, 1) or op.groups != 1:
            return (
                "Winograd needs kernel=3x3 with stride=1 or 2, or kernel=5x5 or 7x7 with stride=1, "
                "and dilation=1 groups=1, got "
                f"kernel={op.kernel} stride={op.stride} dilation={op.dilation} groups={op.groups}"
            )
        return None

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """The tile's size, the tiles multiplied together by how many blocks of output channels,
        and the most tiles of a block.
        """
        likely = winograd_cuts.choices(ConvColumns.of([op]), soc)
        usual = (self.block_choice(op, soc, count) for count in self.block_counts(soc))
        return unique([*likely, *usual])

    def block_counts(self, soc: Soc) -> tuple[int, ...]:
        return registers.block_counts(soc.gpu)

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        return winograd_cuts.default_choice(ops, soc)

    def block_columns(self, ops: ConvColumns, soc: Soc, blocks: int) -> ChoiceColumns:
        return winograd_cuts.default_choice(ops, soc, blocks)

    def feature_columns(
        self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        t = WinogradTiling.of(ops, soc, choice or self.default_columns(ops, soc))
        width, cache = soc.gpu.vector_width, caches.gpu_cache_bytes(soc)
        out_channels = t.padded_blocks * width
        odd = columns.rest(t.side, 2) > 0  # those of stride 2, with transforms of their own
        effort = np.where(t.side < 6, 0.6, np.where(t.side < 8, 0.8, 1.0)) * t.points * t.tiles
        into, out_of = effort * t.in_blocks * t.parts, effort * t.out_blocks
        weights = self.storage.element_bytes * t.weight_points * ops.ic * out_channels
        scratch = 4.0 * (t.points_floats(width) + t.sums_floats(width))
        passes = columns.ceil_div(t.computed, t.together)
        moved = byte_columns(ops, soc, self.storage)
        moved_bytes = moved["input_bytes"] + moved["output_bytes"] + weights
        far = caches.THIRD_LEVEL * cache
        return {
            "padded_macs": t.points * t.computed * ops.ic * out_channels,
            "input_transforms": into * ~odd,
            "output_transforms": out_of * ~odd,
            "strided_input_transforms": into * odd,
            "strided_output_transforms": out_of * odd,
            "weight_passes": t.points * t.padded_blocks * ops.ic * passes,
            "weights_streamed": caches.beyond(weights, cache) * t.blocks,
            "weights_far": caches.beyond(weights, far),
            "scratch_beyond": caches.beyond(scratch, cache) / t.most * t.computed,
            "block_tiles": t.most,
            "waves": columns.ceil_div(t.blocks, t.workers),
            "output_bytes": moved["output_bytes"],
            "output_far": caches.beyond(moved["output_bytes"], far),
            **caches.by_level("moved", moved_bytes, cache),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        ops, width = ConvColumns.of([op]), soc.gpu.vector_width
        tiling = WinogradTiling.of(ops, soc, choice or self.default_columns(ops, soc)).first(width)
        points, sums = 4 * tiling.points_floats, 4 * tiling.sums_floats
        if soc.gpu.is_cpu:
            launches: tuple[KernelLaunch, ...] = (_fused(op, tiling),)
            scratch = {"tiles": (points + sums) * tiling.parts * tiling.workers}
        else:
            launches = _steps(op, tiling, soc)
            scratch = {"points": points, "sums": sums * tiling.out_blocks}
        return KernelPlan(
            source="conv2d/gpu_winograd.cl",
            launches=launches,
            defines={
                **base_defines(op.activation, soc, self.storage),
                "SIDE": tiling.side,
                "TILE": tiling.tile,
                "STRIDE": op.stride.w,
                "TOGETHER": tiling.together,
                "OUTS": tiling.outs,
            },
            pack=lambda weights: {
                "weight": _transform(weights["weight"], width, tiling),
                "bias": pack_bias(weights["bias"], width),
            },
            scratch=scratch,
        ).stored_as(self.storage)


def _window(op: Conv2d) -> tuple[int, int]:
    """Size and stride of a window that is square; (0, 0) otherwise."""
    square = op.kernel.h == op.kernel.w and op.stride.h == op.stride.w
    return (op.kernel.w, op.stride.w) if square else (0, 0)


def _fused(op: Conv2d, t: WinogradCut) -> KernelLaunch:
    """One persistent work-item for every worker and part of the output channels."""
    sizes = (
        t.points_floats + t.sums_floats,
        t.most,
        t.tiles,
        t.tiles_w,
        op.input.c,
        t.in_blocks,
        op.input.h,
        op.input.w,
        t.out_blocks,
        op.output.h,
        op.output.w,
        op.pad.top,
        op.pad.left,
    )
    return KernelLaunch(
        kernel="conv2d_winograd",
        global_size=(t.parts, t.workers),
        local_size=(1, 1),
        args=(*WEIGHTED, ScratchArg("tiles"), *sizes),
    )


def _steps(op: Conv2d, t: WinogradCut, soc: Soc) -> tuple[KernelLaunch, ...]:
    """Input transform, products and output transform as kernels of their own."""
    points, sums, counts = ScratchArg("points"), ScratchArg("sums"), (t.most, t.tiles, t.tiles_w)
    window = (op.input.h, op.input.w, op.pad.top, op.pad.left)
    for_input, local_size = item_grid(t.tiles, t.in_blocks, soc)
    for_output, _ = item_grid(t.tiles, t.out_blocks, soc)
    for_product, _ = item_grid(t.most // t.together, t.out_blocks, soc)
    return (
        KernelLaunch(
            kernel="winograd_input",
            global_size=for_input,
            local_size=local_size,
            args=(TensorArg("input"), points, *counts, t.in_blocks, *window),
        ),
        KernelLaunch(
            kernel="winograd_product",
            global_size=(*for_product, t.points),
            local_size=(*local_size, 1),
            args=(
                points,
                sums,
                ConstantArg("weight"),
                t.most,
                op.input.c,
                t.in_blocks,
                t.out_blocks,
            ),
        ),
        KernelLaunch(
            kernel="winograd_output",
            global_size=for_output,
            local_size=local_size,
            args=(sums, TensorArg("output"), ConstantArg("bias"), *counts, *op.out_hw),
        ),
    )


def filter_transform(side: int, window: int) -> NDArray[np.float64]:
    """From the taps of a window to the points of the filter, in one dimension; see `TO_POINTS`."""
    if side == 5:
        return np.array([[1, 0, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0]], np.float64)
    if side == 9:
        taps = [[1, 0, 0], [1, 0, 1], [1, 0, -1], [1, 0, 2], [0, 0, 1], [0, 1, 0]]
        return np.array(taps, np.float64) / [[2], [-2], [-6], [6], [1], [1]]
    points = np.array(POINTS[: side - 1])
    # What the other points' polynomial is at each; the input's transform has the sign at 0.
    scale = np.array([np.prod(p - points[points != p]) for p in points])
    scale[0] = abs(scale[0])
    rows = points[:, None] ** np.arange(window) / scale[:, None]
    return np.vstack([rows, np.eye(window)[-1]])


def _transform(weight: Array, width: int, t: WinogradCut) -> Array:
    """(oc, ic, k, k) -> [oc blocks / outs][point][ic][outs][lane of oc], flat.

    A block at a time, so that the float64 copy stays small. With eight points a side it is enlarged
    where it is smallest, which `SMALL` of the source takes back: there small weights would be too
    small for halves.
    """
    transform = filter_transform(t.side, weight.shape[3])
    if t.side == 8:
        transform[SMALL_POINTS] *= 2.0 ** (t.tile - 2)
    both, channels = np.kron(transform, transform), weight.shape[1]
    groups = ceil_div(t.out_blocks, t.outs)
    packed = np.zeros((groups, both.shape[0], channels, t.outs, width), np.float32)
    for block in range(t.out_blocks):
        rows = weight[block * width : (block + 1) * width].astype(np.float64)
        points = rows.reshape(rows.shape[0] * channels, -1) @ both.T
        points = points.reshape(rows.shape[0], channels, -1).transpose(2, 1, 0)
        packed[block // t.outs, :, :, block % t.outs, : rows.shape[0]] = points
    return packed.reshape(-1)
