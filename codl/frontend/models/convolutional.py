"""Built-in convolutional networks, one function each."""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

#: Padding with which a 3x3 window of stride 2 halves its input.
HALVED = (0, 0, 1, 1)


def retinaface(b: ModelBuilder) -> None:
    """RetinaFace at 640x640 (Deng et al. 2020), with the original CoDL's list of operators.

    The backbone is a ResNet-50 whose stages halve the map in their last block, to 80, 40, 20 and 20
    rows. A feature pyramid has five levels, from 160 to 10 rows. Each level has a context module of
    three branches and two heads: boxes and classes of 3 anchors.
    """
    stages = ((3, True), (4, True), (6, True), (3, False))  # blocks; whether the last one halves
    x = b.input("image", (1, 3, 640, 640))
    x = b.max_pool(b.relu(_conv_norm(b, x, 64, 7, stride=2)), 2, 2)
    maps: list[str] = []
    for stage, (blocks, halves) in enumerate(stages):
        for block in range(blocks):
            last = block == blocks - 1
            if stage == 0 and last:
                maps.append(x)
            x = _pooled_bottleneck(b, x, 64 << stage, stride=2 if halves and last else 1)
        maps.append(x)
    # The last stage's map has the third's size and replaces it.
    for level in _pyramid(b, [maps[0], maps[1], maps[2], maps[4]]):
        context = b.concat([b.relu(b.conv(level, oc, 3, pad=1)) for oc in (128, 64, 64)])
        context = b.relu(b.conv(context, 256, 3, pad=1))
        for values in (4, 2):
            b.output(b.conv(context, 3 * values, 3, pad=1, gain=1))


def _pooled_bottleneck(b: ModelBuilder, x: str, width: int, *, stride: int) -> str:
    """A bottleneck; its shortcut is a convolution if channels change, a pooling if rows do."""
    y = b.relu(_conv_norm(b, x, width))
    y = b.relu(_conv_norm(b, y, width, 3, stride=stride))
    y = _conv_norm(b, y, 4 * width, scale=0.5)
    if b.shapes[x][1] != 4 * width:
        x = _conv_norm(b, x, 4 * width)
    elif stride > 1:
        x = b.max_pool(x, stride, stride)
    return b.relu(b.add(y, x))


def _pyramid(b: ModelBuilder, maps: list[str], width: int = 256) -> list[str]:
    """Five levels, the largest first, of four maps; each level adds the smaller one above."""
    above = b.relu(b.conv(maps[-1], width, 1, pad=0))
    levels = [above, b.relu(b.conv(above, width, 3, stride=2, pad=HALVED))]
    for x in reversed(maps[:-1]):
        side = b.relu(b.conv(x, width, 1, pad=0))
        above = b.relu(b.conv(b.add(side, b.upsample(above, 2)), width, 3, pad=1, gain=1))
        levels.insert(0, above)
    return levels


def yolov2(b: ModelBuilder) -> None:
    """YOLOv2 at 416x416, with the original CoDL's list of operators.

    The backbone is Darknet-19. The head reads the last pooled map (512 channels) beside the
    backbone's output (1024), hence the published 1536-channel convolution. The 125 outputs are 5
    boxes of 25.
    """
    # Output channels: of 3x3 convolutions, of 1x1 if negative; 0 is a 2x2 max pooling.
    backbone = (32, 0, 64, 0, 128, -64, 128, 0, 256, -128, 256, 0, 512, -256, 512, -256, 512, 0)
    tail = (1024, -512, 1024, -512, 1024, 1024, 1024)

    def block(x: str, oc: int) -> str:
        if not oc:
            return b.max_pool(x, 2, 2)
        return b.leaky_relu(_conv_norm(b, x, abs(oc), 3 if oc > 0 else 1), 0.1)

    x = b.input("image", (1, 3, 416, 416))
    for oc in backbone:
        x = block(x, oc)
    pooled = x
    for oc in tail:
        x = block(x, oc)
    x = block(b.concat([pooled, x]), 1024)
    b.output(b.conv(x, 125, 1, pad=0))


def vgg16(b: ModelBuilder) -> None:
    """VGG-16 at 224x224 (Simonyan and Zisserman, 2014), to the logits of 1000 classes."""
    x = b.input("image", (1, 3, 224, 224))
    for oc, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            x = b.relu(b.conv(x, oc, 3, pad=1))
        x = b.max_pool(x, 2, 2)
    _classify(b, x, hidden=(4096, 4096))


def posenet(b: ModelBuilder) -> None:
    """PoseNet at 256x256 for 21 points of a hand, with the original CoDL's list of operators.

    A convolutional pose machine (Wei et al. 2016) behind VGG's first layers. Each stage makes a map
    for each point, which the next stage reads beside the features.
    """
    # Output channels of the first 3x3 convolutions; 0 is a 2x2 max pooling.
    front = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 256, 256, 256, 256, 128)
    points = 21

    def conv(x: str, oc: int, kernel: int) -> str:
        return b.relu(b.conv(x, oc, kernel, pad=kernel // 2))

    x = b.input("image", (1, 3, 256, 256))
    for oc in front:
        x = conv(x, oc, 3) if oc else b.max_pool(x, 2, 2)
    maps = b.conv(conv(x, 512, 1), points, 1, pad=0, gain=1)
    for _ in range(2):
        y = b.concat([x, maps])
        for _ in range(5):
            y = conv(y, 128, 7)
        maps = b.conv(conv(y, 128, 1), points, 1, pad=0, gain=1)
    b.output(maps)


def fast_style_transfer(b: ModelBuilder) -> None:
    """Fast Style Transfer at 480x640 (Johnson et al. 2016, with norms of Ulyanov et al. 2016).

    Convolutions follow the original CoDL's list of operators. Transposed convolutions restore the
    image's size. Values are 0 to 255, or slightly outside.
    """
    image = b.input("image", (1, 3, 480, 640))
    x = b.relu(b.instance_norm(b.conv(image, 32, 9, pad=4, bias=False)))
    for oc in (64, 128):
        x = b.relu(b.instance_norm(b.conv(x, oc, 3, stride=2, pad=HALVED, bias=False)))
    for _ in range(5):
        y = b.relu(b.instance_norm(b.conv(x, 128, 3, pad=1, bias=False)))
        x = b.add(x, b.instance_norm(b.conv(y, 128, 3, pad=1, bias=False)))
    for oc in (64, 32):
        x = b.conv_transpose(x, oc, 3, stride=2, pad=HALVED, bias=False)
        x = b.relu(b.instance_norm(x))
    x = b.instance_norm(b.conv(x, 3, 9, pad=4, bias=False))
    b.output(b.shifted(b.scaled(b.node("Tanh", [x]), 150.0), 127.5))


def alexnet(b: ModelBuilder) -> None:
    """AlexNet at 224x224 without groups (Krizhevsky 2014), to the logits of 1000 classes.

    Convolutions and poolings divide sizes by their strides, so fully connected layers read the 7x7
    maps of the original CoDL's list of operators.
    """
    x = b.input("image", (1, 3, 224, 224))
    x = b.max_pool(b.relu(b.conv(x, 64, 11, stride=4, pad=(3, 3, 4, 4))), 3, 2, pad=HALVED)
    x = b.max_pool(b.relu(b.conv(x, 192, 5, pad=2)), 3, 2, pad=HALVED)
    for oc in (384, 256, 256):
        x = b.relu(b.conv(x, oc, 3, pad=1))
    _classify(b, b.max_pool(x, 3, 2, pad=HALVED), hidden=(4096, 4096))


def mobilenet_v1(b: ModelBuilder) -> None:
    """MobileNetV1 1.0 at 224x224 (Howard et al. 2017)."""
    # Output channels and stride of each depthwise convolution and the 1x1 convolution behind it.
    blocks = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5,
              (1024, 2), (1024, 1))  # fmt: skip
    x = _conv_relu6(b, b.input("image", (1, 3, 224, 224)), 32, 3, stride=2)
    for out, stride in blocks:
        x = _conv_relu6(b, x, b.shapes[x][1], 3, stride=stride, groups=b.shapes[x][1])
        x = _conv_relu6(b, x, out)
    _classify(b, b.global_average_pool(x))


def mobilenet_v2(b: ModelBuilder) -> None:
    """MobileNetV2 1.0 at 224x224 (Sandler et al. 2018)."""
    # Expansion, output channels, repeats and first stride of each sequence of blocks.
    sequences = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                 (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    x = _conv_relu6(b, b.input("image", (1, 3, 224, 224)), 32, 3, stride=2)
    for expansion, out, repeats, first in sequences:
        for index in range(repeats):
            stride, channels = 1 if index else first, b.shapes[x][1]
            inner = channels * expansion
            y = _conv_relu6(b, x, inner) if expansion > 1 else x
            y = _conv_relu6(b, y, inner, 3, stride=stride, groups=inner)
            y = _conv_norm(b, y, out)
            x = b.add(y, x) if stride == 1 and channels == out else y
    _classify(b, b.global_average_pool(_conv_relu6(b, x, 1280)))


def resnet50(b: ModelBuilder) -> None:
    """ResNet-50 v1.5 at 224x224 (He et al. 2015; the stride in the 3x3 convolution)."""
    x = b.relu(_conv_norm(b, b.input("image", (1, 3, 224, 224)), 64, 7, stride=2))
    x = b.max_pool(x, 3, 2, pad=1)
    for width, stride, is_first in _resnet50_blocks():
        y = b.relu(_conv_norm(b, x, width))
        y = b.relu(_conv_norm(b, y, width, 3, stride=stride))
        y = _conv_norm(b, y, 4 * width, scale=0.5)
        x = _conv_norm(b, x, 4 * width, stride=stride) if is_first else x
        x = b.relu(b.add(y, x))
    _classify(b, b.global_average_pool(x))


def resnet50_v2(b: ModelBuilder) -> None:
    """ResNet-50 v2 at 224x224 (He et al. 2016): batch norm and ReLU before each convolution.

    A block's first norm follows a sum, so no convolution can fold it.
    """
    x = b.conv(b.input("image", (1, 3, 224, 224)), 64, 7, pad=3, stride=2)
    x = b.max_pool(x, 3, 2, pad=1)
    for width, stride, is_first in _resnet50_blocks():
        before = b.relu(b.batch_norm(x))
        y = b.relu(_conv_norm(b, before, width))
        y = b.relu(_conv_norm(b, y, width, 3, stride=stride))
        y = b.conv(y, 4 * width, 1, pad=0, gain=0.5)  # so that sums of branches do not grow
        x = b.add(y, b.conv(before, 4 * width, 1, pad=0, stride=stride) if is_first else x)
    _classify(b, b.global_average_pool(b.relu(b.batch_norm(x))))


def _resnet50_blocks() -> list[tuple[int, int, bool]]:
    """Width and stride of each bottleneck, and whether it is the first of its stage."""
    return [
        (64 << stage, 2 if stage and not block else 1, not block)
        for stage, blocks in enumerate((3, 4, 6, 3))
        for block in range(blocks)
    ]


def op_chain(b: ModelBuilder) -> None:
    """A linear chain of few operators, short enough to try all cuts into chains."""
    x = b.relu(b.conv(b.input("image", (1, 32, 56, 56)), 64, 3, pad=1))
    x = b.relu(b.conv(x, 128, 1, pad=0))
    x = b.relu(b.conv(x, 128, 3, pad=1, groups=128))
    x = b.max_pool(b.relu(b.conv(x, 128, 3, pad=1)), 2, 2)
    x = b.relu(b.conv(x, 256, 3, pad=1, stride=2))
    x = b.average_pool(b.relu(b.conv(x, 256, 1, pad=0)), 2, 2)
    _classify(b, x, classes=100)


def _conv_norm(
    b: ModelBuilder, x: str, oc: int, kernel: int = 1, *, stride: int = 1, groups: int = 1,
    scale: float = 1.0,
) -> str:  # fmt: skip
    """Convolution and batch norm; `scale` is the mean of the norm's scales."""
    x = b.conv(x, oc, kernel, pad=kernel // 2, stride=stride, bias=False, groups=groups)
    return b.batch_norm(x, scale=scale)


def _conv_relu6(
    b: ModelBuilder, x: str, oc: int, kernel: int = 1, *, stride: int = 1, groups: int = 1
) -> str:
    return b.clip(_conv_norm(b, x, oc, kernel, stride=stride, groups=groups), 0.0, 6.0)


def _classify(
    b: ModelBuilder, x: str, *, hidden: tuple[int, ...] = (), classes: int = 1000
) -> None:
    """Fully connected layers from a map to the model's output."""
    x = b.flatten(x)
    for features in hidden:
        x = b.relu(b.fully_connected(x, features))
    b.output(b.fully_connected(x, classes))
