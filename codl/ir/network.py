"""Networks: layers in topological order, each an operator with weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.ir.constants import array_digest
from codl.ir.op_text import to_text
from codl.ir.ops.base import Array, Op, Weights
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.region import Shape

#: Integers below this are exact in float32.
EXACT = 1 << 24


def as_float32(name: str, value: NDArray[Any]) -> Array:
    """An array as float32; raises `UnsupportedError` for integers that float32 rounds."""
    if value.dtype.kind in "iu":
        check_exact(name, value)
    return np.asarray(value, np.float32)


def input_as_float32(name: str, value: NDArray[Any], type_: str) -> Array:
    """A model's input of the declared type `type_`, as float32.

    Raises `UnsupportedError` for other types than numbers, and for float64 values beyond float32's
    range, or rounded by 1 or more.
    """
    if value.dtype.kind not in "biuf":
        raise UnsupportedError(f"The input {name!r} must hold numbers, got {value.dtype}.")
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
    """An output in its declared type; raises `UnsupportedError` for possibly rounded integers."""
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
    """Raise `UnsupportedError` for integers beyond float32's exact range."""
    if not value.size:
        return
    largest = max(float(value.max()), -float(value.min()))
    if not largest <= EXACT:
        raise UnsupportedError(
            f"The integer tensor {name!r} reaches {largest:g}; float32 is exact up to {EXACT}."
        )


@dataclass(frozen=True)
class Layer:
    """An operator with its weights, and the tensors that it reads and writes."""

    name: str
    op: Op
    inputs: tuple[str, ...]
    output: str
    weights: Weights

    @property
    def structure(self) -> Layer:
        """The layer without weights and without an ONNX subgraph's model."""
        op = replace(self.op, model=b"") if isinstance(self.op, OnnxModel) else self.op
        return replace(self, op=op, weights={})


@dataclass(frozen=True)
class Network:
    """Layers in topological order, with inputs, outputs and constants.

    `outputs` has each output's tensor, and the shape that the model declares. `constants` are nchw.
    All tensors are float32; `types` has NumPy type names of inputs and outputs declared otherwise.
    `content` is the content digest where the weights are elsewhere, as in a bundle.
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
        """Digest of the structure without weights, for plans and datasets."""
        lines = [
            f"{layer.name} {to_text(layer.op)} {','.join(layer.inputs)} {layer.output}"
            for layer in self.layers
        ]
        lines += [f"{name} {holder}" for name, (holder, _) in self.outputs.items()]
        return sha256("\n".join(lines).encode()).hexdigest()[:16]

    @cached_property
    def content_digest(self) -> str:
        """Digest of structure and weights; reads all weights once."""
        if self.content:
            return self.content
        named = [(f"{x.name} {name}", w) for x in self.layers for name, w in x.weights.items()]
        arrays = sorted([*named, *self.constants.items()], key=lambda item: item[0])
        lines = [self.digest, *(f"{name} {array_digest(w)}" for name, w in arrays)]
        return sha256("\n".join(lines).encode()).hexdigest()[:16]

    @property
    def structure(self) -> Network:
        """The network without weights, which is enough for planning."""
        return replace(self, layers=tuple(layer.structure for layer in self.layers))

    @cached_property
    def private_constants(self) -> frozenset[str]:
        """Constants with a single reader that are no outputs.

        Each processor gets its regions of them before the first run, in the reader's storage.
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
