"""The encoder of Whisper tiny (Radford et al. 2022): 30 seconds of 80 mel bands to 1500 tokens."""

from __future__ import annotations

import numpy as np

from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.transformer import Transformer, encode

TINY = Transformer(layers=4, features=384, heads=6, widened=1536)
BANDS, FRAMES, EPSILON = 80, 3000, 1e-5
#: The longest wave of the tokens' places, over 2 pi.
LONGEST = 10000


def describe(b: ModelBuilder, sizes: Transformer = TINY, frames: int = FRAMES) -> None:
    """Two convolutions in time, of which the second halves it; keys have no bias."""
    x = b.input("mel", (1, BANDS, frames))
    x = b.gelu(b.conv1d(x, sizes.features, 3, pad=1))
    x = b.gelu(b.conv1d(x, sizes.features, 3, pad=1, stride=2))
    x = b.transpose(x, (0, 2, 1))
    x = b.add(x, b.constant("places", _places(*b.shapes[x][1:])))
    b.output(encode(b, x, sizes, epsilon=EPSILON, key_bias=False))


def _places(tokens: int, features: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Sines, then cosines, of a token's place at as many wavelengths."""
    half = features // 2
    angles = np.arange(tokens)[:, None] * LONGEST ** -(np.arange(half) / (half - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
