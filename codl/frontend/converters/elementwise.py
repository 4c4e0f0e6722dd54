"""Activations, which fuse into the op before them, and element-wise operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from codl.frontend.converters.base import Lowering, Step, attribute, constant_input, number
from codl.frontend.converters.operands import Operand, combine, function
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Activation
from codl.ir.ops.eltwise import Eltwise
from codl.ir.region import as_nchw


def _clip(graph: Graph, node: Node) -> Activation:
    """Bounds are attributes up to opset 6 and inputs after it."""
    low = constant_input(graph, node, 1, attribute(node, "min", -np.inf))
    high = constant_input(graph, node, 2, attribute(node, "max", np.inf))
    limit = float(np.finfo(np.float32).max)
    return Activation("clip", *(float(np.clip(v, -limit, limit)) for v in (low, high)))


def _gelu(graph: Graph, node: Node) -> Activation:
    tanh = attribute(node, "approximate", "none") == "tanh"
    return Activation("gelu_tanh" if tanh else "gelu")


def _plain(kind: str) -> Callable[[Graph, Node], Activation]:
    return lambda graph, node: Activation(kind)


#: Nodes that are a function of every element alone, with no parameter but constants.
ACTIVATIONS: Mapping[str, Callable[[Graph, Node], Activation]] = {
    "Clip": _clip,
    "Elu": lambda graph, node: Activation("elu", number(attribute(node, "alpha", 1.0))),
    "Erf": _plain("erf"),
    "Gelu": _gelu,
    "HardSigmoid": lambda graph, node: Activation(
        "hard_sigmoid", number(attribute(node, "alpha", 0.2)), number(attribute(node, "beta", 0.5))
    ),
    "HardSwish": _plain("hard_swish"),
    "LeakyRelu": lambda graph, node: Activation(
        "leaky_relu", number(attribute(node, "alpha", 0.01))
    ),
    "Relu": _plain("relu"),
    "Sigmoid": _plain("sigmoid"),
    "Silu": _plain("silu"),
    "Tanh": _plain("tanh"),
}


def activation_alone(graph: Graph, node: Node) -> list[Step]:
    """An activation that no op before it can take in."""
    op = Eltwise(
        inputs=(as_nchw(graph.shapes[node.inputs[0]]),),
        mode="identity",
        activation=ACTIVATIONS[node.type](graph, node),
    )
    return [Step(op, node.inputs[:1], node.outputs[0])]


def _binary(mode: str) -> Lowering:
    """From left to right where there are more than two inputs."""

    def lowering(graph: Graph, node: Node) -> list[Step]:
        first, *others = (Operand.of(graph, name) for name in node.inputs)
        steps = [] if others else [function("identity", first, node.outputs[0])]
        for index, other in enumerate(others):
            last = index == len(others) - 1
            output = node.outputs[0] if last else f"{node.name}.sum{index}"
            steps.append(combine(node, mode, (first, other), output))
            first = Operand(output, np.broadcast_shapes(first.sizes, other.sizes))
        return steps

    return lowering


def _mean(graph: Graph, node: Node) -> list[Step]:
    """The sum, times one over the number of inputs."""
    *before, last = _binary("add")(graph, node)
    total = replace(last, output=f"{node.name}.total")
    share = Operand.number(1 / len(node.inputs))
    operands = (Operand(total.output, tuple(graph.shapes[node.outputs[0]])), share)
    return [*before, total, combine(node, "mul", operands, node.outputs[0])]


def _swish(graph: Graph, node: Node) -> list[Step]:
    """x * sigmoid(alpha * x), as a SiLU of alpha * x."""
    x, alpha = Operand.of(graph, node.inputs[0]), number(attribute(node, "alpha", 1.0))
    inner = Operand(f"{node.name}.inner", x.sizes)
    step = combine(node, "mul", (x, Operand.number(alpha)), inner.name)
    silu = replace(step, op=step.op.with_activation(Activation("silu")))
    if alpha == 1:
        return [replace(silu, output=node.outputs[0])]
    return [silu, combine(node, "mul", (inner, Operand.number(1 / alpha)), node.outputs[0])]


def _unary(mode: str, *parameters: tuple[str, float]) -> Lowering:
    """A function of every element, with attributes and their defaults as parameters."""

    def lowering(graph: Graph, node: Node) -> list[Step]:
        values = [number(attribute(node, name, default)) for name, default in parameters]
        return [function(mode, Operand.of(graph, node.inputs[0]), node.outputs[0], *values)]

    return lowering


LOWERINGS: Mapping[str, Lowering] = {
    "Abs": _unary("abs"),
    "Acos": _unary("acos"),
    "Acosh": _unary("acosh"),
    "Add": _binary("add"),
    "Asin": _unary("asin"),
    "Asinh": _unary("asinh"),
    "Atan": _unary("atan"),
    "Atanh": _unary("atanh"),
    "Ceil": _unary("ceil"),
    "Celu": _unary("celu", ("alpha", 1.0)),
    "Cos": _unary("cos"),
    "Cosh": _unary("cosh"),
    "Div": _binary("div"),
    "Exp": _unary("exp"),
    "Floor": _unary("floor"),
    "Log": _unary("log"),
    "Max": _binary("max"),
    "Mean": _mean,
    "Min": _binary("min"),
    "Mish": _unary("mish"),
    "Mul": _binary("mul"),
    "Neg": _unary("neg"),
    "PRelu": _binary("prelu"),
    "Pow": _binary("pow"),
    "Reciprocal": _unary("reciprocal"),
    "Round": _unary("round"),
    "Selu": _unary("selu", ("alpha", 1.6732632), ("gamma", 1.0507010)),
    "Shrink": _unary("shrink", ("bias", 0.0), ("lambd", 0.5)),
    "Sign": _unary("sign"),
    "Sin": _unary("sin"),
    "Sinh": _unary("sinh"),
    "Softplus": _unary("softplus"),
    "Softsign": _unary("softsign"),
    "Sqrt": _unary("sqrt"),
    "Sub": _binary("sub"),
    "Sum": _binary("add"),
    "Swish": _swish,
    "Tan": _unary("tan"),
    "ThresholdedRelu": _unary("thresholded_relu", ("alpha", 1.0)),
}

PARAMETERS: Mapping[str, tuple[int, ...]] = {"Clip": (1, 2)}
