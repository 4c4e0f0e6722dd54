"""Converters of activations, which fuse into the op before, and element-wise operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from codl.frontend.converters.base import (
    CONVERTERS,
    ConvertedOp,
    Converter,
    Operand,
    Steps,
    attribute,
    constant_input,
    converts,
    number,
    unsupported,
)
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Activation
from codl.ir.ops.eltwise import Eltwise
from codl.ir.region import as_nchw

#: An activation's kind or a mode of `Eltwise`, with parameters: attributes by default value.
Function: TypeAlias = tuple[str, Mapping[str, float]]
#: Functions that the op before may fuse.
ACTIVATIONS: Mapping[str, Function] = {
    "Elu": ("elu", {"alpha": 1.0}),
    "Erf": ("erf", {}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": ("hard_swish", {}),
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Relu": ("relu", {}),
    "Sigmoid": ("sigmoid", {}),
    "Silu": ("silu", {}),
    "Tanh": ("tanh", {}),
}
PLAIN = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Exp"),
    *("Floor", "Log", "Mish", "Neg", "Reciprocal", "Round", "Sign", "Sin", "Sinh", "Softplus"),
    *("Softsign", "Sqrt", "Tan"),
)
UNARY: Mapping[str, Function] = {
    **{kind: (kind.lower(), {}) for kind in PLAIN},
    "Celu": ("celu", {"alpha": 1.0}),
    "Selu": ("selu", {"alpha": 1.6732632, "gamma": 1.0507010}),
    "Shrink": ("shrink", {"bias": 0.0, "lambd": 0.5}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
}
BINARY: Mapping[str, str] = {
    **{kind: kind.lower() for kind in ("Add", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub")},
    "Sum": "add",
}

Activate: TypeAlias = Callable[[Graph, Node], Activation]


def activates(*types: str, parameters: tuple[int, ...] = ()) -> Callable[[Activate], Activate]:
    """Decorator: the function returns the activation of nodes of these types."""

    def register(activation: Activate) -> Activate:
        def alone(graph: Graph, node: Node) -> list[ConvertedOp]:
            """An activation of its own, where no op before can fuse it."""
            shape = as_nchw(graph.shapes[node.inputs[0]])
            op = Eltwise(inputs=(shape,), mode="identity", activation=activation(graph, node))
            return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]

        for node_type in types:
            converter = Converter(alone, parameters, activation)
            CONVERTERS.add(node_type, converter, origin=activation)
        return activation

    return register


@activates(*ACTIVATIONS)
def _activation(graph: Graph, node: Node) -> Activation:
    kind, parameters = ACTIVATIONS[node.type]
    values = _values(node, parameters)
    if kind == "hard_sigmoid" and values[0] < 0:
        raise unsupported(node, f"ncnn takes alpha for at least 0, got {values[0]}.")
    return Activation(kind, *values)


def _values(node: Node, parameters: Mapping[str, float]) -> list[float]:
    return [number(attribute(node, name, usual)) for name, usual in parameters.items()]


@activates("Clip", parameters=(1, 2))
def _clip(graph: Graph, node: Node) -> Activation:
    """Bounds are attributes up to opset 6, then inputs."""
    low = constant_input(graph, node, 1, attribute(node, "min", -np.inf))
    high = constant_input(graph, node, 2, attribute(node, "max", np.inf))
    limit = float(np.finfo(np.float32).max)
    return Activation("clip", *(float(np.clip(v, -limit, limit)) for v in (low, high)))


@activates("Gelu")
def _gelu(graph: Graph, node: Node) -> Activation:
    tanh = attribute(node, "approximate", "none") == "tanh"
    return Activation("gelu_tanh" if tanh else "gelu")


@converts(*UNARY)
def _unary(graph: Graph, node: Node) -> list[ConvertedOp]:
    steps = Steps(graph, node)
    mode, parameters = UNARY[node.type]
    steps.function(mode, steps.operand(node.inputs[0]), "", *_values(node, parameters))
    return steps.made


@converts(*BINARY)
def _binary(graph: Graph, node: Node) -> list[ConvertedOp]:
    steps = Steps(graph, node)
    _combined(steps, BINARY[node.type], "")
    return steps.made


def _combined(steps: Steps, mode: str, end: str) -> Operand:
    """A node's inputs combined from left to right."""
    first, *others = map(steps.operand, steps.node.inputs)
    if not others:
        return steps.function("identity", first, end)
    for index, other in enumerate(others):
        word = end if index == len(others) - 1 else f"part{index}"
        first = steps.combine(mode, first, other, word)
    return first


@converts("Mean")
def _mean(graph: Graph, node: Node) -> list[ConvertedOp]:
    steps = Steps(graph, node)
    total = _combined(steps, "add", "total")
    steps.combine("mul", total, Operand.number(1 / len(node.inputs)))
    return steps.made


@converts("Swish")
def _swish(graph: Graph, node: Node) -> list[ConvertedOp]:
    """x * sigmoid(alpha * x), as a SiLU of alpha * x."""
    steps = Steps(graph, node)
    alpha = number(attribute(node, "alpha", 1.0))
    word = "" if alpha == 1 else "inner"
    inner = steps.combine("mul", steps.operand(node.inputs[0]), Operand.number(alpha), word)
    steps.activate(Activation("silu"))
    if alpha != 1:
        steps.combine("mul", inner, Operand.number(1 / alpha))
    return steps.made
