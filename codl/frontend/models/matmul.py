"""Matrix products in a row: of two inputs, of several matrices at once, and with constants."""

from __future__ import annotations

from codl.frontend.models.builder import ModelBuilder

SIZE, BATCH = 512, 4


def describe(b: ModelBuilder) -> None:
    x = b.matmul(b.input("a", (1, SIZE, SIZE)), b.input("b", (1, SIZE, SIZE)))
    x = b.scaled(x, 4 / SIZE)
    x = b.relu(b.linear(x, 2 * SIZE))
    x = b.relu(b.linear(x, SIZE, gain=2))
    parts = b.reshape(x, (BATCH, SIZE // BATCH, SIZE))
    products = b.matmul(parts, b.transpose(parts, (0, 2, 1)))
    b.output(b.scaled(products, 1 / SIZE))
