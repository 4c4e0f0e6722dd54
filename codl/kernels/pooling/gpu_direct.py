"""Max, average and global pooling on the GPU: a block of channels wide, a row's piece at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from codl.kernels.base import BLOCKED, Choice, KernelPlan, Launch, Processor, Storage, TensorArg
from codl.kernels.tiling import base_defines, ceil_div, item_grid, round_up, strip, waves
from codl.ops.pool2d import Pool2d
from codl.soc import Soc

#: Input columns that are collected at once at most, by vector width: as many as registers hold.
MOST_COLUMNS = {16: 24, 8: 12, 4: 16}
#: Input vectors that one work-item of a CPU takes at most: a few us.
LONGEST_STRIP = 4096
#: Pixels of a row that are taken at once, at most.
LONGEST_ROW = 16
#: The choice of a GPU for windows that are too wide.
ALONE: tuple[Choice, ...] = ({"pixels": 0, "strip": 1},)


@dataclass(frozen=True)
class _Tiling:
    """How one pooling is cut; `pixels` is 0 where its window is too wide to be unrolled."""

    pixels: int
    tiles: int
    strip: int
    steps: int
    blocks: int

    @classmethod
    def of(cls, op: Pool2d, soc: Soc, choice: Choice) -> _Tiling:
        pixels, blocks = choice["pixels"], soc.gpu.blocks(op.input.c)
        # Vectors that a tile reads, each from its own column and row of the window.
        steps = op.kernel.h * (_span(op, pixels) if pixels else op.kernel.w)
        tiles = op.output.h * ceil_div(op.output.w, max(1, pixels))
        most = max(1, choice["strip"] // steps)
        return cls(pixels, tiles, strip(tiles, blocks, most, soc), steps, blocks)

    @property
    def items(self) -> int:
        return ceil_div(self.tiles, self.strip) * self.blocks


class GpuDirect:
    """Any window, stride, padding and dilation."""

    op_kind: ClassVar[str] = "pooling"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})

    def __init__(self, storage: Storage = BLOCKED) -> None:
        self.storage = storage
        self.name = f"gpu_direct{storage.suffix}"

    def refusal(self, op: Pool2d, soc: Soc) -> str | None:
        return None

    def choices(self, op: Pool2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a row at a time (0: one window at a time), and vectors of a strip."""
        most = MOST_COLUMNS[soc.gpu.vector_width]
        fitting = [p for p in range(1, LONGEST_ROW + 1) if _span(op, p) <= most]
        fitting.sort(key=lambda p: (ceil_div(op.output.w, p) * p, -p))  # least waste, then largest
        if not soc.gpu.is_cpu:
            return tuple({"pixels": p, "strip": 1} for p in (4, 2, 1) if p in fitting) or ALONE
        strips = (LONGEST_STRIP, LONGEST_STRIP // 4)
        return tuple({"pixels": p, "strip": s} for p in (*fitting[:4], 0) for s in strips)

    def features(self, op: Pool2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        tiling = _Tiling.of(op, soc, choice or self.choices(op, soc)[0])
        width, pixels = soc.gpu.vector_width, op.output.h * op.output.w
        window = op.kernel.h * op.kernel.w
        steps = float(tiling.tiles * tiling.blocks * tiling.steps)
        size = float(self.storage.element_bytes)
        return {
            "window_steps": float(pixels * tiling.blocks * window),
            "column_steps": steps if tiling.pixels else 0.0,
            "looped_steps": 0.0 if tiling.pixels else steps,
            "output_blocks": float(pixels * tiling.blocks),
            "tiles": float(tiling.tiles * tiling.blocks),
            "work_items": float(tiling.items),
            "waves": waves(tiling.items, soc),
            "flops": float(op.flops),
            "input_bytes": size * round_up(op.input.c, width) * op.input.h * op.input.w,
            "output_bytes": size * round_up(op.input.c, width) * pixels,
        }

    def plan(self, op: Pool2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        tiling = _Tiling.of(op, soc, choice or self.choices(op, soc)[0])
        strips = ceil_div(tiling.tiles, tiling.strip)
        global_size, local_size = item_grid(strips, tiling.blocks, soc)
        tensors = (TensorArg("input"), TensorArg("output"))
        launch = Launch(
            kernel="pool2d_rows" if tiling.pixels else "pool2d_window",
            global_size=global_size,
            local_size=local_size,
            args=(*tensors, *(_row_sizes if tiling.pixels else _window_sizes)(op, tiling)),
        )
        return KernelPlan(
            source="pooling/gpu_direct.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **_mode(op),
                **_unrolled(op, tiling),
            },
        ).stored_as(self.storage)


def _span(op: Pool2d, pixels: int) -> int:
    """Input columns under so many pixels of a row."""
    return (pixels - 1) * op.stride.w + (op.kernel.w - 1) * op.dilation.w + 1


def _row_sizes(op: Pool2d, tiling: _Tiling) -> tuple[int, ...]:
    """The arguments of `pool2d_rows`."""
    sizes = (tiling.strip, tiling.tiles, op.input.h, op.input.w, op.output.w)
    return (*sizes, op.stride.h, op.pad.top, op.pad.left)


def _window_sizes(op: Pool2d, tiling: _Tiling) -> tuple[int, ...]:
    """The arguments of `pool2d_window`."""
    sizes = (tiling.strip, op.input.h, op.input.w, op.output.w, tiling.tiles)
    return (*sizes, *op.kernel, *op.stride, op.pad.top, op.pad.left, *op.dilation)


def _mode(op: Pool2d) -> dict[str, int]:
    if op.mode == "max":
        return {"MODE_MAX": 1}
    return {"COUNT_PAD": 1} if op.count_pad else {}


def _unrolled(op: Pool2d, tiling: _Tiling) -> dict[str, int]:
    if not tiling.pixels:
        return {}
    (height, width), (down, right) = op.kernel, op.dilation
    window = {"KERNEL_H": height, "KERNEL_W": width, "STRIDE_W": op.stride.w}
    return {"PIXELS": tiling.pixels, **window, "DILATION_H": down, "DILATION_W": right}
