"""The sizes of a model's inputs, fixed before it is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from codl.errors import CodlError, UnknownNameError, UnsupportedError
from codl.frontend.graph.weights import refill, with_fields
from codl.yaml_file import MOST

Sizes = tuple[int, ...]
#: Nodes that may round sizes up.
POOLS = ("AveragePool", "LpPool", "MaxPool")


def sizes_of(info: onnx.ValueInfoProto) -> Sizes:
    """A tensor's sizes; 0 where one is not fixed."""
    return tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)


def text_of(info: onnx.ValueInfoProto) -> str:
    """A tensor's sizes for people, with the names of those that are not fixed."""
    dims = info.type.tensor_type.shape.dim
    return "x".join(
        str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims
    )


def fix_batch(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a batch of 1 where that is open; raises as `fix_shapes`."""
    return fix_shapes(proto, {})


def fix_shapes(proto: onnx.ModelProto, shapes: Mapping[str, Sizes]) -> onnx.ModelProto:
    """The model with every size of its inputs fixed.

    `shapes` are those of some inputs by name; sizes of one name are the same everywhere. The first
    size of an input, its batch, is 1 unless it is given. Raises `UnknownNameError` for
    other names than the inputs', `UnsupportedError` with the sizes that are still open, and
    `CodlError` for sizes that contradict the model.
    """
    names = [info.name for info in data_inputs(proto)]
    for name in shapes:
        if name not in names:
            raise UnknownNameError("input", name, names)
    if not shapes and all(min(sizes_of(info), default=1) > 0 for info in data_inputs(proto)):
        return proto
    fixed = with_fields(proto)
    _set(fixed, shapes)
    for info in data_inputs(fixed):
        _check(info)
    for info in [*fixed.graph.output, *fixed.graph.value_info]:
        info.type.tensor_type.ClearField("shape")
    return fixed


def data_inputs(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """The inputs that a caller gives; older models list their constants too."""
    constants = {item.name for item in proto.graph.initializer}
    return (info for info in proto.graph.input if info.name not in constants)


def _set(proto: onnx.ModelProto, shapes: Mapping[str, Sizes]) -> None:
    """Set the sizes that are given, then those of the same names, then the batches."""
    named: dict[str, int] = {}
    for info in data_inputs(proto):
        dims, sizes = info.type.tensor_type.shape.dim, shapes.get(info.name)
        if sizes is None:
            continue
        if len(sizes) != len(dims):
            raise CodlError(
                f"The input {info.name!r} has {len(dims)} axes ({text_of(info)}), "
                f"got {'x'.join(map(str, sizes))}."
            )
        for dim, size in zip(dims, sizes, strict=True):
            wanted = dim.dim_value or named.get(dim.dim_param, size)
            if wanted != size:
                raise CodlError(
                    f"The input {info.name!r} has the shape {text_of(info)}: {dim.dim_param or ''}"
                    f"{' is ' if dim.dim_param else ''}{wanted}, got {'x'.join(map(str, sizes))}."
                )
            if dim.dim_param:
                named[dim.dim_param] = size
    for info in data_inputs(proto):
        fixed = shapes.get(info.name)
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_value < 1:
                size = fixed[axis] if fixed else named.get(dim.dim_param, 1 if axis == 0 else 0)
                if size > 0:
                    dim.dim_value = size


def _check(info: onnx.ValueInfoProto) -> None:
    """Refuse an input of which a size is still open."""
    dims = info.type.tensor_type.shape.dim
    if all(dim.HasField("dim_value") for dim in dims):
        return
    open_ = [dim.dim_param or f"axis {i}" for i, dim in enumerate(dims) if dim.dim_value < 1]
    example = "x".join(str(dim.dim_value) if dim.HasField("dim_value") else "224" for dim in dims)
    raise UnsupportedError(
        f"The input {info.name!r} has the shape {text_of(info)}: {', '.join(open_)} must be fixed "
        f"before it is compiled, as by --shape {info.name}={example}."
    )


def infer_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all shapes that follow from its inputs'.

    Where a pooling rounds up, ONNX counts a last window that begins behind the image and its
    padding in front, too. ONNX Runtime and PyTorch do not; of one that is padded to the SAME size
    there is a window for each stride whatever it rounds.
    """
    pools = {i: _attributes(n) for i, n in enumerate(proto.graph.node) if n.op_type in POOLS}
    pools = {i: pool for i, pool in pools.items() if pool.get("ceil_mode")}
    if not pools:
        return onnx.shape_inference.infer_shapes(proto)
    plain, given_types = with_fields(proto), {info.name: info.type for info in proto.graph.input}
    made = {name for node in plain.graph.node for name in node.output}
    for info in (*plain.graph.output, *plain.graph.value_info):
        if info.name in made:  # weights may be declared, too
            info.type.tensor_type.ClearField("shape")
        if info.name in given_types:  # an input that is handed out
            info.type.CopyFrom(given_types[info.name])
    for _ in range(len(pools) + 1):  # each pooling may stand behind all others
        inferred = onnx.shape_inference.infer_shapes(plain)
        infos = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
        sizes = {info.name: sizes_of(info) for info in infos}
        before = [plain.graph.node[index].SerializeToString() for index in pools]
        for index, pool in pools.items():
            _round_up(plain.graph.node[index], pool, sizes.get(proto.graph.node[index].input[0]))
        if before == [plain.graph.node[index].SerializeToString() for index in pools]:
            break
    for index in pools:
        inferred.graph.node[index].CopyFrom(proto.graph.node[index])
    return inferred


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def _round_up(node: onnx.NodeProto, attributes: Mapping[str, Any], sizes: Sizes | None) -> None:
    """Let a pooling have as many windows without rounding, by more padding behind."""
    if bytes(attributes.get("auto_pad", b"")).startswith(b"SAME"):
        _replace_attributes(node, {**attributes, "ceil_mode": 0})
        return
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * (2 * rank))
    pads = [0] * (2 * rank) if attributes.get("auto_pad") == b"VALID" else list(pads)
    if sizes is not None and len(sizes) == rank + 2 and min(sizes) > 0:
        for axis, size in enumerate(sizes[2:]):
            front, step = pads[axis], strides[axis]
            extent = (kernel[axis] - 1) * dilations[axis] + 1
            last = -(-(size + front + pads[axis + rank] - extent) // step)
            last -= last * step >= size + front
            pads[axis + rank] = max(pads[axis + rank], last * step + extent - size - front)
    _replace_attributes(node, {**attributes, "pads": pads, "ceil_mode": 0, "auto_pad": b"NOTSET"})


def _replace_attributes(node: onnx.NodeProto, values: Mapping[str, Any]) -> None:
    refill(node.attribute, [helper.make_attribute(name, v) for name, v in values.items()])


def fold_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Shapes that a model asks for become constants where a pooling rounds up.

    ONNX Runtime folds them as ONNX counts windows, and makes other ones.
    """
    asked = [node for node in proto.graph.node if node.op_type == "Shape"]
    pools = [node for node in proto.graph.node if node.op_type in POOLS]
    if not asked or not any(_attributes(n).get("ceil_mode") for n in pools):
        return proto
    graph = infer_shapes(proto).graph
    infos = (*graph.input, *graph.value_info, *graph.output)
    sizes = {info.name: sizes_of(info) for info in infos if info.type.tensor_type.HasField("shape")}
    folded = with_fields(proto)
    for node in folded.graph.node:
        shape = sizes.get(node.input[0], (0,)) if node.op_type == "Shape" else (0,)
        if all(shape):
            ends = _attributes(node)
            value = np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))], np.int64)
            node.CopyFrom(
                helper.make_node(
                    "Constant", [], node.output, node.name, value=numpy_helper.from_array(value)
                )
            )
    return folded


def set_batch(proto: onnx.ModelProto, images: int) -> None:
    """Let a model take `batch` images at a time; what was known of shapes behind the inputs goes.

    Raises `CodlError` for less than one image, for more than any device takes, and where an input
    has no axes.
    """
    if not 1 <= images <= MOST:
        raise CodlError(f"A batch must be of 1 to {MOST} images, got {images}.")
    constants = {item.name for item in proto.graph.initializer}
    for info in proto.graph.input:
        if info.name in constants:
            continue
        sizes = info.type.tensor_type.shape.dim
        if not sizes:
            raise CodlError(f"The input {info.name!r} is a single number: it has no batch.")
        sizes[0].dim_value = images
    for info in [*proto.graph.output, *proto.graph.value_info]:
        info.type.tensor_type.ClearField("shape")
