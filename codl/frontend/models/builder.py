"""A builder of ONNX models, layer by layer, with seeded random weights.

Weights follow He's rule for the activation behind, so values keep about the same spread through all
layers, and outputs can be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference

from codl.frontend.graph.weights import LARGE, Model
from codl.ir.onnx_node import stand_in

OPSET = 17
#: Constants with at most this many elements are given to shape inference.
SIZES = 16
#: A height and a width; one number where they are equal.
IntPair: TypeAlias = int | tuple[int, int]
#: Padding above, left, below and right; one number if all are equal.
Pads: TypeAlias = int | tuple[int, int, int, int]
#: Variance of a product's weights times its number of inputs: if the activation behind zeroes half
#: of the outputs, and if it keeps all.
HALF_KEPT, ALL_KEPT = 2.0, 1.0
#: Names of nodes, before a number; other nodes are named by type.
WORDS: Mapping[str, str] = {
    "AveragePool": "avgpool",
    "BatchNormalization": "bn",
    "ConvTranspose": "deconv",
    "Gemm": "fc",
    "GlobalAveragePool": "mean",
    "LayerNormalization": "layer",
    "LeakyRelu": "leaky",
    "MaxPool": "pool",
}


class ModelBuilder:
    """Builds a model; methods append a node and return the name of its output.

    Without `weights`, the model declares constants as inputs, so that its structure is built fast.
    If not `drawn`, large weights are 0.
    """

    def __init__(
        self, name: str, *, seed: int = 0, weights: bool = True, drawn: bool = True
    ) -> None:
        self.name = name
        self.seed = seed
        self.shapes: dict[str, tuple[int, ...]] = {}
        #: Number of elements of all weights.
        self.parameters = 0
        self._weights, self._drawn = weights, drawn
        self._nodes: list[onnx.NodeProto] = []
        #: Number of nodes by type.
        self._kinds: Counter[str] = Counter()
        self._constants: dict[str, NDArray[Any] | None] = {}
        self.inputs: list[str] = []
        self._outputs: list[str] = []

    def input(self, name: str, shape: Sequence[int]) -> str:
        """A float32 input of the model."""
        self.shapes[name] = tuple(shape)
        self.inputs.append(name)
        return name

    def conv(self, x: str, oc: int, kernel: IntPair, *, pad: Pads, stride: IntPair = 1,
             dilation: IntPair = 1, bias: bool = True, groups: int = 1,
             gain: float = HALF_KEPT) -> str:  # fmt: skip
        shape = (oc, self.shapes[x][1] // groups, *_pair(kernel))
        attributes: dict[str, Any] = {**_window(kernel, stride, pad), "group": groups}
        if _pair(dilation) != (1, 1):
            attributes["dilations"] = _pair(dilation)
        return self._product("Conv", x, shape, oc, gain / prod(shape[1:]), bias=bias, **attributes)

    def conv1d(self, x: str, oc: int, kernel: int, *, pad: int, stride: int = 1) -> str:
        """Convolution along the last of three axes."""
        shape = (oc, self.shapes[x][1], kernel)
        window: dict[str, Any] = {"kernel_shape": [kernel], "strides": [stride], "pads": [pad, pad]}
        return self._product("Conv", x, shape, oc, ALL_KEPT / prod(shape[1:]), **window)

    def conv_transpose(self, x: str, oc: int, kernel: IntPair, *, stride: IntPair, pad: Pads,
                       bias: bool = True) -> str:  # fmt: skip
        """Transposed convolution; `pad` is cropped from the full result."""
        shape = (self.shapes[x][1], oc, *_pair(kernel))
        variance = HALF_KEPT / (shape[0] * prod(_pair(kernel)) / prod(_pair(stride)))
        window = _window(kernel, stride, pad)
        return self._product("ConvTranspose", x, shape, oc, variance, bias=bias, **window)

    def _product(self, kind: str, x: str, shape: tuple[int, ...], oc: int, variance: float, *,
                 bias: bool = True, **attributes: Any) -> str:  # fmt: skip
        """A node with a weight of a shape and variance, and a bias for `oc` channels."""
        name = self._numbered(kind)
        inputs = [x, self._normal(f"{name}.weight", shape, variance)]
        if bias:
            inputs.append(self._uniform(f"{name}.bias", oc, -0.1, 0.1))
        return self.node(kind, inputs, name=name, **attributes)

    def batch_norm(self, x: str, *, scale: float = 1.0) -> str:
        """Batch norm; `scale` is the mean of its scales.

        A scale below 1 at the end of residual branches keeps sums of many branches from growing.
        """
        spread, name = (-0.1, 0.1), self._numbered("BatchNormalization")
        ends = {"scale": (scale * 0.9, scale * 1.1), "shift": spread, "mean": spread,
                "var": (0.8, 1.2)}  # fmt: skip
        c = self.shapes[x][1]
        inputs = [self._uniform(f"{name}.{key}", c, *bounds) for key, bounds in ends.items()]
        return self.node("BatchNormalization", [x, *inputs], name=name)

    def instance_norm(self, x: str) -> str:
        name = self._numbered("InstanceNormalization", "instance")
        return self._scaled_norm("InstanceNormalization", name, x, self.shapes[x][1])

    def layer_norm(self, x: str, *, epsilon: float | None = None) -> str:
        """Layer norm over the last axis; by default with ONNX's epsilon."""
        kind, attributes = "LayerNormalization", {} if epsilon is None else {"epsilon": epsilon}
        return self._scaled_norm(
            kind, self._numbered(kind), x, self.shapes[x][-1], axis=-1, **attributes
        )

    def _scaled_norm(self, kind: str, name: str, x: str, size: int, **attributes: Any) -> str:
        scale = self._uniform(f"{name}.scale", size, 0.9, 1.1)
        shift = self._uniform(f"{name}.shift", size, -0.1, 0.1)
        return self.node(kind, [x, scale, shift], name=name, **attributes)

    def relu(self, x: str) -> str:
        return self.node("Relu", [x])

    def leaky_relu(self, x: str, alpha: float) -> str:
        return self.node("LeakyRelu", [x], alpha=alpha)

    def clip(self, x: str, low: float, high: float) -> str:
        bounds = {"low": np.float32(low), "high": np.float32(high)}
        return self._with_constants("Clip", [x], bounds)

    def _with_constants(
        self, kind: str, inputs: list[str], values: Mapping[str, Any], **attributes: Any
    ) -> str:
        """A node with own constants as its last inputs."""
        name = self._numbered(kind)
        constants = [self.constant(f"{name}.{key}", value) for key, value in values.items()]
        return self.node(kind, [*inputs, *constants], name=name, **attributes)

    def add(self, x: str, y: str) -> str:
        return self.node("Add", [x, y])

    def mul(self, x: str, y: str) -> str:
        return self.node("Mul", [x, y])

    def scaled(self, x: str, factor: float) -> str:
        return self._with_constants("Mul", [x], {"factor": np.float32(factor)})

    def shifted(self, x: str, offset: float) -> str:
        return self._with_constants("Add", [x], {"offset": np.float32(offset)})

    def silu(self, x: str) -> str:
        """x * sigmoid(x), as exporters write it."""
        return self.mul(x, self.node("Sigmoid", [x]))

    def gelu(self, x: str) -> str:
        """x / 2 * (1 + erf(x / sqrt(2))), as exporters write it."""
        inner = self.shifted(self.node("Erf", [self.scaled(x, 0.5**0.5)]), 1.0)
        return self.scaled(self.mul(x, inner), 0.5)

    def global_average_pool(self, x: str) -> str:
        return self.node("GlobalAveragePool", [x])

    def max_pool(self, x: str, kernel: IntPair, stride: IntPair, *, pad: Pads = 0) -> str:
        return self.node("MaxPool", [x], **_window(kernel, stride, pad))

    def average_pool(self, x: str, kernel: IntPair, stride: IntPair, *, pad: Pads = 0) -> str:
        """Average pooling that does not count padding."""
        return self.node("AveragePool", [x], **_window(kernel, stride, pad))

    def upsample(self, x: str, factor: IntPair) -> str:
        """Repeat each pixel along rows and columns, `factor` times."""
        scales = {"scales": np.array([1, 1, *_pair(factor)], np.float32)}
        attributes = {"mode": "nearest", "nearest_mode": "floor"}
        attributes["coordinate_transformation_mode"] = "asymmetric"
        return self._with_constants("Resize", [x, ""], scales, **attributes)

    def concat(self, xs: Sequence[str], axis: int = 1) -> str:
        return self.node("Concat", list(xs), axis=axis)

    def part(self, x: str, axis: int, start: int, stop: int) -> str:
        """Elements `start` to `stop` along an axis."""
        places = {"starts": [start], "ends": [stop], "axes": [axis]}
        bounds = {key: np.array(value, np.int64) for key, value in places.items()}
        return self._with_constants("Slice", [x], bounds)

    def flatten(self, x: str) -> str:
        return self.node("Flatten", [x], axis=1)

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        return self._with_constants("Reshape", [x], {"shape": np.array(shape, np.int64)})

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        return self.node("Transpose", [x], perm=list(perm))

    def softmax(self, x: str) -> str:
        """Softmax over the last axis."""
        return self.node("Softmax", [x], axis=-1)

    def matmul(self, x: str, y: str) -> str:
        return self.node("MatMul", [x, y])

    def linear(self, x: str, features: int, *, gain: float = ALL_KEPT, bias: bool = True) -> str:
        """A product of the last axis with a constant matrix, and a bias."""
        name, shape = self._numbered("MatMul"), (self.shapes[x][-1], features)
        weight = self._normal(f"{name}.weight", shape, gain / shape[0])
        x = self.node("MatMul", [x, weight], name=name)
        return self.add(x, self._uniform(f"{name}.bias", features, -0.1, 0.1)) if bias else x

    def learned(
        self, name: str, shape: tuple[int, ...], *, spread: float, mean: float = 0.0
    ) -> str:
        """Normally distributed weights without a product, such as positions of tokens."""
        return self._normal(name, shape, spread**2, mean)

    def fully_connected(self, x: str, oc: int) -> str:
        features = self.shapes[x][1]
        return self._product("Gemm", x, (oc, features), oc, HALF_KEPT / features, transB=1)

    def output(self, x: str) -> None:
        self._outputs.append(x)

    def node(self, kind: str, inputs: list[str], *, name: str = "", **attributes: object) -> str:
        """A node of any type; its only output has the node's name."""
        name = name or self._numbered(kind)
        node = helper.make_node(kind, inputs, [name], name=name, **attributes)
        self.shapes[name] = self._inferred(node)
        self._nodes.append(node)
        self._kinds[node.op_type] += 1
        return name

    def constant(self, name: str, value: NDArray[np.generic] | np.generic) -> str:
        """A size, bound or factor, which models without weights keep."""
        self._constants[name] = np.asarray(value)
        self.shapes[name] = np.shape(value)
        return name

    @property
    def gflops(self) -> float:
        """GFLOPs of convolutions and matrix products, two for each multiply-add."""
        return sum(_flops(node, self.shapes) for node in self._nodes) / 1e9

    def build(self) -> onnx.ModelProto:
        return self.model().whole()

    def model(self) -> Model:
        """The model with large constants outside the protobuf."""
        kept = {name: value for name, value in self._constants.items() if value is not None}
        missing = [name for name, value in self._constants.items() if value is None]
        every = (*self.inputs, *missing)
        inputs = [_info(name, self.shapes[name]) for name in every]
        outputs = [_info(name, self.shapes[name]) for name in self._outputs]
        graph = helper.make_graph(self._nodes, self.name, inputs, outputs)
        weights = {name: value for name, value in kept.items() if value.size > LARGE}
        for name, value in kept.items():
            if name in weights:
                stand_in(graph.initializer.add(), name, self._element(name), value.shape)
            else:
                graph.initializer.add().CopyFrom(numpy_helper.from_array(value, name))
        opset = [helper.make_opsetid("", OPSET)]
        proto = helper.make_model(graph, opset_imports=opset, producer_name="codl", ir_version=8)
        return Model(proto, weights)

    def _inferred(self, node: onnx.NodeProto) -> tuple[int, ...]:
        kinds = {
            name: helper.make_tensor_type_proto(self._element(name), self.shapes[name])
            for name in node.input
            if name
        }
        few = [name for name in kinds if prod(self.shapes[name]) <= SIZES]
        values = {
            name: numpy_helper.from_array(value, name)
            for name in few
            if (value := self._constants.get(name)) is not None
        }
        schema = onnx.defs.get_schema(node.op_type, OPSET)
        opset = [helper.make_opsetid("", OPSET)]
        types = shape_inference.infer_node_outputs(schema, node, kinds, values, opset_imports=opset)
        return tuple(dim.dim_value for dim in types[node.output[0]].tensor_type.shape.dim)

    def _element(self, name: str) -> int:
        value = self._constants.get(name)
        if value is None:
            return int(TensorProto.FLOAT)
        return int(helper.np_dtype_to_tensor_dtype(value.dtype))

    def _numbered(self, kind: str, word: str = "") -> str:
        """A name for the next node of a type."""
        return f"{word or WORDS.get(kind, kind.lower())}{self._kinds[kind] + 1}"

    def _random(self, name: str) -> np.random.Generator:
        """A generator that depends on the seed and the tensor's name, not on the order."""
        return np.random.default_rng([self.seed, crc32(f"{self.name}/{name}".encode())])

    def _normal(self, name: str, shape: tuple[int, ...], variance: float, mean: float = 0.0) -> str:
        self.parameters += prod(shape)
        if not self._weights:
            return self._declared(name, shape)
        if not self._drawn and prod(shape) > LARGE:
            return self.constant(name, np.zeros(shape, np.float32))
        values: NDArray[np.float32] = self._random(name).standard_normal(shape, np.float32)
        values *= np.float32(np.sqrt(variance))
        values += np.float32(mean)
        return self.constant(name, values)

    def _uniform(self, name: str, size: int, low: float, high: float) -> str:
        self.parameters += size
        if not self._weights:
            return self._declared(name, (size,))
        return self.constant(name, self._random(name).uniform(low, high, size).astype(np.float32))

    def _declared(self, name: str, shape: tuple[int, ...]) -> str:
        self._constants[name] = None
        self.shapes[name] = shape
        return name


def _pair(value: IntPair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _window(kernel: IntPair, stride: IntPair, pad: Pads) -> dict[str, Any]:
    pads = (pad,) * 4 if isinstance(pad, int) else pad
    return {"kernel_shape": _pair(kernel), "strides": _pair(stride), "pads": pads}


def _flops(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    out = prod(shapes[node.output[0]])
    if node.op_type == "Conv":  # weight (out, in / groups, rows, columns)
        return 2 * out * prod(shapes[node.input[1]][1:])
    if node.op_type == "ConvTranspose":  # each input goes to (out, rows, columns)
        return 2 * prod(shapes[node.input[0]]) * prod(shapes[node.input[1]][1:])
    if node.op_type in ("Gemm", "MatMul"):
        return 2 * out * shapes[node.input[0]][-1]
    return 0


def _info(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
