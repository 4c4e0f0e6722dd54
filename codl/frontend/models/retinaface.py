"""RetinaFace at 640x640 (Deng et al. 2020), as the operators of the original CoDL list it.

A ResNet-50 whose stages halve the map in their last block, and so hand on maps of 80, 40, 20 and 20
rows. A feature pyramid of five levels from 160 to 10 rows, and on each a context module with three
branches and two heads: boxes and classes of 3 anchors.
"""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

#: Bottleneck blocks of each stage, and whether the last one halves the map.
STAGES = ((3, True), (4, True), (6, True), (3, False))
#: Mean scale of a branch's last batch norm.
BRANCH = 0.5
#: Channels of every level of the pyramid, and of the branches of a context module.
LEVEL, CONTEXT = 256, (128, 64, 64)
ANCHORS = 3


def describe(b: ModelBuilder) -> None:
    x = b.input("image", (1, 3, 640, 640))
    x = b.max_pool(_conv(b, x, 64, 7, stride=2), 2, 2)
    found: list[str] = []
    for stage, (blocks, halves) in enumerate(STAGES):
        for block in range(blocks):
            last = block == blocks - 1
            if stage == 0 and last:
                found.append(x)
            x = _bottleneck(b, x, 64 << stage, stride=2 if halves and last else 1)
        found.append(x)
    # The third stage's map has the size of the last one's, which has seen more.
    levels = _pyramid(b, [found[0], found[1], found[2], found[4]])
    for level in levels:
        _heads(b, level)


def _conv(b: ModelBuilder, x: str, oc: int, kernel: int, *, stride: int = 1) -> str:
    """Convolution, batch norm and ReLU."""
    x = b.conv(x, oc, kernel, pad=kernel // 2, stride=stride, bias=False)
    return b.relu(b.batch_norm(x))


def _bottleneck(b: ModelBuilder, x: str, width: int, *, stride: int) -> str:
    """A shortcut has a convolution where channels change, or else a pooling where rows do."""
    y = _conv(b, _conv(b, x, width, 1), width, 3, stride=stride)
    y = b.batch_norm(b.conv(y, 4 * width, 1, pad=0, bias=False), scale=BRANCH)
    if b.shapes[x][1] != 4 * width:
        x = b.batch_norm(b.conv(x, 4 * width, 1, pad=0, bias=False))
    elif stride > 1:
        x = b.max_pool(x, stride, stride)
    return b.relu(b.add(y, x))


def _pyramid(b: ModelBuilder, maps: list[str]) -> list[str]:
    """Five levels, the largest first, of four maps: each but the smallest adds what lies above."""
    above = b.relu(b.conv(maps[-1], LEVEL, 1, pad=0))
    levels = [above, b.relu(b.conv(above, LEVEL, 3, stride=2, pad=(0, 0, 1, 1)))]
    for x in reversed(maps[:-1]):
        side = b.relu(b.conv(x, LEVEL, 1, pad=0))
        above = b.relu(b.conv(b.add(side, b.upsample(above, 2)), LEVEL, 3, pad=1, gain=1))
        levels.insert(0, above)
    return levels


def _heads(b: ModelBuilder, level: str) -> None:
    x = b.concat([b.relu(b.conv(level, oc, 3, pad=1)) for oc in CONTEXT])
    x = b.relu(b.conv(x, LEVEL, 3, pad=1))
    for values in (4, 2):
        b.output(b.conv(x, ANCHORS * values, 3, pad=1, gain=1))
