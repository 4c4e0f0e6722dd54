"""A network: a model whose nodes have become operators, with weights, in topological order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256

from codl.ir.constants import array_digest
from codl.ir.op_text import to_text
from codl.ir.ops.base import Array, Op, Weights
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.region import Shape


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
    and that never change, shaped nchw. `states` are tensors that layers read and write in place:
    they begin as zeros and last from run to run (see `Op.states`). All tensors are float32; `types`
    are those (NumPy's names) as which callers see the inputs and outputs that the model has
    otherwise. `content` is the digest of one whose weights are elsewhere, as a bundle's are.
    """

    name: str
    layers: tuple[Layer, ...]
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    constants: Mapping[str, Array] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, Shape] = field(default_factory=dict)
    content: str = ""

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        fixed = {name: Shape(*value.shape) for name, value in self.constants.items()}
        made = {x.output: x.op.output for x in self.layers}
        return {**self.inputs, **fixed, **self.states, **made}

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
        named = [(f"{x.name} {name}", own) for x in self.layers for name, own in x.weights.items()]
        arrays = sorted([*named, *self.constants.items()], key=lambda one: one[0])
        lines = [self.digest, *(f"{name} {array_digest(own)}" for name, own in arrays)]
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
        found: dict[str, list[Layer]] = {}
        for layer in self.layers:
            for name in dict.fromkeys(layer.inputs):
                found.setdefault(name, []).append(layer)
        return found
