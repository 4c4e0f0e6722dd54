"""ResNet-50 v2 at 224x224 (He et al. 2016): batch norm and ReLU in front of every convolution.

The one in front of a block follows a sum, so no convolution can take it in.
"""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.resnet50 import BLOCKS

#: Variance of a branch's last weights, as a part of what would keep activations as they are.
BRANCH = 0.25


def describe(b: ModelBuilder) -> None:
    x = b.conv(b.input("image", (1, 3, 224, 224)), 64, 7, pad=3, stride=2)
    x = b.max_pool(x, 3, 2, pad=1)
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            x = _bottleneck(b, x, 64 << stage, stride=2 if stage and not block else 1,
                            project=not block)  # fmt: skip
    x = b.global_average_pool(b.relu(b.batch_norm(x)))
    b.output(b.fully_connected(b.flatten(x), 1000))


def _bottleneck(b: ModelBuilder, x: str, width: int, *, stride: int, project: bool) -> str:
    y = before = b.relu(b.batch_norm(x))
    y = b.relu(b.batch_norm(b.conv(y, width, 1, pad=0, bias=False)))
    y = b.relu(b.batch_norm(b.conv(y, width, 3, pad=1, stride=stride, bias=False)))
    y = b.conv(y, 4 * width, 1, pad=0, gain=2 * BRANCH)
    return b.add(y, b.conv(before, 4 * width, 1, pad=0, stride=stride) if project else x)
