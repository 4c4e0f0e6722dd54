"""Models of opsets before 7, as models of opset 7: ONNX Runtime has few kernels for older ones.

What ONNX's own converter makes of them is not the same: it takes any `axis` of a broadcast for 0,
leaves the slopes of a PRelu at the last axis, and has no rule for Cast, Pad, Tile and comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.errors import UnsupportedError
from codl.frontend.graph.inference import with_shapes
from codl.frontend.graph.plain_form import array_of
from codl.frontend.graph.weights import Model, constant_of, refill, with_fields

#: The first opset in which operands are broadcast as NumPy does it.
FIRST_OF_TODAY = 7
#: Nodes whose second operand was stretched to the first from an `axis` on.
BROADCASTING = (
    *("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"),
    "PRelu",
)
#: What Selu's attributes were before opset 6.
SELU = {"alpha": 1.6732, "gamma": 1.0507}
#: Attributes that have no effect on what is computed.
WITHOUT_EFFECT = {
    "Gemm": "broadcast",
    **dict.fromkeys(("GRU", "LSTM", "RNN"), "output_sequence"),
}


def opset_of(proto: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that a model asks for."""
    versions = [item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")]
    return max(versions, default=1)


def in_opset_7(model: Model) -> Model:
    """The same model; raises `UnsupportedError` with a node that opset 7 has no equal of."""
    version = opset_of(model.proto)
    proto = with_fields(model.proto)
    for item in proto.opset_import:
        if item.domain in ("", "ai.onnx"):
            item.version = FIRST_OF_TODAY
    values = _Values(model)
    nodes = [
        new
        for node in proto.graph.node
        for new in (_rewritten(node, version, values) if is_onnx(node) else [node])
    ]
    refill(proto.graph.node, nodes)
    ranks = _ranks(Model(proto, model.weights))
    refill(proto.graph.node, [new for node in nodes for new in _stretched(node, version, ranks)])
    return Model(proto, model.weights)


def is_onnx(node: onnx.NodeProto) -> bool:
    return node.domain in ("", "ai.onnx")


class _Values:
    """The small constants of a model, by name."""

    def __init__(self, model: Model) -> None:
        graph = model.proto.graph
        self._tensors = {t.name: t for t in graph.initializer if t.name not in model.weights}
        self._nodes = {n.output[0]: n for n in graph.node if n.op_type == "Constant"}

    def ints(self, node: onnx.NodeProto, place: int, version: int) -> list[int]:
        """An input of a node; raises `UnsupportedError` where it is none of them."""
        name = node.input[place]
        if name in self._tensors:
            value: NDArray[Any] = array_of(self._tensors[name])
        elif name in self._nodes:
            value = constant_of(self._nodes[name])
        else:
            raise _refused(node, version, f"its input {name!r} is no constant")
        return [int(number) for number in value.reshape(-1)]


def _rewritten(node: onnx.NodeProto, version: int, values: _Values) -> list[onnx.NodeProto]:
    """Nodes of opset 7 in the place of one, but for what is broadcast."""
    if any(item.graphs or item.HasField("g") for item in node.attribute):
        raise _refused(node, version, "its graphs are not converted")
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    # Which tensor's memory may be written, and what has no effect.
    changes: dict[str, Any] = {"consumed_inputs": None, WITHOUT_EFFECT.get(node.op_type, ""): None}
    match node.op_type:
        case "BatchNormalization" | "Dropout":
            if given.get("is_test", 1) == 0:
                raise _refused(node, version, "is_test is 0, and codl does not train")
            changes["is_test"] = None
        case "Cast" if isinstance(given["to"], bytes):
            changes["to"] = TensorProto.DataType.Value(given["to"].decode().upper())
        case "Concat":
            changes["axis"] = given.get("axis", 1)
        case "GlobalLpPool" | "LpPool":
            changes["p"] = int(given.get("p", 2))
        case "Pad" if "paddings" in given:
            changes |= {"pads": given["paddings"], "paddings": None}
        case "Reshape" if "shape" in given:
            sizes = numpy_helper.from_array(np.asarray(given["shape"], np.int64))
            name = f"codl.{node.output[0]}.shape"
            constant = helper.make_node("Constant", [], [name], value=sizes)
            return [constant, _with(node, {**changes, "shape": None}, inputs=[*node.input, name])]
        case "Selu" if version < 6:
            changes |= {**SELU, **given}
        case "Split" if len(node.input) > 1:
            changes["split"] = values.ints(node, 1, version)
            return [_with(node, changes, inputs=node.input[:1])]
        case "Tile" if len(node.input) > 2:
            (count,), (axis,) = (values.ints(node, place, version) for place in (1, 2))
            return [_with(node, {"axis": axis}, inputs=[node.input[0]] * count, kind="Concat")]
        case "Upsample" if "height_scale" in given:
            scales = [1.0, 1.0, given["height_scale"], given["width_scale"]]
            changes |= {"scales": scales, "height_scale": None, "width_scale": None}
            if given.get("mode") == b"bilinear":
                changes["mode"] = b"linear"
    return [_with(node, changes)]


def _stretched(
    node: onnx.NodeProto, version: int, ranks: Mapping[str, int]
) -> list[onnx.NodeProto]:
    """A node that broadcasts as NumPy does, behind an Unsqueeze where ONNX did not."""
    if not _broadcasts(node):
        return [node]
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    is_slope = node.op_type == "PRelu"
    axis, second = 1 if is_slope else given.get("axis", -1), node.input[1]
    new = _with(node, {"axis": None, "broadcast": None})
    if axis == -1 or not (is_slope or given.get("broadcast", 0)):
        return [new]  # the last axes are the same
    if not all(name in ranks for name in node.input):
        raise _refused(node, version, "the sizes of its operands are not known")
    rank, own = (ranks[name] for name in node.input)
    if is_slope and own != 1:  # of all channels, or sizes as NumPy has them
        return [new]
    behind = rank - own - axis % rank
    if behind < 0:
        raise _refused(node, version, f"{own} axes do not fit behind axis {axis} of {rank}")
    if not behind:
        return [new]
    name = f"codl.{node.output[0]}.stretched"
    axes = list(range(own, own + behind))
    stretch = helper.make_node("Unsqueeze", [second], [name], axes=axes)
    return [stretch, _with(new, {}, inputs=[node.input[0], name])]


def _ranks(model: Model) -> dict[str, int]:
    """How many axes tensors have: what is broadcast has those of its first operand."""
    graph = model.proto.graph
    asked = [
        _with(node, dict.fromkeys(("axis", "broadcast")), inputs=node.input[:1], kind="Identity")
        if _broadcasts(node)
        else node
        for node in graph.node
    ]
    inferred = with_shapes(replace(model, proto=with_fields(model.proto, node=asked))).proto.graph
    ranks = {item.name: len(item.dims) for item in graph.initializer}
    for info in (*inferred.input, *inferred.value_info, *inferred.output):
        if info.type.tensor_type.HasField("shape"):
            ranks[info.name] = len(info.type.tensor_type.shape.dim)
    return ranks


def _broadcasts(node: onnx.NodeProto) -> bool:
    return node.op_type in BROADCASTING and is_onnx(node)


def _with(
    node: onnx.NodeProto,
    changes: Mapping[str, Any],
    *,
    inputs: Sequence[str] | None = None,
    kind: str = "",
) -> onnx.NodeProto:
    """A node with other attributes, without those that are None, and other inputs."""
    new = onnx.NodeProto()
    new.CopyFrom(node)
    new.op_type = kind or node.op_type
    refill(new.input, node.input if inputs is None else inputs)
    made = [helper.make_attribute(key, v) for key, v in changes.items() if v is not None]
    refill(new.attribute, [*(item for item in node.attribute if item.name not in changes), *made])
    return new


def _refused(node: onnx.NodeProto, version: int, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"The node {node.name or node.output[0]!r} ({node.op_type}) of opset {version} is none of "
        f"opset {FIRST_OF_TODAY}: {reason}. Export the model again, with a newer opset."
    )
