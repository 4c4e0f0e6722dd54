"""MobileNetV1 1.0 at 224x224 (Howard et al. 2017)."""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

#: Output channels and stride of each depthwise convolution and the 1x1 convolution behind it.
BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)


def describe(b: ModelBuilder) -> None:
    x = conv_relu6(b, b.input("image", (1, 3, 224, 224)), 32, 3, stride=2)
    channels = 32
    for out, stride in BLOCKS:
        x = conv_relu6(b, x, channels, 3, stride=stride, groups=channels)
        x, channels = conv_relu6(b, x, out, 1), out
    b.output(b.fully_connected(b.flatten(b.global_average_pool(x)), 1000))


def conv_relu6(b: ModelBuilder, x: str, oc: int, kernel: int, *, stride: int = 1,
          groups: int = 1) -> str:  # fmt: skip
    """Convolution, batch norm and ReLU6."""
    x = b.conv(x, oc, kernel, pad=kernel // 2, stride=stride, bias=False, groups=groups)
    return b.clip(b.batch_norm(x), 0.0, 6.0)
