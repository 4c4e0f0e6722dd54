"""BERT base (Devlin et al. 2019): 12 layers, 768 features and 12 heads, on 128 tokens.

Its input are the tokens' embeddings.
"""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.transformer import Transformer, attention

BASE = Transformer(layers=12, features=768, heads=12, widened=3072)
TOKENS, EPSILON = 128, 1e-12


def describe(b: ModelBuilder, sizes: Transformer = BASE, tokens: int = TOKENS) -> None:
    x = b.layer_norm(b.input("embeddings", (1, tokens, sizes.features)), epsilon=EPSILON)
    for _ in range(sizes.layers):
        x = b.layer_norm(b.add(attention(b, x, sizes.heads), x), epsilon=EPSILON)
        y = b.gelu(b.linear(x, sizes.widened))
        x = b.layer_norm(b.add(b.linear(y, sizes.features, gain=2), x), epsilon=EPSILON)
    b.output(x)
