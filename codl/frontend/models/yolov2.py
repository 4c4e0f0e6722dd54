"""YOLOv2 at 416x416, as the operators of the original CoDL list it.

Darknet-19 as backbone; the head sees the last pooled map (512 channels) beside the backbone's
output (1024), which gives the published 1536-channel convolution. 125 outputs: 5 boxes of 25.
"""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

#: Output channels of 3x3 convolutions; of 1x1 convolutions where negative; 0 is a 2x2 max pooling.
BACKBONE = (32, 0, 64, 0, 128, -64, 128, 0, 256, -128, 256, 0, 512, -256, 512, -256, 512)
TAIL = (1024, -512, 1024, -512, 1024, 1024, 1024)


def describe(b: ModelBuilder) -> None:
    def block(x: str, oc: int) -> str:
        kernel = 3 if oc > 0 else 1
        x = b.conv(x, abs(oc), kernel, pad=kernel // 2, bias=False)
        return b.leaky_relu(b.batch_norm(x), 0.1)

    x = b.input("image", (1, 3, 416, 416))
    for oc in BACKBONE:
        x = block(x, oc) if oc else b.max_pool(x, 2, 2)
    pooled = x = b.max_pool(x, 2, 2)
    for oc in TAIL:
        x = block(x, oc)
    x = block(b.concat([pooled, x]), 1024)
    b.output(b.conv(x, 125, 1, pad=0))
