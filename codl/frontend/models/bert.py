"""A BERT encoder (Devlin et al. 2019) of 4 layers, 256 features and 4 heads, on 128 tokens.

The sizes are those published as BERT-mini. Its input are the tokens' embeddings.
"""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

LAYERS, TOKENS, FEATURES, HEADS = 4, 128, 256, 4
#: Features between the two products behind attention, over `FEATURES`.
WIDENED = 4


def describe(b: ModelBuilder) -> None:
    x = b.layer_norm(b.input("embeddings", (1, TOKENS, FEATURES)))
    for _ in range(LAYERS):
        x = b.layer_norm(b.add(_attention(b, x), x))
        y = b.gelu(b.linear(x, WIDENED * FEATURES))
        x = b.layer_norm(b.add(b.linear(y, FEATURES, gain=2), x))
    b.output(x)


def _attention(b: ModelBuilder, x: str) -> str:
    each = FEATURES // HEADS
    parts = [b.reshape(b.linear(x, FEATURES), (1, TOKENS, HEADS, each)) for _ in range(3)]
    queries, values = (b.transpose(part, (0, 2, 1, 3)) for part in (parts[0], parts[2]))
    scores = b.matmul(queries, b.transpose(parts[1], (0, 2, 3, 1)))
    mixed = b.matmul(b.softmax(b.scaled(scores, each**-0.5)), values)
    joined = b.reshape(b.transpose(mixed, (0, 2, 1, 3)), (1, TOKENS, FEATURES))
    return b.linear(joined, FEATURES)
