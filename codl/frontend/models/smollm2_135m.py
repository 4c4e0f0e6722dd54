"""SmolLM2-135M (Ben Allal et al. 2025): 128 tokens without a cache, to the logits of the next one.

A Llama. Its input are the tokens' embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.transformer import Transformer, attend, split_heads

SMALL = Transformer(layers=30, features=576, heads=9, widened=1536)
#: Heads of keys and values, which groups of queries' heads share.
GROUPS = 3
TOKENS, WORDS, EPSILON, THETA = 128, 49152, 1e-5, 100000.0


@dataclass(frozen=True)
class Tables:
    """Names of constants: what the angles of tokens' places turn by, and what no token may see."""

    cos: str
    sin: str
    mask: str


def describe(
    b: ModelBuilder, sizes: Transformer = SMALL, tokens: int = TOKENS, words: int = WORDS
) -> None:
    x = b.input("embeddings", (1, tokens, sizes.features))
    tables = _tables(b, tokens, sizes.features // sizes.heads)
    for _ in range(sizes.layers):
        x = b.add(x, _attention(b, _rms_norm(b, x), sizes, tables))
        y = _rms_norm(b, x)
        gate = b.linear(y, sizes.widened, bias=False)
        gate = b.mul(gate, b.node("Sigmoid", [gate]))
        y = b.mul(gate, b.linear(y, sizes.widened, bias=False))
        x = b.add(x, b.linear(y, sizes.features, bias=False, gain=2))
    last = b.part(_rms_norm(b, x), 1, tokens - 1, tokens)
    b.output(b.linear(last, words, bias=False))


def _attention(b: ModelBuilder, x: str, sizes: Transformer, tables: Tables) -> str:
    features = sizes.features
    narrow = features // sizes.heads * GROUPS
    queries, keys, values = (
        split_heads(b, b.linear(x, width, bias=False), heads)
        for width, heads in ((features, sizes.heads), (narrow, GROUPS), (narrow, GROUPS))
    )
    queries, keys = _turned(b, queries, tables), _turned(b, keys, tables)
    keys, values = (_repeated(b, part, sizes.heads // GROUPS) for part in (keys, values))
    joined = attend(b, queries, b.transpose(keys, (0, 1, 3, 2)), values, tables.mask)
    return b.linear(joined, features, bias=False)


def _repeated(b: ModelBuilder, x: str, times: int) -> str:
    """Every head as often as queries share it."""
    n, heads, tokens, each = b.shapes[x]
    apart = b.reshape(x, (n, heads, 1, tokens, each))
    sizes = b.constant(f"{apart}.sizes", np.array((n, heads, times, tokens, each), np.int64))
    return b.reshape(b.node("Expand", [apart, sizes]), (n, heads * times, tokens, each))


def _turned(b: ModelBuilder, x: str, tables: Tables) -> str:
    """x * cos + (its halves exchanged, one of them negated) * sin."""
    each = b.shapes[x][3]
    first, second = b.part(x, 3, 0, each // 2), b.part(x, 3, each // 2, each)
    exchanged = b.concat([b.node("Neg", [second]), first], axis=3)
    return b.add(b.mul(x, tables.cos), b.mul(exchanged, tables.sin))


def _rms_norm(b: ModelBuilder, x: str) -> str:
    """x over its root mean square, times a scale for every feature."""
    name = f"{x}.rms"
    two = b.constant(f"{name}.two", np.float32(2))
    square = b.node("ReduceMean", [b.node("Pow", [x, two])], axes=[-1])
    epsilon = b.constant(f"{name}.epsilon", np.float32(EPSILON))
    root = b.node("Reciprocal", [b.node("Sqrt", [b.add(square, epsilon)])])
    scale = b.learned(f"{name}.scale", (b.shapes[x][-1],), spread=0.1, mean=1.0)
    return b.mul(scale, b.mul(x, root))


def _tables(b: ModelBuilder, tokens: int, each: int) -> Tables:
    frequencies = THETA ** -(np.arange(0, each, 2) / each)
    angles = np.tile(np.arange(tokens)[:, None] * frequencies, 2)[None, None]
    unseen = np.triu(np.full((tokens, tokens), np.finfo(np.float32).min), 1)[None, None]
    values = {"cos": np.cos(angles), "sin": np.sin(angles), "mask": unseen}
    return Tables(**{name: b.constant(name, v.astype(np.float32)) for name, v in values.items()})
