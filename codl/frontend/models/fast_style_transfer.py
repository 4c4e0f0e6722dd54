"""Fast Style Transfer at 480x640 (Johnson et al. 2016), with instance norms (Ulyanov et al. 2016).

Its convolutions are those that the operators of the original CoDL list. Transposed convolutions
lead back to the size of the image, whose values are 0 ... 255, or a little outside.
"""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

#: Padding of a 3x3 convolution of stride 2 whose output is half as large as its input.
HALVED = (0, 0, 1, 1)
RESIDUALS = 5


def describe(b: ModelBuilder) -> None:
    x = b.relu(
        b.instance_norm(b.conv(b.input("image", (1, 3, 480, 640)), 32, 9, pad=4, bias=False))
    )
    for oc in (64, 128):
        x = b.relu(b.instance_norm(b.conv(x, oc, 3, stride=2, pad=HALVED, bias=False)))
    for _ in range(RESIDUALS):
        y = b.relu(b.instance_norm(b.conv(x, 128, 3, pad=1, bias=False)))
        x = b.add(x, b.instance_norm(b.conv(y, 128, 3, pad=1, bias=False)))
    for oc in (64, 32):
        x = b.conv_transpose(x, oc, 3, stride=2, pad=HALVED, bias=False)
        x = b.relu(b.instance_norm(x))
    x = b.instance_norm(b.conv(x, 3, 9, pad=4, bias=False))
    b.output(b.shifted(b.scaled(b.node("Tanh", [x]), 150.0), 127.5))
