"""VGG-16 at 224x224 (Simonyan and Zisserman, 2014), to the logits of 1000 classes."""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def describe(b: ModelBuilder) -> None:
    x = b.input("image", (1, 3, 224, 224))
    for oc, repeats in STAGES:
        for _ in range(repeats):
            x = b.relu(b.conv(x, oc, 3, pad=1))
        x = b.max_pool(x, 2, 2)
    x = b.relu(b.fully_connected(b.flatten(x), 4096))
    x = b.relu(b.fully_connected(x, 4096))
    b.output(b.fully_connected(x, 1000))
