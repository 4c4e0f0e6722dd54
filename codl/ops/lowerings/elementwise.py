"""Activations, which fuse into the op before them, and element-wise operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from codl.graph import Graph, Node
from codl.ops.base import Activation, Array
from codl.ops.eltwise import Eltwise
from codl.ops.lowerings.base import (
    Lowering,
    Step,
    attribute,
    constant_input,
    unsupported,
)
from codl.ops.region import Shape, as_nchw


def _parameter(node: Node, name: str, default: float) -> float:
    """A float attribute, without the digits that float32 does not have."""
    return round(float(attribute(node, name, default)), 7)


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
    "Elu": lambda graph, node: Activation("elu", _parameter(node, "alpha", 1.0)),
    "Erf": _plain("erf"),
    "Gelu": _gelu,
    "HardSigmoid": lambda graph, node: Activation(
        "hard_sigmoid", _parameter(node, "alpha", 0.2), _parameter(node, "beta", 0.5)
    ),
    "HardSwish": _plain("hard_swish"),
    "LeakyRelu": lambda graph, node: Activation("leaky_relu", _parameter(node, "alpha", 0.01)),
    "Relu": _plain("relu"),
    "Sigmoid": _plain("sigmoid"),
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
    def lowering(graph: Graph, node: Node) -> list[Step]:
        if len(node.inputs) == 1:
            shape = as_nchw(graph.shapes[node.inputs[0]])
            op = Eltwise(inputs=(shape,), mode="identity")
            return [Step(op, node.inputs, node.outputs[0])]
        left = node.inputs[0]
        steps: list[Step] = []
        for index, right in enumerate(node.inputs[1:]):
            last = index == len(node.inputs) - 2
            output = node.outputs[0] if last else f"{node.name}.{index}"
            rank = len(graph.shapes[node.outputs[0]])
            shapes = tuple(_aligned(graph, node, name, rank) for name in (left, right))
            if left not in graph.shapes:
                shapes = (steps[-1].op.output, shapes[1])
            constants = {
                name: np.asarray(graph.constants[name], np.float32).reshape(shape)
                for name, shape in zip((left, right), shapes, strict=True)
                if name in graph.constants
            }
            renamed = {name: f"{node.name}.{name}" for name in constants}
            given: dict[str, Array] = {renamed[k]: v for k, v in constants.items()}
            names = tuple(renamed.get(name, name) for name in (left, right))
            steps.append(Step(Eltwise(inputs=shapes, mode=mode), names, output, constants=given))
            left = output
        return steps

    return lowering


def _aligned(graph: Graph, node: Node, name: str, rank: int) -> Shape:
    """A shape as nchw of an output with `rank` axes: ones in front, as broadcasting has them."""
    sizes = graph.shapes.get(name, ())
    if rank > 4 and sizes != graph.shapes[node.outputs[0]]:
        raise unsupported(node, f"more than 4 axes are broadcast: {sizes}.")
    return as_nchw((1,) * (rank - len(sizes)) + tuple(sizes))


LOWERINGS: Mapping[str, Lowering] = {
    "Add": _binary("add"),
    "Div": _binary("div"),
    "Max": _binary("max"),
    "Min": _binary("min"),
    "Mul": _binary("mul"),
    "PRelu": _binary("prelu"),
    "Pow": _binary("pow"),
    "Sub": _binary("sub"),
    "Sum": _binary("add"),
}

PARAMETERS: Mapping[str, tuple[int, ...]] = {"Clip": (1, 2)}
