"""Builds ONNX models layer by layer, with weights made from a seed.

Weights follow He's rule for the activation behind them, so that activations keep about the same
spread from the first layer to the last, and outputs can be compared.
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

from codl.errors import CodlError
from codl.frontend.graph.weights import LARGE, Model
from codl.ir.onnx_wire import stand_in

OPSET = 17
#: Constants of at most this many elements may be sizes or factors that shapes depend on.
SIZES = 16
#: A height and a width; one number where they are equal.
IntPair: TypeAlias = int | tuple[int, int]
#: Of a message of protobuf.
MOST_BYTES = (1 << 31) - 1
#: Rows or columns of padding above, on the left, below and on the right; or one number for all.
Pads: TypeAlias = int | tuple[int, int, int, int]
#: Variances of a product's weights, times its inputs: with half of the outputs made 0 behind it,
#: and with all of them kept.
HALF_KEPT, ALL_KEPT = 2.0, 1.0
#: What nodes are called, with their number behind; others as their kind.
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
    """Every method appends one node and returns the name of its output tensor.

    Without `weights` the model that is built declares its constants as inputs: its structure, made
    at once however many weights it has. With weights `apart`, too, and they are in `arrays`. Large
    weights that are not `drawn` are 0.
    """

    def __init__(self, name: str, *, seed: int = 0, weights: bool = True, apart: bool = False,
                 drawn: bool = True) -> None:  # fmt: skip
        self.name = name
        self.seed = seed
        #: What the names of nodes begin with from now on, where layers are given names.
        self.scope = ""
        self.shapes: dict[str, tuple[int, ...]] = {}
        #: How many numbers the weights are.
        self.parameters = 0
        self._weights, self._apart, self._drawn = weights, apart, drawn
        #: Weights that are apart, by name.
        self.arrays: dict[str, NDArray[np.float32]] = {}
        self._types: dict[str, int] = {}
        self._nodes: list[onnx.NodeProto] = []
        #: How many nodes there are of each kind.
        self._kinds: Counter[str] = Counter()
        self._constants: dict[str, NDArray[Any] | None] = {}
        self.inputs: list[str] = []
        self._outputs: list[str] = []

    def input(self, name: str, shape: Sequence[int], element: int = TensorProto.FLOAT) -> str:
        """An input of the model; `element` is ONNX's code of its type."""
        self.shapes[name] = tuple(shape)
        self._types[name] = element
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
        """Along the last of three axes."""
        shape = (oc, self.shapes[x][1], kernel)
        window: dict[str, Any] = {"kernel_shape": [kernel], "strides": [stride], "pads": [pad, pad]}
        return self._product("Conv", x, shape, oc, ALL_KEPT / prod(shape[1:]), **window)

    def conv_transpose(self, x: str, oc: int, kernel: IntPair, *, stride: IntPair, pad: Pads,
                       bias: bool = True) -> str:  # fmt: skip
        """`pad` is what is cut off the whole result."""
        shape = (self.shapes[x][1], oc, *_pair(kernel))
        variance = HALF_KEPT / (shape[0] * prod(_pair(kernel)) / prod(_pair(stride)))
        window = _window(kernel, stride, pad)
        return self._product("ConvTranspose", x, shape, oc, variance, bias=bias, **window)

    def _product(self, kind: str, x: str, shape: tuple[int, ...], oc: int, variance: float, *,
                 bias: bool = True, **attributes: Any) -> str:  # fmt: skip
        """A node with a weight of a shape and a variance, and a bias for each of `oc` channels."""
        name = self._numbered(kind)
        inputs = [x, self._normal(f"{name}.weight", shape, variance)]
        if bias:
            inputs.append(self._uniform(f"{name}.bias", oc, -0.1, 0.1))
        return self.node(kind, inputs, name=name, **attributes)

    def batch_norm(self, x: str, *, scale: float = 1.0) -> str:
        """`scale` is the mean one; below 1 at the end of a residual branch, so that sums of many
        branches do not grow.
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
        """Over the last axis; ONNX's own epsilon where none is given."""
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
        """A node that reads constants of its own behind other inputs."""
        name = self._numbered(kind)
        constants = [self.constant(f"{name}.{key}", value) for key, value in values.items()]
        return self.node(kind, [*inputs, *constants], name=name, **attributes)

    def add(self, x: str, y: str) -> str:
        return self.node("Add", [x, y])

    def mul(self, x: str, y: str) -> str:
        return self.node("Mul", [x, y])

    def scaled(self, x: str, factor: float) -> str:
        """x * factor."""
        return self._with_constants("Mul", [x], {"factor": np.float32(factor)})

    def shifted(self, x: str, offset: float) -> str:
        """x + offset."""
        return self._with_constants("Add", [x], {"offset": np.float32(offset)})

    def silu(self, x: str) -> str:
        """As exporters spell it out."""
        return self.mul(x, self.node("Sigmoid", [x]))

    def gelu(self, x: str) -> str:
        """As exporters spell it out: x / 2 * (1 + erf(x / sqrt(2)))."""
        inner = self.shifted(self.node("Erf", [self.scaled(x, 0.5**0.5)]), 1.0)
        return self.scaled(self.mul(x, inner), 0.5)

    def global_average_pool(self, x: str) -> str:
        return self.node("GlobalAveragePool", [x])

    def max_pool(self, x: str, kernel: IntPair, stride: IntPair, *, pad: Pads = 0) -> str:
        return self.node("MaxPool", [x], **_window(kernel, stride, pad))

    def average_pool(self, x: str, kernel: IntPair, stride: IntPair, *, pad: Pads = 0) -> str:
        """Padding is not counted."""
        return self.node("AveragePool", [x], **_window(kernel, stride, pad))

    def upsample(self, x: str, factor: IntPair) -> str:
        """Every pixel as many rows and columns as `factor` says."""
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
        """Over the last axis."""
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
        """Weights that are no layer's own, such as the places of tokens; normally distributed."""
        return self._normal(name, shape, spread**2, mean)

    def fully_connected(self, x: str, oc: int) -> str:
        features = self.shapes[x][1]
        return self._product("Gemm", x, (oc, features), oc, HALF_KEPT / features, transB=1)

    def output(self, x: str) -> None:
        """Make a tensor an output of the model."""
        self._outputs.append(x)

    def node(self, kind: str, inputs: list[str], *, name: str = "", **attributes: object) -> str:
        """Any node with one output, which is called as the node."""
        name = name or self._numbered(kind)
        node = helper.make_node(kind, inputs, [name], name=name, **attributes)
        self.shapes[name] = self._inferred(node)
        self._nodes.append(node)
        self._kinds[node.op_type] += 1
        return name

    def constant(self, name: str, value: NDArray[np.generic] | np.generic) -> str:
        """Kept in every build: a size, a bound or a factor rather than a weight."""
        self._constants[name] = np.asarray(value)
        self.shapes[name] = np.shape(value)
        return name

    def build(self) -> onnx.ModelProto:
        return self.model().whole()

    def model(self) -> Model:
        """The same with large constants beside it."""
        kept = {name: value for name, value in self._constants.items() if value is not None}
        missing = [name for name, value in self._constants.items() if value is None]
        every = (*self.inputs, *missing)
        inputs = [_info(name, self.shapes[name], self._element(name)) for name in every]
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
            return int(self._types.get(name, TensorProto.FLOAT))
        return int(helper.np_dtype_to_tensor_dtype(value.dtype))

    def _numbered(self, kind: str, word: str = "") -> str:
        """A name for the next node of a kind."""
        number, word = self._kinds[kind] + 1, word or WORDS.get(kind, kind.lower())
        if not self.scope:
            return f"{word}{number}"
        first = f"{self.scope}/{word}"
        return f"{first}{number}" if first in self.shapes else first

    def _random(self, name: str) -> np.random.Generator:
        """A generator that depends on the seed and the tensor's name, not on the order."""
        return np.random.default_rng([self.seed, crc32(f"{self.name}/{name}".encode())])

    def _normal(self, name: str, shape: tuple[int, ...], variance: float, mean: float = 0.0) -> str:
        """Normally distributed weights of a product."""
        self._count(prod(shape))
        if not self._weights:
            return self._declared(name, shape)
        if not self._drawn and prod(shape) > LARGE:
            return self._made(name, np.zeros(shape, np.float32))
        values: NDArray[np.float32] = self._random(name).standard_normal(shape, np.float32)
        values *= np.float32(np.sqrt(variance))
        values += np.float32(mean)
        return self._made(name, values)

    def _uniform(self, name: str, size: int, low: float, high: float) -> str:
        self._count(size)
        if not self._weights:
            return self._declared(name, (size,))
        return self._made(name, self._random(name).uniform(low, high, size).astype(np.float32))

    def _count(self, numbers: int) -> None:
        self.parameters += numbers
        if self._weights and not self._apart and 4 * self.parameters > MOST_BYTES:
            raise CodlError(
                f"The weights of {self.name!r} take {4 * self.parameters} bytes; one ONNX model "
                f"holds {MOST_BYTES} at most."
            )

    def _made(self, name: str, values: NDArray[np.float32]) -> str:
        if not self._apart:
            return self.constant(name, values)
        self.arrays[name] = values
        return self._declared(name, values.shape)

    def _declared(self, name: str, shape: tuple[int, ...]) -> str:
        self._constants[name] = None
        self.shapes[name] = shape
        return name


def _pair(value: IntPair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _window(kernel: IntPair, stride: IntPair, pad: Pads) -> dict[str, Any]:
    pads = (pad,) * 4 if isinstance(pad, int) else pad
    return {"kernel_shape": _pair(kernel), "strides": _pair(stride), "pads": pads}


def _info(name: str, shape: Sequence[int], element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)
