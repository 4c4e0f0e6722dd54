"""Activations, which fuse into the op before them, and element-wise operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from codl.frontend.converters.base import (
    CONVERTERS,
    Convert,
    ConvertedOp,
    Converter,
    attribute,
    constant_input,
    converts,
    number,
)
from codl.frontend.converters.steps import Operand, combine, function
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Activation
from codl.ir.ops.eltwise import Eltwise
from codl.ir.region import as_nchw

#: Activations without parameters, and element-wise functions by the modes of `Eltwise`.
PLAIN: Mapping[str, str] = {
    "Erf": "erf",
    "HardSwish": "hard_swish",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Silu": "silu",
    "Tanh": "tanh",
}
UNARY: Mapping[str, str] = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Exp": "exp",
    "Floor": "floor",
    "Log": "log",
    "Mish": "mish",
    "Neg": "neg",
    "Reciprocal": "reciprocal",
    "Round": "round",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Sqrt": "sqrt",
    "Tan": "tan",
}
BINARY: Mapping[str, str] = {
    "Add": "add",
    "Div": "div",
    "Max": "max",
    "Min": "min",
    "Mul": "mul",
    "PRelu": "prelu",
    "Pow": "pow",
    "Sub": "sub",
    "Sum": "add",
}

Activate: TypeAlias = Callable[[Graph, Node], Activation]


def activates(*types: str, parameters: tuple[int, ...] = ()) -> Callable[[Activate], Activate]:
    """Decorator: nodes of these types are the activation that the function returns."""

    def register(activation: Activate) -> Activate:
        converter = Converter(_alone(activation), parameters, activation)
        for node_type in types:
            CONVERTERS.add(node_type, converter, origin=activation)
        return activation

    return register


def _alone(activation: Activate) -> Convert:
    """The converter of an activation that no op before it can take in."""

    def convert(graph: Graph, node: Node) -> list[ConvertedOp]:
        shape = as_nchw(graph.shapes[node.inputs[0]])
        op = Eltwise(inputs=(shape,), mode="identity", activation=activation(graph, node))
        return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]

    return convert


@activates("Clip", parameters=(1, 2))
def _clip(graph: Graph, node: Node) -> Activation:
    """Bounds are attributes up to opset 6 and inputs after it."""
    low = constant_input(graph, node, 1, attribute(node, "min", -np.inf))
    high = constant_input(graph, node, 2, attribute(node, "max", np.inf))
    limit = float(np.finfo(np.float32).max)
    return Activation("clip", *(float(np.clip(v, -limit, limit)) for v in (low, high)))


@activates("Gelu")
def _gelu(graph: Graph, node: Node) -> Activation:
    tanh = attribute(node, "approximate", "none") == "tanh"
    return Activation("gelu_tanh" if tanh else "gelu")


@activates("com.microsoft.Gelu")
def _plain_gelu(graph: Graph, node: Node) -> Activation:
    return Activation("gelu")


@activates("com.microsoft.FastGelu")
def _fast_gelu(graph: Graph, node: Node) -> Activation:
    """One with a bias is an addition and this; see `codl.frontend.graph.expansions`."""
    return Activation("gelu_tanh")


@activates("Elu")
def _elu(graph: Graph, node: Node) -> Activation:
    return Activation("elu", number(attribute(node, "alpha", 1.0)))


@activates("HardSigmoid")
def _hard_sigmoid(graph: Graph, node: Node) -> Activation:
    alpha, beta = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    return Activation("hard_sigmoid", number(alpha), number(beta))


@activates("LeakyRelu")
def _leaky_relu(graph: Graph, node: Node) -> Activation:
    return Activation("leaky_relu", number(attribute(node, "alpha", 0.01)))


@activates(*PLAIN)
def _plain(graph: Graph, node: Node) -> Activation:
    return Activation(PLAIN[node.type])


def _binary(mode: str) -> Convert:
    """From left to right where there are more than two inputs."""

    def convert(graph: Graph, node: Node) -> list[ConvertedOp]:
        first, *others = (Operand.of(graph, name) for name in node.inputs)
        steps = [] if others else [function("identity", first, node.outputs[0])]
        for index, other in enumerate(others):
            last = index == len(others) - 1
            output = node.outputs[0] if last else f"{node.name}.sum{index}"
            steps.append(combine(node, mode, (first, other), output))
            first = Operand(output, np.broadcast_shapes(first.sizes, other.sizes))
        return steps

    return convert


@converts("Mean")
def _mean(graph: Graph, node: Node) -> list[ConvertedOp]:
    """The sum, times one over the number of inputs."""
    *before, last = _binary("add")(graph, node)
    total = replace(last, output=f"{node.name}.total")
    share = Operand.number(1 / len(node.inputs))
    operands = (Operand(total.output, tuple(graph.shapes[node.outputs[0]])), share)
    return [*before, total, combine(node, "mul", operands, node.outputs[0])]


def _swish(default: float) -> Convert:
    """x * sigmoid(alpha * x), as a SiLU of alpha * x."""

    def convert(graph: Graph, node: Node) -> list[ConvertedOp]:
        return _scaled_silu(graph, node, number(attribute(node, "alpha", default)))

    return convert


def _scaled_silu(graph: Graph, node: Node, alpha: float) -> list[ConvertedOp]:
    x = Operand.of(graph, node.inputs[0])
    inner = Operand(f"{node.name}.inner", x.sizes)
    step = combine(node, "mul", (x, Operand.number(alpha)), inner.name)
    silu = replace(step, op=step.op.with_activation(Activation("silu")))
    if alpha == 1:
        return [replace(silu, output=node.outputs[0])]
    return [silu, combine(node, "mul", (inner, Operand.number(1 / alpha)), node.outputs[0])]


def _unary(mode: str, *parameters: tuple[str, float]) -> Convert:
    """A function of every element, with attributes and their defaults as parameters."""

    def convert(graph: Graph, node: Node) -> list[ConvertedOp]:
        values = [number(attribute(node, name, default)) for name, default in parameters]
        return [function(mode, Operand.of(graph, node.inputs[0]), node.outputs[0], *values)]

    return convert


for _node_type, _mode in UNARY.items():
    converts(_node_type)(_unary(_mode))
for _node_type, _mode in BINARY.items():
    converts(_node_type)(_binary(_mode))
converts("Swish")(_swish(1.0))
converts("com.microsoft.QuickGelu")(_swish(1.702))
converts("Celu")(_unary("celu", ("alpha", 1.0)))
converts("Selu")(_unary("selu", ("alpha", 1.6732632), ("gamma", 1.0507010)))
converts("Shrink")(_unary("shrink", ("bias", 0.0), ("lambd", 0.5)))
converts("ThresholdedRelu")(_unary("thresholded_relu", ("alpha", 1.0)))
