"""AlexNet at 224x224 without groups (Krizhevsky 2014), to the logits of 1000 classes.

Convolutions and poolings keep a stride's share of their input, so that the fully connected layers
see the 7x7 maps that the operators of the original CoDL list.
"""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

#: Padding of a 3x3 pooling of stride 2 whose output is half as large as its input.
HALVED = (0, 0, 1, 1)


def describe(b: ModelBuilder) -> None:
    x = b.input("image", (1, 3, 224, 224))
    x = b.max_pool(b.relu(b.conv(x, 64, 11, stride=4, pad=(3, 3, 4, 4))), 3, 2, pad=HALVED)
    x = b.max_pool(b.relu(b.conv(x, 192, 5, pad=2)), 3, 2, pad=HALVED)
    for oc in (384, 256, 256):
        x = b.relu(b.conv(x, oc, 3, pad=1))
    x = b.flatten(b.max_pool(x, 3, 2, pad=HALVED))
    x = b.relu(b.fully_connected(x, 4096))
    x = b.relu(b.fully_connected(x, 4096))
    b.output(b.fully_connected(x, 1000))
