"""PoseNet at 256x256, as the operators of the original CoDL list it: 21 points of a hand.

A convolutional pose machine (Wei et al. 2016) with VGG's first layers in front. Every stage makes a
map for each point, and the next one sees those beside the features.
"""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

#: Output channels of the 3x3 convolutions in front; 0 is a 2x2 max pooling.
FEATURES = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 256, 256, 256, 256, 128)
POINTS = 21
#: Stages that refine the maps of the one before, and the 7x7 convolutions of each.
STAGES, LARGE = 2, 5


def describe(b: ModelBuilder) -> None:
    x = b.input("image", (1, 3, 256, 256))
    for oc in FEATURES:
        x = _conv(b, x, oc, 3) if oc else b.max_pool(x, 2, 2)
    maps = b.conv(_conv(b, x, 512, 1), POINTS, 1, pad=0, gain=1)
    for _ in range(STAGES):
        y = b.concat([x, maps])
        for _ in range(LARGE):
            y = _conv(b, y, 128, 7)
        maps = b.conv(_conv(b, y, 128, 1), POINTS, 1, pad=0, gain=1)
    b.output(maps)


def _conv(b: ModelBuilder, x: str, oc: int, kernel: int) -> str:
    return b.relu(b.conv(x, oc, kernel, pad=kernel // 2))
