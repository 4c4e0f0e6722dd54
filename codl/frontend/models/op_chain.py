"""A straight line of a few operators, in which every cut into chains can be tried."""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder


def describe(b: ModelBuilder) -> None:
    x = b.relu(b.conv(b.input("image", (1, 32, 56, 56)), 64, 3, pad=1))
    x = b.relu(b.conv(x, 128, 1, pad=0))
    x = b.relu(b.conv(x, 128, 3, pad=1, groups=128))
    x = b.max_pool(b.relu(b.conv(x, 128, 3, pad=1)), 2, 2)
    x = b.relu(b.conv(x, 256, 3, pad=1, stride=2))
    x = b.average_pool(b.relu(b.conv(x, 256, 1, pad=0)), 2, 2)
    b.output(b.fully_connected(b.flatten(x), 100))
