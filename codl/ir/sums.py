"""Products as partial sums: a network in which some are two terms, and a sum behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from codl.errors import MismatchError
from codl.ir.network import Layer, Network
from codl.ir.ops.base import Activation
from codl.ir.ops.matmul_terms import TERMS, Terms
from codl.ir.ops.nd import Sizes
from codl.ir.ops.reduce import Reduce
from codl.ir.ops.reshape import Reshape

#: What is behind a product's name in that of its sum, and in that of the tensor of its terms.
SUM, TERMS_OF = ".sum", ".terms"


def with_sums(network: Network, sums: Mapping[str, int]) -> Network:
    """The network with some products, by layer, as two terms over the features before and behind
    a place, and their sum.

    The terms keep the product's name; the sum computes the tensor that the product did. Raises
    `MismatchError` with a layer that is no such product, or cannot be cut there.
    """
    if not sums:
        return network
    makers = {layer.output: layer for layer in network.layers}
    for name in sums.keys() - {layer.name for layer in network.layers}:
        raise MismatchError(f"The plan has {name!r} as partial sums; there is no such layer.")
    layers = [
        new
        for layer in network.layers
        for new in (_written(layer, makers, sums[layer.name]) if layer.name in sums else (layer,))
    ]
    return replace(network, layers=tuple(_read(layers, network)))


def _read(layers: Sequence[Layer], network: Network) -> list[Layer]:
    """The layers without reshapes that nothing reads any more."""
    read = {holder for holder, _ in network.outputs.values()}
    kept = []
    for layer in reversed(layers):
        if layer.output in read or not isinstance(layer.op, Reshape):
            kept.append(layer)
            read.update(layer.inputs)
    return kept[::-1]


def terms_of(layer: Layer, makers: Mapping[str, Layer], cut: int) -> tuple[str, Terms] | None:
    """The tensor that the terms of a product read, and they themselves, cut at a place.

    `makers` are layers by their output. Reshapes of the features on the way are left out: so heads
    are cut as heads. None where the layer is no product that can be cut there.
    """
    views = ((name, terms_at(layer, shape, cut)) for name, shape in views_of(layer, makers))
    return next(((name, terms) for name, terms in views if terms.problem is None), None)


def views_of(layer: Layer, makers: Mapping[str, Layer]) -> list[tuple[str, Sizes]]:
    """The tensors that hold what a product with a constant matrix reads, and their sizes.

    Those before reshapes come first; of another layer there are none.
    """
    if layer.op.kind not in TERMS or len(layer.inputs) != 1:
        return []
    product: Any = layer.op
    name, shape = layer.inputs[0], product.shapes[0]
    views = [(name, shape)] if _is_flat(product.out_sizes) else []
    while views and isinstance(op := getattr(makers.get(name), "op", None), Reshape):
        if op.activation != Activation():
            break
        name, shape = makers[name].inputs[0], op.shapes[0]
        views.append((name, shape))
    return views[::-1]


def terms_at(layer: Layer, shape: Sizes, cut: int) -> Terms:
    """The terms of a product of `TERMS` whose features are seen as `shape`; cut anywhere."""
    product: Any = layer.op
    return TERMS[product.kind].of(product, shape, cut)


def _is_flat(sizes: Sizes) -> bool:
    """Whether they are rows and columns, perhaps of one image."""
    return len(sizes) == 2 or (len(sizes) == 3 and sizes[0] == 1)


def _written(layer: Layer, makers: Mapping[str, Layer], cut: int) -> Iterator[Layer]:
    found = terms_of(layer, makers, cut)
    if found is None:
        raise MismatchError(
            f"The plan has {layer.name!r} as partial sums of the features before and behind "
            f"{cut}; it is a {layer.op.kind}, which is not cut there."
        )
    product: Any = layer.op
    name, op = found
    output = layer.output + TERMS_OF
    yield replace(layer, op=op, inputs=(name,), output=output)
    total = Reduce(
        shapes=(op.out_sizes,),
        mode="sum",
        axes=(0,),
        keepdims=len(product.out_sizes) == 3,
        activation=product.activation,
    )
    yield Layer(layer.name + SUM, total, (output,), layer.output, {})
