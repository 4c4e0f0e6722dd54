"""CPU variants: ops as layers of ncnn nets or as ONNX nodes, described and not run.

ncnn's layers are the default. ONNX Runtime has a kernel for every op, and OpenVINO takes the same
nodes; they run batches, broadcast operands and ranks that ncnn refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.ir.columns import Column, Columns, FeatureColumns
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Activation, Array, Weights
from codl.ir.ops.nd import Sizes
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.records.soc import Soc
from codl.ir.types import Processor
from codl.kernels.base import Backend, Choice, work
from codl.kernels.tiling import ChoiceColumns, single


@dataclass(frozen=True)
class CpuKernel:
    """A library's implementation of an op for all images of a batch.

    `describe` returns the op in the library's terms. `count` returns features for `op_columns`, or
    for a single op where `op_columns` is None.
    """

    op_kind: str
    describe: Callable[[Any], Any]
    count: Callable[[Any, Soc], Mapping[str, Any]]
    op_columns: type[Columns] | None = None
    refuse: Callable[[Any], str | None] = lambda op: None
    name: str = "cpu_direct"
    backend: Backend = "ncnn"
    is_plannable: bool = True
    #: Ratio of stored to original weight elements, if the library transforms weights.
    growth: Callable[[Any], Column] | None = None
    processor: ClassVar[Processor] = "cpu"
    takes_batch: ClassVar[bool] = True

    @property
    def transforms_weights(self) -> bool:
        return self.growth is not None

    def changes_nonfinite(self, op: Any) -> bool:
        """True for libraries whose sigmoid, clip or maximum turns NaN into numbers."""
        return self.backend in ("ncnn", "openvino")

    def refusal(self, op: Any, soc: Soc) -> str | None:
        if op.nonfinite and self.changes_nonfinite(op):
            return f"{self.backend} changes NaN and infinities, got nonfinite=1"
        return self.refuse(op)

    def plan(self, op: Any, soc: Soc) -> Any:
        return self.describe(op)

    def features(self, op: Any, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        if self.op_columns is not None:
            return single(self.feature_columns(self.op_columns.of([op]), soc))
        return {name: float(value) for name, value in self.count(op, soc).items()}

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        return {}

    def feature_columns(
        self, ops: Any, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        return dict(self.count(ops, soc))

    def weight_growth(self, ops: Any, choice: ChoiceColumns | None = None) -> Column:
        return np.ones(len(ops)) if self.growth is None else self.growth(ops)


# ncnn.

#: Bits of ncnn's parameter 31, each disabling an algorithm for one layer.
NO_GEMM, NO_WINOGRAD = 1 << 5, 1 << 6

#: ncnn's parameter 30 gives a layer the shape of its output in advance.
SHAPE_HINT = 30

NcnnValue = int | float | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class Shifts:
    """Shifted copies of an input as channels: parameters of ncnn's Padding, and of its Crops."""

    padding: Mapping[int, NcnnValue]
    crops: tuple[Mapping[int, NcnnValue], ...]


@dataclass(frozen=True)
class NcnnLayer:
    """An ncnn layer: type, parameters by ncnn's numbers, and weights in file order.

    `after` is an activation that ncnn cannot fuse into the layer, and becomes a layer of its own.
    `copies_input` is True for a layer that assumes ncnn's own channel stride; inputs that ncnn did
    not allocate are copied. `options` are required net options; layers with other options run in
    another net. `shifts` are copies of the only input, read in its place. `arrange` transforms the
    op's weights.
    """

    type: str
    parameters: Mapping[int, NcnnValue]
    weights: tuple[str, ...] = ()
    after: Activation = Activation()
    copies_input: bool = False
    options: Mapping[str, bool] = field(default_factory=dict)
    shifts: Shifts | None = None
    arrange: Callable[[Weights], Mapping[str, Array]] = dict


#: ncnn's layer type and parameters for each activation.
_LAYERS: Mapping[str, tuple[str, Callable[[Activation], Mapping[int, NcnnValue]]]] = {
    "relu": ("ReLU", lambda a: {0: 0.0}),
    "leaky_relu": ("ReLU", lambda a: {0: a.alpha}),
    "clip": ("Clip", lambda a: {0: a.alpha, 1: a.beta}),
    "sigmoid": ("Sigmoid", lambda a: {}),
    "tanh": ("TanH", lambda a: {}),
    "hard_sigmoid": ("HardSigmoid", lambda a: {0: a.alpha, 1: a.beta}),
    "hard_swish": ("HardSwish", lambda a: {0: 1 / 6, 1: 0.5}),
    "gelu": ("GELU", lambda a: {0: 0}),
    "gelu_tanh": ("GELU", lambda a: {0: 1}),
    "silu": ("Swish", lambda a: {}),
    "elu": ("ELU", lambda a: {0: a.alpha}),
    "erf": ("Erf", lambda a: {}),
}
#: ncnn's codes of the activations that it fuses into convolutions and inner products.
_FUSED = {"relu": 1, "leaky_relu": 2, "clip": 3, "sigmoid": 4, "hard_swish": 6}


def fuses(activation: Activation) -> bool:
    """True if ncnn fuses an activation into convolutions and inner products."""
    return activation.kind == "none" or activation.kind in _FUSED


def fused_activation(activation: Activation) -> dict[int, NcnnValue]:
    """Parameters 9 and 10 of ncnn's convolution and inner product; empty if it cannot fuse."""
    if activation.kind not in _FUSED:
        return {}
    values = (1 / 6, 0.5) if activation.kind == "hard_swish" else activation.parameters
    parameters = tuple(float(value) for value in values)
    return {9: _FUSED[activation.kind], **({10: parameters} if parameters else {})}


def left_over(activation: Activation) -> Activation:
    """The activation to apply after a convolution or inner product; "none" if ncnn fuses it."""
    return Activation() if fuses(activation) else activation


def activation_layer(activation: Activation) -> NcnnLayer | None:
    if activation.kind == "none":
        return None
    name, parameters = _LAYERS[activation.kind]
    return NcnnLayer(name, parameters(activation))


def window_layer(
    op: Any,
    kind: str,
    pads: Mapping[int, NcnnValue],
    more: Mapping[int, NcnnValue] | None = None,
    **others: Any,
) -> NcnnLayer:
    """A convolution or transposed convolution; `others` are further fields of the layer."""
    parameters: dict[int, NcnnValue] = {
        0: op.out_channels,
        1: op.kernel.w,
        11: op.kernel.h,
        2: op.dilation.w,
        12: op.dilation.h,
        3: op.stride.w,
        13: op.stride.h,
        **pads,
        5: 1,
        6: op.out_channels * (op.input.c // op.groups) * op.kernel.h * op.kernel.w,
        **fused_activation(op.activation),
        **(more or {}),
    }
    if op.groups > 1:
        kind, parameters[7] = f"{kind}DepthWise", op.groups
    after = left_over(op.activation)
    return NcnnLayer(kind, parameters, ("weight", "bias"), after, **others)


# ONNX nodes.

#: The opset of plans, unless a node needs a later one.
OPSET = 20
#: ONNX's type codes; importing ONNX's own module takes long.
TYPES = {"float32": 1, "int64": 7}

NamedArrays: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class OrtPlan:
    """An op as ONNX nodes from the tensors `x0`, `x1`, ... to `y`.

    `inputs` and `output` are the sizes of these tensors for the nodes, with the op's elements.
    Nodes read weights by their names in the result of `pack`, and `constants` by name. Activations
    are not included. An op that is a `model` has no nodes, and runs as it is. `opset` is the least
    opset of the nodes.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Sizes, ...]
    output: Sizes
    constants: NamedArrays = field(default_factory=dict)
    pack: Callable[[Weights], NamedArrays] = lambda weights: weights
    model: bytes = b""
    opset: int = OPSET


def node(kind: str, inputs: Sequence[str] = ("x0",), output: str = "y", **attributes: Any) -> Node:
    return Node(output, kind, tuple(inputs), (output,), attributes)


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def number(value: float) -> NDArray[np.float32]:
    return np.array(value, np.float32)


def nd_plan(op: Any, nodes: Sequence[Node], constants: NamedArrays | None = None) -> OrtPlan:
    """Nodes of an op of any rank, which see its tensors in the sizes of the model."""
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, constants or {})


#: Attributes of ONNX's nodes for the parameters of activations.
_ATTRIBUTES = {"leaky_relu": ("alpha",), "hard_sigmoid": ("alpha", "beta"), "elu": ("alpha",)}


def window_attributes(op: Any) -> dict[str, Any]:
    return {
        "kernel_shape": list(op.kernel),
        "strides": list(op.stride),
        "dilations": list(op.dilation),
        "pads": [op.pad.top, op.pad.left, op.pad.bottom, op.pad.right],
    }


def activation_nodes(activation: Activation) -> tuple[list[Node], NamedArrays]:
    """Nodes from `x0` to `y` that apply an activation, with their constants; empty for "none"."""
    if activation.kind == "none":
        return [], {}
    if activation.kind == "clip":
        bounds = {"low": number(activation.alpha), "high": number(activation.beta)}
        return [node("Clip", ("x0", *bounds))], bounds
    if activation.kind == "silu":
        return [node("Sigmoid", output="gate"), node("Mul", ("x0", "gate"))], {}
    if activation.kind == "gelu_tanh":
        return [node("Gelu", approximate="tanh")], {}
    names = _ATTRIBUTES.get(activation.kind, ())
    values: dict[str, Any] = dict(zip(names, (activation.alpha, activation.beta), strict=False))
    return [node(activation.kind.title().replace("_", ""), **values)], {}


# Variants of ONNX Runtime and OpenVINO.

CPU_OPENVINO = "cpu_openvino"
Describe: TypeAlias = Callable[[Any], OrtPlan]
#: Modes of `eltwise` that OpenVINO rounds to 2^-18, and so makes negative far below zero.
COARSE = ("softplus", "mish")


def of_onnx(
    op_kind: str,
    describe: Describe,
    count: Callable[[Any, Soc], Mapping[str, Any]] = lambda op, soc: work(op),
    op_columns: type[Columns] | None = None,
    refuse: Callable[[Any], str | None] = lambda op: None,
) -> tuple[CpuKernel, CpuKernel]:
    """The variants of an op kind for ONNX Runtime and for OpenVINO, from its ONNX nodes."""

    def refuse_openvino(op: Any) -> str | None:
        if not _has_openvino():
            return "OpenVINO is not installed (`pip install openvino`)"
        return refuse(op) or _refuse_wrong(op)

    ort = CpuKernel(op_kind, describe, count, op_columns, refuse, name="cpu_ort", backend="ort")
    return ort, replace(ort, name=CPU_OPENVINO, backend="openvino", refuse=refuse_openvino)


@cache
def _has_openvino() -> bool:
    try:
        return find_spec("openvino") is not None
    except ImportError:
        return False


def _refuse_wrong(op: Any) -> str | None:
    """The reason why OpenVINO cannot load an op, or computes it differently from ONNX."""
    mode = getattr(op, "mode", "")
    if op.activation.kind == "hard_sigmoid" and 0 in op.activation.parameters:
        return f"OpenVINO takes a parameter of 0 for its default, got {op.activation}"
    if op.kind == "eltwise" and mode == "selu" and 0 in op.parameters:
        return f"OpenVINO takes a parameter of 0 for its default, got {op.parameters}"
    if op.kind == "eltwise" and mode in COARSE:
        return f"OpenVINO's {mode} is negative far below zero"
    if op.kind == "pad" and mode == "wrap":
        return f"OpenVINO has no padding of the mode {mode!r}"
    return None


def _onnx_model(op: OnnxModel) -> OrtPlan:
    if not op.model:  # an op parsed from text has no model, and is only predicted
        raise UnsupportedError(f"The ONNX model {op.digest} ({op.nodes}) is not here to be run.")
    return OrtPlan((), op.shapes, op.to, model=op.model)


#: Subgraphs of models that ONNX Runtime runs whole.
VARIANTS = of_onnx("onnx", _onnx_model)[:1]
