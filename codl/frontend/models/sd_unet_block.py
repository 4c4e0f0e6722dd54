"""A block of Stable Diffusion 1.x's UNet (Rombach et al. 2022), of its second level: 640x32x32.

A residual block that knows the time, and a transformer that attends to the image and to a text.
"""

from __future__ import annotations

import numpy as np

from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.transformer import attention

CHANNELS, SIDE, HEADS, GROUPS = 640, 32, 8, 32
#: Features of the time's embedding, and words and features of the text's.
TIME, WORDS, TEXT = 1280, 77, 768
WIDENED = 4


def describe(b: ModelBuilder, channels: int = CHANNELS, side: int = SIDE) -> None:
    image = b.input("image", (1, channels, side, side))
    time = b.input("time", (1, TIME))
    text = b.input("text", (1, WORDS, TEXT))
    b.output(_transformer(b, _residual(b, image, time), text))


def _residual(b: ModelBuilder, x: str, time: str) -> str:
    """Two convolutions, between which the time is added to every channel."""
    channels = b.shapes[x][1]
    y = b.conv(_silu(b, _group_norm(b, x, 1e-5)), channels, 3, pad=1)
    shift = b.linear(_silu(b, time), channels)
    y = b.add(y, b.reshape(shift, (1, channels, 1, 1)))
    return b.add(x, b.conv(_silu(b, _group_norm(b, y, 1e-5)), channels, 3, pad=1))


def _transformer(b: ModelBuilder, x: str, text: str) -> str:
    """Pixels as tokens; attention to themselves, to the text, and a gated pair of products."""
    n, channels, height, width = b.shapes[x]
    y = b.conv(_group_norm(b, x, 1e-6), channels, 1, pad=0, gain=1)
    y = b.transpose(b.reshape(y, (n, channels, height * width)), (0, 2, 1))
    y = b.add(attention(b, b.layer_norm(y), HEADS, bias=False), y)
    y = b.add(attention(b, b.layer_norm(y), HEADS, source=text, bias=False), y)
    wide, half = b.linear(b.layer_norm(y), 2 * WIDENED * channels), WIDENED * channels
    gated = b.mul(b.part(wide, 2, 0, half), b.gelu(b.part(wide, 2, half, 2 * half)))
    y = b.add(b.linear(gated, channels, gain=2), y)
    y = b.reshape(b.transpose(y, (0, 2, 1)), (n, channels, height, width))
    return b.add(b.conv(y, channels, 1, pad=0, gain=1), x)


def _silu(b: ModelBuilder, x: str) -> str:
    return b.mul(x, b.node("Sigmoid", [x]))


def _group_norm(b: ModelBuilder, x: str, epsilon: float) -> str:
    """As exporters spell it out below opset 18: an instance norm of groups, and an affine."""
    name, shape = f"{x}.norm", b.shapes[x]
    ones = b.constant(f"{name}.ones", np.ones(GROUPS, np.float32))
    zeros = b.constant(f"{name}.zeros", np.zeros(GROUPS, np.float32))
    rows = b.reshape(x, (1, GROUPS, -1))
    y = b.node("InstanceNormalization", [rows, ones, zeros], epsilon=epsilon)
    affine = (shape[1], 1, 1)
    y = b.mul(b.reshape(y, shape), b.learned(f"{name}.scale", affine, spread=0.1, mean=1.0))
    return b.add(y, b.learned(f"{name}.shift", affine, spread=0.1))
