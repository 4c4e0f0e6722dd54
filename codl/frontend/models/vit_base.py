"""ViT-B/16 at 224x224 (Dosovitskiy et al. 2021), to the logits of 1000 classes."""

from __future__ import annotations

from codl.frontend.models.builder import ALL_KEPT, ModelBuilder
from codl.frontend.models.transformer import Transformer, encode

BASE = Transformer(layers=12, features=768, heads=12, widened=3072)
PATCH, CLASSES, EPSILON = 16, 1000, 1e-6


def describe(b: ModelBuilder, sizes: Transformer = BASE, side: int = 224) -> None:
    """A token for the class in front of those of the patches."""
    image, features = b.input("image", (1, 3, side, side)), sizes.features
    patches = b.conv(image, features, PATCH, pad=0, stride=PATCH, gain=ALL_KEPT)
    count = (side // PATCH) ** 2
    tokens = b.transpose(b.reshape(patches, (1, features, count)), (0, 2, 1))
    x = b.concat([b.learned("class", (1, 1, features), spread=1.0), tokens])
    x = b.add(x, b.learned("places", (1, count + 1, features), spread=0.5))
    x = encode(b, x, sizes, epsilon=EPSILON)
    b.output(b.linear(b.reshape(b.part(x, 1, 0, 1), (1, features)), CLASSES))
