"""MobileNetV2 1.0 at 224x224 (Sandler et al. 2018)."""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.mobilenet_v1 import conv_relu6

#: Expansion, output channels, repeats and first stride of each sequence of blocks.
BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def describe(b: ModelBuilder) -> None:
    x = conv_relu6(b, b.input("image", (1, 3, 224, 224)), 32, 3, stride=2)
    channels = 32
    for expansion, out, repeats, first in BLOCKS:
        for index in range(repeats):
            x = _block(b, x, channels, expansion, out, stride=1 if index else first)
            channels = out
    x = b.global_average_pool(conv_relu6(b, x, 1280, 1))
    b.output(b.fully_connected(b.flatten(x), 1000))


def _block(b: ModelBuilder, x: str, channels: int, expansion: int, out: int, *,
           stride: int) -> str:  # fmt: skip
    inner = channels * expansion
    y = conv_relu6(b, x, inner, 1) if expansion > 1 else x
    y = conv_relu6(b, y, inner, 3, stride=stride, groups=inner)
    y = b.batch_norm(b.conv(y, out, 1, pad=0, bias=False))
    return b.add(y, x) if stride == 1 and channels == out else y
