"""A subgraph without codl operators, as an ONNX model that runs whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Values, Weights
from codl.ir.ops.nd import NdOp, Sizes

#: Names of inputs, before a number, and of the output, unlike any name in users' models.
INPUT, OUTPUT = "codl.in", "codl.out"
#: Settings of each ONNX Runtime session. The first keeps adjacent QuantizeLinear and
#: DequantizeLinear pairs, which it would merge with another scale and zero point. The second is
#: explained in `codl.frontend.graph.integer_products`.
EXACT = {"session.disable_double_qdq_remover": "1", "session.x64quantprecision": "1"}
#: Assumed FLOPs per element and node, whose work is unknown.
FLOPS = 16


@dataclass(frozen=True, kw_only=True)
class OnnxModel(NdOp):
    """Nodes of the types `nodes`, joined by +, between float32 tensors.

    `model` is an ONNX model with inputs of these `shapes` and one output of sizes `to`. Equal ops
    have an equal `digest` of the model.
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
        """`FLOPS` for each node and each element of inputs and output."""
        elements = sum(prod(sizes) for sizes in (*self.shapes, self.to))
        return FLOPS * elements * (1 + self.nodes.count("+"))

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        """The output by ONNX Runtime, in float32; ONNX's own reference has only some nodes."""
        import onnxruntime as ort  # other ops need no library

        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        for key, value in EXACT.items():
            options.add_session_config_entry(key, value)
        session = ort.InferenceSession(self.model, options, ["CPUExecutionProvider"])
        feeds = {f"{INPUT}{index}": x.astype(np.float32) for index, x in enumerate(inputs)}
        (value,) = session.run([OUTPUT], feeds)
        return np.asarray(value, np.float64)
