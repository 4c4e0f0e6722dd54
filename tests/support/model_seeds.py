"""Small sound models with what networks of today have, from which others are mutated."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper

from codl.frontend.models.builder import ModelBuilder
from support.onnx_models import floats, model, node

#: Ops that stand in the place of others, and numbers in that of attributes and sizes.
OPS = ("Resize", "Gather", "Loop", "Einsum", "MatMul", "Conv", "Softmax", "Split", "Reshape", "X")
NUMBERS = (0, -1, 2, 1 << 31, -(1 << 63), (1 << 63) - 1)
SIZES = (0, 1, -1, 3, 7, 1 << 20, 1 << 40, 1 << 62)


def model_seeds() -> list[bytes]:
    made = [_convolutions(), _attention(), _packed(), _shapes(), _branches()]
    return [proto.SerializeToString() for proto in made]


def _convolutions() -> onnx.ModelProto:
    b = ModelBuilder("small")
    x = b.relu(b.batch_norm(b.conv(b.input("image", (1, 3, 12, 10)), 8, 3, pad=1, bias=False)))
    x = b.max_pool(x, 2, 2)
    b.output(b.fully_connected(b.flatten(x), 5))
    return b.build()


def _attention() -> onnx.ModelProto:
    nodes = [
        node("LayerNormalization", "x scale", "n", axis=-1),
        node("MatMul", "n w", "q"),
        node("Reshape", "q heads", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1, 3]),
        node("Transpose", "r", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "t k", "s"),
        node("Mul", "s half", "m"),
        node("Softmax", "m", "p", axis=-1),
        node("MatMul", "p t", "o"),
        node("Transpose", "o", "b", perm=[0, 2, 1, 3]),
        node("Reshape", "b tokens", "j"),
        node("Add", "j x", "y"),
    ]
    constants = {"scale": floats(8), "w": floats(8, 8), "half": np.float32(0.5)}
    sizes = {"heads": np.array([1, 5, 2, 4]), "tokens": np.array([1, 5, 8])}
    return model(nodes, {"x": [1, 5, 8]}, ["y"], {**constants, **sizes})


def _packed() -> onnx.ModelProto:
    nodes = [
        node("DequantizeLinear", "w scale zero", "f", axis=1),
        node("MatMul", "x f", "a"),
        node("Gelu", "a", "g"),
        node("ReduceMean", "g axes", "y", keepdims=0),
    ]
    constants = {
        "w": np.arange(32 * 6, dtype=np.uint8).reshape(32, 6),
        "scale": floats(6),
        "zero": np.full(6, 128, np.uint8),
        "axes": np.array([-1]),
    }
    return model(nodes, {"x": [4, 32]}, ["y"], constants, opset=21)


def _shapes() -> onnx.ModelProto:
    nodes = [
        node("Split", "x parts", "a b", axis=1),
        node("Concat", "b a", "c", axis=1),
        node("Slice", "c from to", "s"),
        node("Gather", "s rows", "g", axis=1),
        node("Pad", "g pads", "p"),
        node("Resize", "p  factors", "r", mode="nearest"),
        node("Unsqueeze", "r axes", "u"),
        node("Expand", "u wide", "e"),
        node("Einsum", "e w", "y", equation="abcde,ef->abcdf"),
    ]
    nodes[5].input[:] = ["p", "", "factors"]
    constants = {
        "parts": np.array([2, 4]),
        "from": np.array([0, 1]),
        "to": np.array([1, 5]),
        "rows": np.array([3, 0]),
        "pads": np.array([0, 0, 1, 0, 0, 1]),
        "factors": np.array([1, 1, 2], np.float32),
        "axes": np.array([0]),
        "wide": np.array([2, 1, 2, 10, 1]),
        "w": floats(1, 3),
    }
    constants["axes"] = np.array([0, 4])
    return model(nodes, {"x": [1, 6, 3]}, ["y"], constants)


def _branches() -> onnx.ModelProto:
    """A graph in a node, and a part that is not there."""
    parts = []
    for kind in ("Relu", "Neg"):
        out = helper.make_tensor_value_info(kind, TensorProto.FLOAT, [3])
        parts.append(helper.make_graph([helper.make_node(kind, ["x"], [kind])], kind, [], [out]))
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        node("If", "c", "y", then_branch=parts[0], else_branch=parts[1]),
    ]
    return model(nodes, {"x": [3]}, ["y"], {"zero": np.float32(0)})


def other_model(dice: random.Random, content: bytes) -> bytes:
    """A model with a node, an operand, an attribute, a constant or a shape changed."""
    try:
        proto = onnx.ModelProto.FromString(content)
        _CHANGES[dice.randrange(len(_CHANGES))](dice, proto.graph)
        return proto.SerializeToString()
    except Exception:  # of protobuf, of many unrelated types: no model any more, or a wrong value
        return content


def _other_op(dice: random.Random, graph: onnx.GraphProto) -> None:
    dice.choice(graph.node).op_type = dice.choice([dice.choice(graph.node).op_type, *OPS])


def _no_node(dice: random.Random, graph: onnx.GraphProto) -> None:
    graph.node.remove(dice.choice(graph.node))


def _twice(dice: random.Random, graph: onnx.GraphProto) -> None:
    """The same node again, with other names behind it."""
    one = dice.choice(graph.node)
    again = graph.node.add()
    again.CopyFrom(one)
    again.output[:] = [f"{name}_" for name in one.output]


def _other_operand(dice: random.Random, graph: onnx.GraphProto) -> None:
    one, other = dice.choice(graph.node), dice.choice(graph.node)
    constants = [item.name for item in graph.initializer]
    one.input[dice.randrange(len(one.input))] = dice.choice(
        [*other.input, *one.output, *other.output, *constants, ""]
    )


def _fewer_operands(dice: random.Random, graph: onnx.GraphProto) -> None:
    one = dice.choice(graph.node)
    del one.input[dice.randrange(len(one.input)) :]


def _other_attribute(dice: random.Random, graph: onnx.GraphProto) -> None:
    own, value = dice.choice(dice.choice(graph.node).attribute), dice.choice(NUMBERS)
    own.i = value
    if own.ints:
        own.ints[dice.randrange(len(own.ints))] = value
        own.ints[:] = [*own.ints] * dice.choice([1, 1, 2])


def _other_constant(dice: random.Random, graph: onnx.GraphProto) -> None:
    """Other sizes, other numbers, or those of another constant."""
    own, kind = dice.choice(graph.initializer), dice.randrange(3)
    if kind == 0:
        own.dims[dice.randrange(len(own.dims))] = dice.choice(SIZES)
    elif kind == 1:
        own.raw_data = dice.randbytes(len(own.raw_data))
    else:
        name = own.name
        own.CopyFrom(dice.choice(graph.initializer))
        own.name = name


def _elsewhere(dice: random.Random, graph: onnx.GraphProto) -> None:
    """A constant in another file, which is not there or is not to be read."""
    own = dice.choice(graph.initializer)
    own.data_location = TensorProto.EXTERNAL
    place = {"location": dice.choice(["../m.onnx", "/etc/passwd", "m.onnx", "none"])}
    place["length"] = str(dice.choice([4, *SIZES]))
    for key, value in place.items():
        entry = own.external_data.add()
        entry.key, entry.value = key, value


def _other_shape(dice: random.Random, graph: onnx.GraphProto) -> None:
    sizes = dice.choice(graph.input).type.tensor_type.shape.dim
    dice.choice(sizes).dim_value = dice.choice(SIZES)


def _other_type(dice: random.Random, graph: onnx.GraphProto) -> None:
    dice.choice(graph.input).type.tensor_type.elem_type = dice.randrange(26)


_CHANGES = (
    *(_other_op, _no_node, _twice, _other_operand, _other_operand, _fewer_operands),
    *(_other_attribute, _other_attribute, _other_constant, _other_constant, _elsewhere),
    *(_other_shape, _other_type),
)
