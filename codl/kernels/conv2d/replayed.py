"""Convolutions of other libraries: what is known of them without their kernels."""

from __future__ import annotations

from dataclasses import dataclass

from codl.ir.ops.convolution import Conv2d
from codl.kernels.base import Choice
from codl.kernels.replayed import Replayed
from codl.records.soc import Soc

#: Channels that phones' libraries keep together, on the CPU's vectors and in the GPU's texels.
BLOCK = 4


#: Output pixels and blocks of output channels that libraries' tiles usually hold.
TILE_PIXELS, CPU_TILE_PIXELS = 4, 16
#: Sizes of the output tiles that Winograd is done with.
WINOGRAD_TILES = (2, 4, 6)
#: TFLite on an Adreno keeps weights in constant memory up to this many bytes and output channels.
CONSTANT_BYTES, CONSTANT_CHANNELS = 3584, 32


def _up(value: float, to: int) -> float:
    return float(-(-value // to) * to)


@dataclass(frozen=True)
class ReplayedConv2d(Replayed):
    """Direct, as a matrix product or Winograd: whichever the library chose."""

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        """What any library's kernel pays for, by class of algorithm; which one ran is not known.

        Multiply-adds padded to blocks of channels and tiles, Winograd's tiles and transforms, bytes
        of padded tensors, the lengths of loops, and the window itself, which tells classes apart.
        """
        work = _ConvWork.of(op)
        return {
            "padded_macs": work.macs,
            **work.by_class(),
            **work.winograd(),
            **(self._tiles_gpu(work) if self.processor == "gpu" else self._tiles_cpu(work, soc)),
            "input_bytes": 4.0 * op.input.n * op.input.h * op.input.w * work.in_channels,
            "output_bytes": 4 * work.pixels * work.out_channels,
            "weight_bytes": 4 * work.out_channels * work.loop,
            "loop_length": work.loop,
            "window_copies": work.pixels * work.loop if work.window > 1 else 0.0,
            "pixels": work.pixels,
            "in_channels": work.in_channels,
            "out_channels": work.out_channels,
            "unpadded_in_channels": float(op.input.c),
            "unpadded_out_channels": float(op.out_channels),
            "window_height": float(op.kernel.h),
            "window_width": float(op.kernel.w),
            "stride": float(op.stride.h),
        }

    def _tiles_cpu(self, work: _ConvWork, soc: Soc) -> dict[str, float]:
        """Steps of the threads if channels, or tiles of pixels, are dealt out to them."""
        threads = self.threads or soc.cpu.threads
        blocks = _up(work.out_channels / BLOCK, threads) / threads
        tiled = _up(_up(work.pixels, CPU_TILE_PIXELS) / CPU_TILE_PIXELS, threads) / threads
        return {
            "block_waves": blocks * work.pixels * work.loop,
            "pixel_waves": tiled * work.out_channels * work.loop,
        }

    def _tiles_gpu(self, work: _ConvWork) -> dict[str, float]:
        rows = _up(work.op.output.w, TILE_PIXELS) * work.op.output.h * work.op.output.n
        items = rows / TILE_PIXELS * work.out_channels / BLOCK
        constant = (
            work.op.groups == 1
            and 2 * work.out_channels * work.op.input.c * work.window <= CONSTANT_BYTES
            and work.op.out_channels <= CONSTANT_CHANNELS
        )
        return {
            "work_items": items,
            "item_steps": items * work.loop,
            "padded_rows": rows,
            "constant_macs": work.macs * constant,
        }


@dataclass(frozen=True)
class _ConvWork:
    """The sizes of a convolution with channels padded to blocks."""

    op: Conv2d
    pixels: float
    in_channels: float
    out_channels: float
    window: int
    loop: float

    @classmethod
    def of(cls, op: Conv2d) -> _ConvWork:
        window = op.kernel.h * op.kernel.w
        each = op.input.c // op.groups
        return cls(
            op=op,
            pixels=float(op.output.n * op.output.h * op.output.w),
            in_channels=_up(op.input.c, BLOCK),
            out_channels=_up(op.out_channels, BLOCK),
            window=window,
            loop=float(window) if op.is_depthwise else _up(each, BLOCK) * window,
        )

    @property
    def macs(self) -> float:
        return self.pixels * self.out_channels * self.loop

    def by_class(self) -> dict[str, float]:
        """All multiply-adds under the class of algorithms that the op allows, 0 elsewhere."""
        op = self.op
        kinds = {
            "depthwise_macs": op.is_depthwise,
            "grouped_macs": op.groups > 1,
            "pointwise_macs": self.window == 1 and op.stride == (1, 1),
            "winograd_macs": self._suits_winograd,
            "line_macs": self.window > 1 and 1 in op.kernel and op.stride == (1, 1),
            "other_macs": True,
        }
        own = next(name for name, applies in kinds.items() if applies)
        return {name: self.macs if name == own else 0.0 for name in kinds}

    @property
    def _suits_winograd(self) -> bool:
        op = self.op
        return op.groups == 1 and op.kernel == (3, 3) and op.stride == (1, 1)

    def winograd(self) -> dict[str, float]:
        """Products and transforms for every size of tile, and the transformed weights."""
        found = {}
        for size in WINOGRAD_TILES:
            tiles = -(-self.op.output.h // size) * -(-self.op.output.w // size) * self.op.output.n
            points = float(tiles * (size + 2) ** 2) if self._suits_winograd else 0.0
            found[f"macs_f{size}"] = points * self.in_channels * self.out_channels
            found[f"input_transforms_f{size}"] = points * self.in_channels
            found[f"output_transforms_f{size}"] = points * self.out_channels
        weights = self.in_channels * self.out_channels if self._suits_winograd else 0.0
        return {**found, "weights_transformed": weights}
