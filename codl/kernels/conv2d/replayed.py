"""Convolutions of other libraries: what is known of them without their kernels."""

from __future__ import annotations

from dataclasses import dataclass

from codl.kernels.base import Choice
from codl.kernels.replayed import Replayed, every, work
from codl.ops.conv2d import Conv2d
from codl.soc import Soc

#: Channels that phones' libraries keep together, on the CPU's vectors and in the GPU's texels.
BLOCK = 4


@dataclass(frozen=True)
class ReplayedConv2d(Replayed):
    """Direct, as a matrix product or Winograd: whichever the library chose."""

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        """Multiply-adds by class of algorithm, padded to blocks, bytes, loop length, waves."""
        window = op.kernel.h * op.kernel.w
        ic = -(-op.input.c // op.groups)
        blocks = -(-op.out_channels // BLOCK)
        pixels = float(op.output.n * op.output.h * op.output.w)
        macs = pixels * blocks * BLOCK * ic * window
        depthwise, grouped = op.is_depthwise, op.groups > 1
        pointwise = not grouped and window == 1
        winograd = not grouped and op.kernel == (3, 3) and op.stride == (1, 1)
        at_once = soc.gpu.wave_size * soc.gpu.compute_units
        threads = self.threads or soc.cpu.threads
        waves = pixels * blocks / (at_once if self.processor == "gpu" else threads)
        other = not (depthwise or pointwise or winograd)
        return {
            "depthwise_macs": macs * depthwise,
            "pointwise_macs": macs * pointwise,
            "winograd_macs": macs * winograd,
            "other_macs": macs * other,
            "output_blocks": pixels * blocks,
            "waves": float(-(-waves // 1)),
            "loop_length": float(ic * window),
            **{k: v for k, v in work(op).items() if k.endswith("_bytes")},
        }


KIND = Conv2d.kind
VARIANTS = every(KIND, ReplayedConv2d)
