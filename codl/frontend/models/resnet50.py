"""ResNet-50 v1.5 at 224x224 (He et al. 2015; the stride in the 3x3 convolution)."""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

#: Bottleneck blocks of each stage.
BLOCKS = (3, 4, 6, 3)
#: Mean scale of a branch's last batch norm.
BRANCH = 0.5


def describe(b: ModelBuilder) -> None:
    x = b.input("image", (1, 3, 224, 224))
    x = b.relu(b.batch_norm(b.conv(x, 64, 7, pad=3, stride=2, bias=False)))
    x = b.max_pool(x, 3, 2, pad=1)
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            x = _bottleneck(b, x, 64 << stage, stride=2 if stage and not block else 1,
                            project=not block)  # fmt: skip
    x = b.flatten(b.global_average_pool(x))
    b.output(b.fully_connected(x, 1000))


def _bottleneck(b: ModelBuilder, x: str, width: int, *, stride: int, project: bool) -> str:
    y = b.relu(b.batch_norm(b.conv(x, width, 1, pad=0, bias=False)))
    y = b.relu(b.batch_norm(b.conv(y, width, 3, pad=1, stride=stride, bias=False)))
    y = b.batch_norm(b.conv(y, 4 * width, 1, pad=0, bias=False), scale=BRANCH)
    if project:
        x = b.batch_norm(b.conv(x, 4 * width, 1, pad=0, stride=stride, bias=False))
    return b.relu(b.add(y, x))
