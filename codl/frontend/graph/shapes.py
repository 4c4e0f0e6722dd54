"""The sizes of a model's inputs, fixed before it is compiled."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from codl.errors import CodlError, UnknownNameError, UnsupportedError
from codl.frontend.graph.plain_form import array_of
from codl.frontend.graph.runtime_sizes import attributes_of, is_doubtful, runtime_sizes
from codl.frontend.graph.weights import constant_of, refill, with_fields
from codl.yaml_file import MOST

Sizes = tuple[int, ...]
#: Nodes that say what sizes a tensor has.
ASKING = ("Shape", "Size")
#: A domain of which ONNX knows no node.
UNKNOWN = "codl.sized"
#: Scales and sizes are of no more axes.
MOST_AXES = 64


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


def infer_shapes(proto: onnx.ModelProto, declared: Collection[str] = ()) -> onnx.ModelProto:
    """The model with all shapes that follow from its inputs', and from `declared` ones.

    ONNX infers them. Where ONNX Runtime gives an output other sizes, those behind it follow from
    these: ONNX then sees a node that it does not know, and the output's declared shape.
    """
    doubtful = {i: node for i, node in enumerate(proto.graph.node) if is_doubtful(node)}
    if not doubtful:
        return onnx.shape_inference.infer_shapes(proto)
    plain = _undeclared(proto, declared)
    known = _constants(proto.graph, {name for node in doubtful.values() for name in node.input})
    opset = max((item.version for item in proto.opset_import if not item.domain), default=1)
    found: dict[int, Sizes] = {}
    for _ in range(len(doubtful) + 1):  # each may stand behind all others
        inferred = onnx.shape_inference.infer_shapes(_sized(plain, found))
        sizes = known_sizes(inferred.graph)
        before = dict(found)
        for index, node in doubtful.items():
            run = runtime_sizes(node, sizes, known, opset)
            if run is not None and run != sizes.get(node.output[0]):
                found[index] = run
        if found == before:
            break
    for index in found:
        inferred.graph.node[index].CopyFrom(proto.graph.node[index])
    refill(inferred.opset_import, proto.opset_import)
    return inferred


def known_sizes(graph: onnx.GraphProto) -> dict[str, Sizes]:
    """Of the tensors of which every size is known and above 0."""
    infos = (*graph.input, *graph.value_info, *graph.output)
    sizes = {i.name: sizes_of(i) for i in infos if i.type.tensor_type.HasField("shape")}
    sizes |= {item.name: tuple(item.dims) for item in graph.initializer}
    return {name: dims for name, dims in sizes.items() if all(size > 0 for size in dims)}


def _undeclared(proto: onnx.ModelProto, declared: Collection[str]) -> onnx.ModelProto:
    """The model without shapes of what its nodes make, but those `declared`."""
    plain, given = with_fields(proto), {info.name: info.type for info in proto.graph.input}
    made = {name for node in plain.graph.node for name in node.output}.difference(declared)
    for info in (*plain.graph.output, *plain.graph.value_info):
        if info.name in made:  # weights may be declared, too
            info.type.tensor_type.ClearField("shape")
        if info.name in given:  # an input that is handed out
            info.type.CopyFrom(given[info.name])
    return plain


def _sized(plain: onnx.ModelProto, found: Mapping[int, Sizes]) -> onnx.ModelProto:
    """The model with nodes that ONNX does not know, whose outputs have these sizes."""
    if not found:
        return plain
    sized = with_fields(plain)
    sized.opset_import.append(helper.make_opsetid(UNKNOWN, 1))
    graph, declared = sized.graph, dict[str, onnx.ValueInfoProto]()
    for info in (*graph.value_info, *graph.output):
        declared[info.name] = info
    for index, sizes in found.items():
        node = graph.node[index]
        for number, name in enumerate(filter(None, node.output)):
            kind = onnx.TensorProto.INT64 if number else onnx.TensorProto.FLOAT
            made = helper.make_tensor_value_info(name, kind, sizes)
            if name not in declared:
                graph.value_info.append(made)
                continue
            kind = declared[name].type.tensor_type.elem_type or kind
            declared[name].type.CopyFrom(made.type)
            declared[name].type.tensor_type.elem_type = kind
        node.domain = UNKNOWN
    return sized


def _constants(graph: onnx.GraphProto, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Some constants, without weights: scales and sizes."""
    items = (item for item in graph.initializer if item.name in names)
    found = {item.name: array_of(item) for item in items if prod(item.dims) <= MOST_AXES}
    constants = [node for node in graph.node if node.op_type == "Constant"]
    return found | {n.output[0]: constant_of(n) for n in constants if n.output[0] in names}


def fold_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Shapes that a model asks for become constants where ONNX may infer others.

    ONNX Runtime folds them as ONNX infers them.
    """
    asked = [node for node in proto.graph.node if node.op_type in ASKING]
    if not asked or not any(map(is_doubtful, proto.graph.node)):
        return proto
    sizes = known_sizes(infer_shapes(proto).graph)
    folded = with_fields(proto)
    for node in folded.graph.node:
        if node.op_type not in ASKING or node.input[0] not in sizes:
            continue
        ends, shape = attributes_of(node), sizes[node.input[0]]
        value = np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))], np.int64)
        value = np.array(prod(shape), np.int64) if node.op_type == "Size" else value
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
