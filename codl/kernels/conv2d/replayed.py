"""Features of the convolutions of MACE and TFLite, for datasets that were measured elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from codl.ir.ops.convolution import Conv2d
from codl.kernels.base import Choice
from codl.kernels.replayed import Replayed
from codl.kernels.tiling import ceil_div, round_up
from codl.records.soc import Soc

#: Channels that phones' libraries keep together, on the CPU's vectors and in the GPU's texels.
BLOCK = 4
#: Output pixels and blocks of output channels that libraries' tiles usually hold.
TILE_PIXELS, CPU_TILE_PIXELS = 4, 16
#: Sizes of the output tiles that Winograd is done with.
WINOGRAD_TILES = (2, 4, 6)
#: TFLite on an Adreno keeps weights in constant memory up to this many bytes and output channels.
CONSTANT_BYTES, CONSTANT_CHANNELS = 3584, 32


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
