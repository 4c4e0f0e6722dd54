"""Built-in transformers, as exporters write them, on embeddings, images or sound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codl.frontend.models.builder import ALL_KEPT, ModelBuilder


@dataclass(frozen=True)
class Transformer:
    """Sizes of a transformer; `widened` are the features inside feed-forward blocks."""

    layers: int
    features: int
    heads: int
    widened: int


BASE = Transformer(layers=12, features=768, heads=12, widened=3072)
DEIT_TINY = Transformer(layers=12, features=192, heads=3, widened=768)
WHISPER_TINY = Transformer(layers=4, features=384, heads=6, widened=1536)


def bert(b: ModelBuilder, sizes: Transformer = BASE, tokens: int = 128) -> None:
    """BERT base (Devlin et al. 2019): 12 layers, 768 features and 12 heads, on 128 tokens."""
    epsilon = 1e-12
    x = b.layer_norm(b.input("embeddings", (1, tokens, sizes.features)), epsilon=epsilon)
    for _ in range(sizes.layers):
        x = b.layer_norm(b.add(attention(b, x, sizes.heads), x), epsilon=epsilon)
        y = b.gelu(b.linear(x, sizes.widened))
        x = b.layer_norm(b.add(b.linear(y, sizes.features, gain=2), x), epsilon=epsilon)
    b.output(x)


def vit_base(b: ModelBuilder, sizes: Transformer = BASE, side: int = 224) -> None:
    """ViT-B/16 at 224x224 (Dosovitskiy et al. 2021), class token first, to 1000 logits."""
    patch, features = 16, sizes.features
    image = b.input("image", (1, 3, side, side))
    patches = b.conv(image, features, patch, pad=0, stride=patch, gain=ALL_KEPT)
    count = (side // patch) ** 2
    tokens = b.transpose(b.reshape(patches, (1, features, count)), (0, 2, 1))
    x = b.concat([b.learned("class", (1, 1, features), spread=1.0), tokens])
    x = b.add(x, b.learned("places", (1, count + 1, features), spread=0.5))
    x = _encode(b, x, sizes, epsilon=1e-6)
    b.output(b.linear(b.reshape(b.part(x, 1, 0, 1), (1, features)), 1000))


def deit_tiny(b: ModelBuilder) -> None:
    """DeiT-Ti at 224x224 (Touvron et al. 2021) without distillation, to logits of 1000 classes."""
    vit_base(b, DEIT_TINY)


def whisper_tiny_encoder(
    b: ModelBuilder, sizes: Transformer = WHISPER_TINY, frames: int = 3000
) -> None:
    """Encoder of Whisper tiny (Radford et al. 2022): 30 s of 80 mel bands to 1500 tokens.

    Two convolutions in time come first, the second of stride 2; keys have no bias.
    """
    x = b.input("mel", (1, 80, frames))
    x = b.gelu(b.conv1d(x, sizes.features, 3, pad=1))
    x = b.gelu(b.conv1d(x, sizes.features, 3, pad=1, stride=2))
    x = b.transpose(x, (0, 2, 1))
    # Sines, then cosines, of a token's place; the longest wavelength is 10000 * 2 pi.
    _, tokens, features = b.shapes[x]
    half = features // 2
    angles = np.arange(tokens)[:, None] * 10000 ** -(np.arange(half) / (half - 1))
    places = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    x = b.add(x, b.constant("places", places))
    b.output(_encode(b, x, sizes, epsilon=1e-5, key_bias=False))


def sd_unet_block(b: ModelBuilder, channels: int = 640, side: int = 32) -> None:
    """Second-level UNet block of Stable Diffusion 1.x (Rombach et al. 2022): 640x32x32.

    A residual block that adds the time, and a transformer with attention to image and text.
    """
    image = b.input("image", (1, channels, side, side))
    time = b.input("time", (1, 1280))
    text = b.input("text", (1, 77, 768))
    b.output(_image_transformer(b, _residual(b, image, time), text))


def _residual(b: ModelBuilder, x: str, time: str) -> str:
    """Two convolutions; the time is added to each channel in between."""
    channels = b.shapes[x][1]
    y = b.conv(b.silu(_group_norm(b, x, 1e-5)), channels, 3, pad=1)
    shift = b.linear(b.silu(time), channels)
    y = b.add(y, b.reshape(shift, (1, channels, 1, 1)))
    return b.add(x, b.conv(b.silu(_group_norm(b, y, 1e-5)), channels, 3, pad=1))


def _image_transformer(b: ModelBuilder, x: str, text: str, heads: int = 8) -> str:
    """Attention of pixels to each other and to the text, and a gated pair of products."""
    n, channels, height, width = b.shapes[x]
    y = b.conv(_group_norm(b, x, 1e-6), channels, 1, pad=0, gain=1)
    y = b.transpose(b.reshape(y, (n, channels, height * width)), (0, 2, 1))
    y = b.add(attention(b, b.layer_norm(y), heads, bias=False), y)
    y = b.add(attention(b, b.layer_norm(y), heads, source=text, bias=False), y)
    half = 4 * channels
    wide = b.linear(b.layer_norm(y), 2 * half)
    gated = b.mul(b.part(wide, 2, 0, half), b.gelu(b.part(wide, 2, half, 2 * half)))
    y = b.add(b.linear(gated, channels, gain=2), y)
    y = b.reshape(b.transpose(y, (0, 2, 1)), (n, channels, height, width))
    return b.add(b.conv(y, channels, 1, pad=0, gain=1), x)


def _group_norm(b: ModelBuilder, x: str, epsilon: float, groups: int = 32) -> str:
    """Group norm as exporters write it below opset 18: an instance norm, and an affine."""
    name, shape = f"{x}.norm", b.shapes[x]
    ones = b.constant(f"{name}.ones", np.ones(groups, np.float32))
    zeros = b.constant(f"{name}.zeros", np.zeros(groups, np.float32))
    rows = b.reshape(x, (1, groups, -1))
    y = b.node("InstanceNormalization", [rows, ones, zeros], epsilon=epsilon)
    affine = (shape[1], 1, 1)
    y = b.mul(b.reshape(y, shape), b.learned(f"{name}.scale", affine, spread=0.1, mean=1.0))
    return b.add(y, b.learned(f"{name}.shift", affine, spread=0.1))


def matmul(b: ModelBuilder, size: int = 512, batch: int = 4) -> None:
    """Matrix products in sequence: of two inputs, with constants, and batched."""
    x = b.matmul(b.input("a", (1, size, size)), b.input("b", (1, size, size)))
    x = b.scaled(x, 4 / size)
    x = b.relu(b.linear(x, 2 * size))
    x = b.relu(b.linear(x, size, gain=2))
    parts = b.reshape(x, (batch, size // batch, size))
    products = b.matmul(parts, b.transpose(parts, (0, 2, 1)))
    b.output(b.scaled(products, 1 / size))


def _encode(
    b: ModelBuilder, x: str, sizes: Transformer, *, epsilon: float, key_bias: bool = True
) -> str:
    """Layers with a norm before each branch, and a final norm."""
    for _ in range(sizes.layers):
        y = b.layer_norm(x, epsilon=epsilon)
        x = b.add(x, attention(b, y, sizes.heads, key_bias=key_bias))
        y = b.gelu(b.linear(b.layer_norm(x, epsilon=epsilon), sizes.widened))
        x = b.add(x, b.linear(y, sizes.features, gain=2))
    return b.layer_norm(x, epsilon=epsilon)


def attention(
    b: ModelBuilder, x: str, heads: int, *, source: str = "", bias: bool = True,
    key_bias: bool = True,
) -> str:  # fmt: skip
    """Attention of x to itself, or to the tokens of `source`; `bias` adds biases to q, k and v."""
    source, features = source or x, b.shapes[x][-1]
    queries = _split_heads(b, b.linear(x, features, bias=bias), heads)
    keys = b.linear(source, features, bias=bias and key_bias)
    values = _split_heads(b, b.linear(source, features, bias=bias), heads)
    turned = _split_heads(b, keys, heads, turned=True)
    return b.linear(_attend(b, queries, turned, values), features)


def _split_heads(b: ModelBuilder, x: str, heads: int, *, turned: bool = False) -> str:
    """(1, tokens, features) as (1, heads, tokens, each), or `turned` (1, heads, each, tokens)."""
    n, tokens, features = b.shapes[x]
    apart = b.reshape(x, (n, tokens, heads, features // heads))
    return b.transpose(apart, (0, 2, 3, 1) if turned else (0, 2, 1, 3))


def _attend(b: ModelBuilder, queries: str, keys: str, values: str) -> str:
    """Attention by head with transposed keys; joined to (1, tokens, features)."""
    n, heads, tokens, each = b.shapes[queries]
    scores = b.scaled(b.matmul(queries, keys), each**-0.5)
    mixed = b.matmul(b.softmax(scores), values)
    return b.reshape(b.transpose(mixed, (0, 2, 1, 3)), (n, tokens, heads * each))
