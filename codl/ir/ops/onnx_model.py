"""A part of a model that codl has no operators for: an ONNX model of its own, run whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from codl.ir.ops.base import Values, Weights
from codl.ir.ops.nd import NdOp, Sizes

if TYPE_CHECKING:
    import onnx

#: What the inputs of such a model are called, with a number behind, and its output: as no tensor of
#: a user's model is.
INPUT, OUTPUT = "codl.in", "codl.out"
#: Settings of every session. ONNX Runtime makes one pair of QuantizeLinear and DequantizeLinear of
#: two that follow each other, by a scale and a zero point of its own: other numbers come out. The
#: second is what `codl.frontend.graph.integer_products` is about.
EXACT = {"session.disable_double_qdq_remover": "1", "session.x64quantprecision": "1"}
#: Operations on an element that a node is taken for: its work is unknown.
FLOPS = 16


@dataclass(frozen=True, kw_only=True)
class OnnxModel(NdOp):
    """Nodes of these types (`nodes`, joined by +) between float32 tensors.

    `model` is an ONNX model from inputs of these `shapes` to one output of the sizes `to`. Equal
    ones have an equal `digest`, by which they are told apart.
    """

    to: Sizes
    nodes: str
    digest: str
    model: bytes = field(default=b"", compare=False, repr=False, metadata={"text": False})

    kind: ClassVar[str] = "onnx"
    examples: ClassVar[tuple[str, ...]] = (
        "onnx in=1x8x14 to=1x8x14 nodes=CumSum digest=0123456789abcdef",
    )
    fuses_activations: ClassVar[bool] = False

    @property
    def out_sizes(self) -> Sizes:
        return self.to

    @property
    def flops(self) -> int:
        """As if every node did a little on every element that comes in or goes out."""
        elements = sum(prod(sizes) for sizes in (*self.shapes, self.to))
        return FLOPS * elements * (1 + self.nodes.count("+"))

    @cached_property
    def proto(self) -> onnx.ModelProto:
        from onnx import load_from_string

        return load_from_string(self.model)

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        """By ONNX's own reference, in float32."""
        from onnx.reference import ReferenceEvaluator

        feed = {
            f"{INPUT}{index}": value.reshape(sizes).astype(np.float32)
            for index, (value, sizes) in enumerate(zip(inputs, self.shapes, strict=True))
        }
        (value,) = ReferenceEvaluator(self.proto).run([OUTPUT], feed)
        return np.asarray(value, np.float64).reshape(self.output)
