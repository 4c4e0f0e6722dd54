"""What transformers have in common, as exporters write it: attention and a pair of products."""

from __future__ import annotations

from dataclasses import dataclass

from codl.frontend.models.builder import ModelBuilder


@dataclass(frozen=True)
class Transformer:
    """`layers` of `features` with as many `heads`; `widened` features between the two products."""

    layers: int
    features: int
    heads: int
    widened: int


def split_heads(b: ModelBuilder, x: str, heads: int, *, turned: bool = False) -> str:
    """(1, tokens, features) as (1, heads, tokens, each), or `turned` (1, heads, each, tokens)."""
    n, tokens, features = b.shapes[x]
    apart = b.reshape(x, (n, tokens, heads, features // heads))
    return b.transpose(apart, (0, 2, 3, 1) if turned else (0, 2, 1, 3))


def attend(b: ModelBuilder, queries: str, keys: str, values: str, mask: str = "") -> str:
    """Attention of heads, with turned keys; joined to (1, tokens, features) again."""
    n, heads, tokens, each = b.shapes[queries]
    scores = b.scaled(b.matmul(queries, keys), each**-0.5)
    scores = b.add(scores, mask) if mask else scores
    mixed = b.matmul(b.softmax(scores), values)
    return b.reshape(b.transpose(mixed, (0, 2, 1, 3)), (n, tokens, heads * each))


def attention(
    b: ModelBuilder,
    x: str,
    heads: int,
    *,
    source: str = "",
    bias: bool = True,
    key_bias: bool = True,
) -> str:
    """Of x to itself, or to the tokens of a `source`; `bias` is that of q, k and v."""
    source, features = source or x, b.shapes[x][-1]
    queries = split_heads(b, b.linear(x, features, bias=bias), heads)
    keys = b.linear(source, features, bias=bias and key_bias)
    values = split_heads(b, b.linear(source, features, bias=bias), heads)
    return b.linear(attend(b, queries, split_heads(b, keys, heads, turned=True), values), features)


def encode(
    b: ModelBuilder, x: str, sizes: Transformer, *, epsilon: float, key_bias: bool = True
) -> str:
    """Layers with a norm in front of every branch, and one behind all."""
    for _ in range(sizes.layers):
        y = b.layer_norm(x, epsilon=epsilon)
        x = b.add(x, attention(b, y, sizes.heads, key_bias=key_bias))
        y = b.gelu(b.linear(b.layer_norm(x, epsilon=epsilon), sizes.widened))
        x = b.add(x, b.linear(y, sizes.features, gain=2))
    return b.layer_norm(x, epsilon=epsilon)
