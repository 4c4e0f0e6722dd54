"""Builds ONNX models layer by layer, with weights made from a seed.

Weights follow He's rule for the activation behind them, so that activations keep about the same
spread from the first layer to the last, and outputs can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


class ModelBuilder:
    """Every method appends one node and returns the name of its output tensor."""

    def __init__(self, name: str, *, seed: int = 0) -> None:
        self.name = name
        self.seed = seed
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._channels: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        self._channels[name] = shape[1]
        return name

    def conv(self, x: str, oc: int, kernel: int, *, pad: int, stride: int = 1, bias: bool = True,
             groups: int = 1) -> str:  # fmt: skip
        name = f"conv{self._count('Conv') + 1}"
        shape = (oc, self._channels[x] // groups, kernel, kernel)
        inputs = [x, self._constant(f"{name}.weight", self._he(f"{name}.weight", shape))]
        if bias:
            values = self._random(f"{name}.bias").uniform(-0.1, 0.1, oc)
            inputs.append(self._constant(f"{name}.bias", values))
        attributes = {
            "kernel_shape": [kernel] * 2,
            "pads": [pad] * 4,
            "strides": [stride] * 2,
            "group": groups,
        }
        return self._add("Conv", name, inputs, oc, **attributes)

    def batch_norm(self, x: str, *, scale: float = 1.0) -> str:
        """`scale` is the mean one; below 1 at the end of a residual branch, so that sums of many
        branches do not grow.
        """
        name, c = f"bn{self._count('BatchNormalization') + 1}", self._channels[x]
        random = self._random(name)
        values = {
            "scale": scale * random.uniform(0.9, 1.1, c),
            "shift": random.uniform(-0.1, 0.1, c),
            "mean": random.uniform(-0.1, 0.1, c),
            "var": random.uniform(0.8, 1.2, c),
        }
        inputs = [x, *(self._constant(f"{name}.{key}", value) for key, value in values.items())]
        return self._add("BatchNormalization", name, inputs, c)

    def relu(self, x: str) -> str:
        return self._add("Relu", f"relu{self._count('Relu') + 1}", [x], self._channels[x])

    def leaky_relu(self, x: str, alpha: float) -> str:
        name = f"leaky{self._count('LeakyRelu') + 1}"
        return self._add("LeakyRelu", name, [x], self._channels[x], alpha=alpha)

    def clip(self, x: str, low: float, high: float) -> str:
        name = f"clip{self._count('Clip') + 1}"
        bounds = [self._constant(f"{name}.{k}", np.float32(v)) for k, v in
                  (("low", low), ("high", high))]  # fmt: skip
        return self._add("Clip", name, [x, *bounds], self._channels[x])

    def add(self, x: str, y: str) -> str:
        return self._add("Add", f"add{self._count('Add') + 1}", [x, y], self._channels[x])

    def global_average_pool(self, x: str) -> str:
        name = f"mean{self._count('GlobalAveragePool') + 1}"
        return self._add("GlobalAveragePool", name, [x], self._channels[x])

    def max_pool(self, x: str, kernel: int, stride: int, *, pad: int = 0) -> str:
        name = f"pool{self._count('MaxPool') + 1}"
        attributes = {
            "kernel_shape": [kernel] * 2,
            "strides": [stride] * 2,
            "pads": [pad] * 4,
        }
        return self._add("MaxPool", name, [x], self._channels[x], **attributes)

    def concat(self, xs: Sequence[str]) -> str:
        name = f"concat{self._count('Concat') + 1}"
        return self._add("Concat", name, list(xs), sum(self._channels[x] for x in xs), axis=1)

    def flatten(self, x: str, features: int) -> str:
        return self._add("Flatten", f"flatten{self._count('Flatten') + 1}", [x], features, axis=1)

    def fully_connected(self, x: str, oc: int) -> str:
        name = f"fc{self._count('Gemm') + 1}"
        weight = self._he(f"{name}.weight", (oc, self._channels[x]))
        bias = self._random(f"{name}.bias").uniform(-0.1, 0.1, oc)
        inputs = [
            x,
            self._constant(f"{name}.weight", weight),
            self._constant(f"{name}.bias", bias),
        ]
        return self._add("Gemm", name, inputs, oc, transB=1)

    def output(self, x: str) -> None:
        """Make a tensor an output of the model."""
        self._outputs.append(helper.make_tensor_value_info(x, TensorProto.FLOAT, None))

    def build(self) -> onnx.ModelProto:
        results = self._outputs
        graph = helper.make_graph(self._nodes, self.name, self._inputs, results, self._constants)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, producer_name="codl", ir_version=8)

    def _add(self, kind: str, name: str, inputs: list[str], channels: int, **attrs: object) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attrs))
        self._channels[name] = channels
        return name

    def _count(self, kind: str) -> int:
        return sum(node.op_type == kind for node in self._nodes)

    def _random(self, name: str) -> np.random.Generator:
        """A generator that depends on the seed and the tensor's name, not on the order."""
        return np.random.default_rng([self.seed, crc32(f"{self.name}/{name}".encode())])

    def _he(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        spread = np.float32(np.sqrt(2.0 / np.prod(shape[1:])))
        values: NDArray[np.float32] = self._random(name).standard_normal(shape, np.float32)
        values *= spread
        return values

    def _constant(self, name: str, value: NDArray[np.floating]) -> str:
        self._constants.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name
