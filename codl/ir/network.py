"""A network: a model whose nodes have become operators, with weights, in topological order.

Products may be written out as partial sums: two terms, and a sum behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import MismatchError, UnsupportedError
from codl.ir.constants import array_digest
from codl.ir.op_text import to_text
from codl.ir.ops.base import Activation, Array, Op, Weights
from codl.ir.ops.matmul_terms import TERMS, Terms
from codl.ir.ops.movement import Reshape
from codl.ir.ops.nd import Sizes
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.ops.reductions import Reduce
from codl.ir.region import Shape

#: Integers that float32 tells apart.
EXACT = 1 << 24


def as_float32(name: str, value: NDArray[Any]) -> Array:
    """Numbers as tensors hold them; raises `UnsupportedError` for integers that they cannot."""
    if value.dtype.kind in "iu":
        check_exact(name, value)
    return np.asarray(value, np.float32)


def input_as_float32(name: str, value: NDArray[Any], type_: str) -> Array:
    """An input of a model, which declares a type for it, as tensors hold it.

    Raises `UnsupportedError` for float64 that float32 has no number for, or none nearer than 1.
    """
    with np.errstate(over="ignore", under="ignore"):
        held = as_float32(name, value)
    if value.dtype.kind != "f" or value.dtype.itemsize <= 4:
        return held
    lost = np.isfinite(value) & ~np.isfinite(held)
    if type_ == "float64":
        lost |= (np.abs(value) > EXACT) & (held != value) & np.isfinite(value)
    if lost.any():
        raise UnsupportedError(
            f"The input {name!r} has {value[lost][0]!r}, which float32 cannot hold: codl computes "
            f"in float32, where numbers above {EXACT} are rounded. Subtract or scale it before."
        )
    return held


def output_as(name: str, value: Array, type_: str) -> NDArray[Any]:
    """An output in the type that a model declares.

    Raises `UnsupportedError` for integers so large that float32 may have rounded them.
    """
    dtype = np.dtype(type_)
    if dtype.kind in "iu" and dtype.itemsize > 2:
        largest = float(np.fmax.reduce(np.abs(value), axis=None, initial=0.0))
        if largest >= EXACT:
            raise UnsupportedError(
                f"The integer output {name!r} reaches {largest:g}; codl computes in float32, which "
                f"tells integers apart below {EXACT}."
            )
    return value.astype(dtype)


def check_exact(name: str, value: NDArray[Any]) -> None:
    """Raise `UnsupportedError` for a tensor of integers beyond what float32 tells apart."""
    if not value.size:
        return
    largest = max(float(value.max()), -float(value.min()))
    if not largest <= EXACT:
        raise UnsupportedError(
            f"The integer tensor {name!r} reaches {largest:g}; float32 is exact up to {EXACT}."
        )


@dataclass(frozen=True)
class Layer:
    """One operator in its place: the tensors it reads and writes, and its weights."""

    name: str
    op: Op
    inputs: tuple[str, ...]
    output: str
    weights: Weights

    @property
    def structure(self) -> Layer:
        """The same without weights, those inside an ONNX model included."""
        op = replace(self.op, model=b"") if isinstance(self.op, OnnxModel) else self.op
        return replace(self, op=op, weights={})


@dataclass(frozen=True)
class Network:
    """Layers in topological order.

    `shapes` knows every tensor as nchw; `outputs` gives every output its holding tensor and the
    shape that the model declares for it. `constants` are tensors that layers read like any other
    and that never change, shaped nchw. All tensors are float32; `types` are those (NumPy's names)
    as which callers see the inputs and outputs that the model has otherwise. `content` is the
    digest of one whose weights are elsewhere, as a bundle's are.
    """

    name: str
    layers: tuple[Layer, ...]
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    constants: Mapping[str, Array] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    content: str = ""

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        fixed = {name: Shape(*value.shape) for name, value in self.constants.items()}
        made = {x.output: x.op.output for x in self.layers}
        return {**self.inputs, **fixed, **made}

    @cached_property
    def digest(self) -> str:
        """Identifies the structure (not the weights), as plans and datasets refer to it."""
        lines = [
            f"{layer.name} {to_text(layer.op)} {','.join(layer.inputs)} {layer.output}"
            for layer in self.layers
        ]
        lines += [f"{name} {holder}" for name, (holder, _) in self.outputs.items()]
        return sha256("\n".join(lines).encode()).hexdigest()[:16]

    @cached_property
    def content_digest(self) -> str:
        """Identifies structure and weights; reads every weight once."""
        if self.content:
            return self.content
        named = [(f"{x.name} {name}", w) for x in self.layers for name, w in x.weights.items()]
        arrays = sorted([*named, *self.constants.items()], key=lambda item: item[0])
        lines = [self.digest, *(f"{name} {array_digest(w)}" for name, w in arrays)]
        return sha256("\n".join(lines).encode()).hexdigest()[:16]

    @property
    def structure(self) -> Network:
        """The same without weights: all that planning looks at, and some kilobytes."""
        return replace(self, layers=tuple(layer.structure for layer in self.layers))

    @cached_property
    def lone(self) -> frozenset[str]:
        """Constants that one layer alone reads, and that are no result.

        Each processor has what it needs of them from the start, as that layer wants it.
        """
        results = {holder for holder, _ in self.outputs.values()}
        return frozenset(
            name for name in self.constants if name not in results and len(self.readers(name)) == 1
        )

    def readers(self, tensor: str) -> list[Layer]:
        return self._readers.get(tensor, [])

    @cached_property
    def _readers(self) -> Mapping[str, list[Layer]]:
        readers: dict[str, list[Layer]] = {}
        for layer in self.layers:
            for name in dict.fromkeys(layer.inputs):
                readers.setdefault(name, []).append(layer)
        return readers


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
    terms = terms_of(layer, makers, cut)
    if terms is None:
        raise MismatchError(
            f"The plan has {layer.name!r} as partial sums of the features before and behind "
            f"{cut}; it is a {layer.op.kind}, which is not cut there."
        )
    product: Any = layer.op
    name, op = terms
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
