"""An op as ONNX nodes, described, not run: what ONNX Runtime's variants on the CPU return.

ncnn's layers are the CPU side's usual variants. What ncnn refuses (a batch, stretched operands,
tensors of any rank) runs in ONNX Runtime, which has a kernel for every op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir.onnx_node import Node
from codl.ir.ops.base import Activation, Weights
from codl.ir.ops.nd import Sizes
from codl.kernels.base import Backend, work
from codl.kernels.kernel import CpuKernel
from codl.records.soc import Soc

#: The version of ONNX's operators that plans are written in, but for those that need a later one.
OPSET = 20
#: ONNX's codes of types; its own module of them takes long to import.
TYPES = {"float32": 1, "int64": 7}

NamedArrays: TypeAlias = Mapping[str, NDArray[Any]]


def as_they_are(weights: Weights) -> NamedArrays:
    return weights


@dataclass(frozen=True)
class OrtPlan:
    """An op as ONNX nodes, from the tensors `x0`, `x1`, ... to `y`.

    `inputs` and `output` are the sizes under which nodes see those tensors, which hold the same
    elements as the op's. Nodes read weights by their names in the result of `pack`, and
    `constants` by theirs. The op's activation is none of the nodes. An op that is a `model` has no
    nodes here and is run as it is. `opset` is the least version of ONNX's operators that has the
    nodes.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Sizes, ...]
    output: Sizes
    constants: NamedArrays = field(default_factory=dict)
    pack: Callable[[Weights], NamedArrays] = as_they_are
    model: bytes = b""
    opset: int = OPSET


@dataclass(frozen=True)
class CpuOrt(CpuKernel):
    """One kind of op in ONNX Runtime; `describe` writes its nodes."""

    count: Callable[[Any, Soc], Mapping[str, Any]] = lambda op, soc: work(op)
    name: str = "cpu_ort"
    backend: Backend = "ort"


def node(
    kind: str,
    inputs: Sequence[str] = ("x0",),
    output: str = "y",
    **attributes: Any,
) -> Node:
    return Node(output, kind, tuple(inputs), (output,), attributes)


def ints(*values: int) -> NDArray[np.int64]:
    """A parameter that ONNX takes as a tensor of integers."""
    return np.array(values, np.int64)


def number(value: float) -> NDArray[np.float32]:
    return np.array(value, np.float32)


def nd_plan(op: Any, nodes: Sequence[Node], constants: NamedArrays | None = None) -> OrtPlan:
    """Nodes of an op of any rank that see its tensors under the sizes of the model."""
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, constants or {})


#: ONNX's nodes of activations of one node, with the attributes that they take from it.
_ONE_NODE: Mapping[str, tuple[str, Callable[[Activation], Mapping[str, Any]]]] = {
    "relu": ("Relu", lambda a: {}),
    "leaky_relu": ("LeakyRelu", lambda a: {"alpha": a.alpha}),
    "sigmoid": ("Sigmoid", lambda a: {}),
    "tanh": ("Tanh", lambda a: {}),
    "hard_sigmoid": ("HardSigmoid", lambda a: {"alpha": a.alpha, "beta": a.beta}),
    "hard_swish": ("HardSwish", lambda a: {}),
    "gelu": ("Gelu", lambda a: {}),
    "gelu_tanh": ("Gelu", lambda a: {"approximate": "tanh"}),
    "elu": ("Elu", lambda a: {"alpha": a.alpha}),
    "erf": ("Erf", lambda a: {}),
}


def activation_nodes(activation: Activation) -> tuple[list[Node], NamedArrays]:
    """Nodes from `x0` to `y` that apply an activation, with their constants; none for none."""
    if activation.kind == "none":
        return [], {}
    if activation.kind == "clip":
        bounds = {"low": number(activation.alpha), "high": number(activation.beta)}
        return [node("Clip", ("x0", *bounds))], bounds
    if activation.kind == "silu":
        return [node("Sigmoid", output="gate"), node("Mul", ("x0", "gate"))], {}
    kind, attributes = _ONE_NODE[activation.kind]
    return [node(kind, **attributes(activation))], {}
