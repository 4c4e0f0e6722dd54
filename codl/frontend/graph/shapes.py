"""Shapes of a model's tensors: fixing input sizes, inference, batches.

ONNX infers shapes. ONNX Runtime gives sizes of nodes for which both differ, and shapes of nodes of
other domains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.errors import CodlError, UnknownNameError, UnsupportedError
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.weights import (
    LEAST_IR_VERSION,
    POOLS,
    RESIZES,
    Model,
    array_of,
    attributes_of,
    constant_of,
    is_doubtful,
    refill,
    with_fields,
)
from codl.ir.yaml_file import MOST

Sizes = tuple[int, ...]
#: Attributes without an effect on sizes.
OF_VALUES = (
    *("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside"),
    *("extrapolation_value", "group", "mode", "nearest_mode", "storage_order"),
)
#: Nodes that return a tensor's sizes.
ASKING = ("Shape", "Size")
#: Most elements of a constant with scales or sizes.
MOST_AXES = 64


def sizes_of(info: onnx.ValueInfoProto) -> Sizes:
    """A tensor's sizes; 0 for an open one."""
    return tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)


def text_of(info: onnx.ValueInfoProto) -> str:
    """A tensor's sizes as text, with names of open ones."""
    dims = info.type.tensor_type.shape.dim
    return "x".join(
        str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims
    )


def fix_shapes(proto: onnx.ModelProto, shapes: Mapping[str, Sizes]) -> onnx.ModelProto:
    """The model with all input sizes fixed.

    `shapes` has sizes of inputs by name; open sizes of one name are equal. The first size of an
    input, its batch, is 1 by default. Raises `UnknownNameError` for a name that is no input,
    `UnsupportedError` with the sizes still open, and `CodlError` for sizes that contradict the
    model.
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
    """Inputs from the caller, without the constants that older models list too."""
    constants = {item.name for item in proto.graph.initializer}
    return (info for info in proto.graph.input if info.name not in constants)


def _set(proto: onnx.ModelProto, shapes: Mapping[str, Sizes]) -> None:
    """Set the given sizes, then sizes of the same names, then batch sizes."""
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
    """Raise `UnsupportedError` for an input with an open size."""
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
    """The model with all shapes that follow from its inputs and `declared` tensors.

    ONNX infers them. Outputs of nodes with other sizes in ONNX Runtime are inputs meanwhile, from
    which further shapes follow.
    """
    doubtful = [node for node in proto.graph.node if is_doubtful(node)]
    if not doubtful:
        return onnx.shape_inference.infer_shapes(proto)
    plain = _undeclared(proto, declared)
    inferred = onnx.shape_inference.infer_shapes(plain)
    known = _constants(proto.graph, {name for node in doubtful for name in node.input})
    opset = max((item.version for item in proto.opset_import if not item.domain), default=1)
    found: dict[str, Sizes] = {}
    for _ in range(len(doubtful)):  # at worst a chain of all
        sizes = known_sizes(inferred.graph)
        before = dict(found)
        for node in doubtful:
            run = _runtime_sizes(node, sizes, known, opset)
            if run is not None and run != sizes.get(node.output[0]):
                found |= dict.fromkeys(filter(None, node.output), run)
        if found == before:
            break
        inferred = onnx.shape_inference.infer_shapes(_cut(plain, inferred, found))
    graph = inferred.graph
    ends = {info.name for info in graph.output}
    cut = [info for info in graph.input if info.name in found]
    nodes = iter([*graph.node])
    refill(
        graph.node,
        [next(nodes) if found.keys().isdisjoint(n.output) else n for n in proto.graph.node],
    )
    refill(graph.input, proto.graph.input)
    graph.value_info.extend(info for info in cut if info.name not in ends)
    return inferred


def _runtime_sizes(
    node: onnx.NodeProto,
    sizes: Mapping[str, Sizes],
    constants: Mapping[str, NDArray[Any]],
    opset: int,
) -> Sizes | None:
    """Sizes of a doubtful node's first output in ONNX Runtime; None if unknown.

    ONNX rounds sizes of a scaled Resize differently, and adds padding to a ConvTranspose's SAME
    size. It has counted other windows of poolings that round up. Here ONNX Runtime runs the node on
    zeros; a window needs one image and one channel. `sizes` are sizes of its inputs, `constants`
    the values of its constant inputs.
    """
    x, given = sizes.get(node.input[0], ()), attributes_of(node)
    others = [constants.get(name) for name in node.input[1:]]
    known: Sizes = ()  # first sizes of the output, where the run has one element
    if node.op_type in RESIZES:
        if len(others) > 1:  # the corners of a crop, which do not matter
            others[0] = np.empty(0, np.float32) if node.input[1] else None
        if any(name and other is None for name, other in zip(node.input[1:], others, strict=True)):
            return None
    elif node.op_type in POOLS:
        known = x[:2]
    else:
        weight = sizes.get(node.input[1], ())
        if len(weight) != len(x):
            return None
        known = (x[0], weight[1] * given.get("group", 1))
        others = [np.zeros((1, 1, *weight[2:]), np.float32)]
    if not x or (known and len(x) < 3):
        return None
    fixed = {f"v{i}": value for i, value in enumerate(others) if value is not None}
    names = ["x", *(f"v{i}" if f"v{i}" in fixed else "" for i in range(len(others)))]
    attributes = {key: value for key, value in given.items() if key not in OF_VALUES}
    seen = (*[1] * len(known), *x[len(known) :])
    graph = helper.make_graph(
        [helper.make_node(node.op_type, names, ["y"], **attributes)],
        "single",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, seen)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in fixed.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    version = helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    proto = helper.make_model(
        graph, opset_imports=opsets, ir_version=max(LEAST_IR_VERSION, version)
    )
    made = _run(bytes(proto.SerializeToString(deterministic=True)))
    return made and known + made[len(known) :]


@lru_cache(maxsize=4096)
def _run(model: bytes) -> Sizes | None:
    """Sizes of the output for zeros; None if ONNX Runtime refuses the model."""
    options = session_options(1)
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
        x = session.get_inputs()[0]
        (y,) = session.run(None, {x.name: np.zeros(x.shape, np.float32)})
    except Exception:  # ONNX Runtime's exceptions share no base class
        return None
    return tuple(y.shape)


def known_sizes(graph: onnx.GraphProto) -> dict[str, Sizes]:
    """Sizes of tensors whose sizes are all known and above 0."""
    infos = (*graph.input, *graph.value_info, *graph.output)
    sizes = {i.name: sizes_of(i) for i in infos if i.type.tensor_type.HasField("shape")}
    sizes |= {item.name: tuple(item.dims) for item in graph.initializer}
    return {name: dims for name, dims in sizes.items() if all(size > 0 for size in dims)}


def _undeclared(proto: onnx.ModelProto, declared: Collection[str]) -> onnx.ModelProto:
    """The model without shapes of computed tensors, except `declared` ones."""
    plain, given = with_fields(proto), {info.name: info.type for info in proto.graph.input}
    made = {name for node in plain.graph.node for name in node.output}.difference(declared)
    for info in (*plain.graph.output, *plain.graph.value_info):
        if info.name in made:  # weights may be declared, too
            info.type.tensor_type.ClearField("shape")
        if info.name in given:  # an input that is also an output
            info.type.CopyFrom(given[info.name])
    return plain


def _constants(graph: onnx.GraphProto, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """The small constants among `names`, for scales and sizes."""
    items = (item for item in graph.initializer if item.name in names)
    found = {item.name: array_of(item) for item in items if prod(item.dims) <= MOST_AXES}
    constants = [node for node in graph.node if node.op_type == "Constant"]
    return found | {n.output[0]: constant_of(n) for n in constants if n.output[0] in names}


def fold_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with constants for Shape and Size nodes, if ONNX may infer wrong shapes.

    ONNX Runtime would fold them with ONNX's shapes.
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
    """Set a model's batch size, in place, and clear all shapes behind the inputs.

    Raises `CodlError` for a batch below 1 or above `MOST`, and for an input without axes.
    """
    if not 1 <= images <= MOST:
        raise CodlError(f"A batch must be of 1 to {MOST} images, got {images}.")
    for info in data_inputs(proto):
        sizes = info.type.tensor_type.shape.dim
        if not sizes:
            raise CodlError(f"The input {info.name!r} is a single number: it has no batch.")
        sizes[0].dim_value = images
    for info in [*proto.graph.output, *proto.graph.value_info]:
        info.type.tensor_type.ClearField("shape")


# Types and sizes of all tensors, by ONNX and by ONNX Runtime.


#: ONNX's type codes by ONNX Runtime's names.
TENSOR_TYPES = {f"tensor({k.lower()})": code for k, code in TensorProto.DataType.items()}


def with_shapes(source: Model) -> Model:
    """The model with shapes of all tensors: from ONNX, and from ONNX Runtime for other domains.

    ONNX Runtime's answer is empty for scalars and unknown shapes alike, so it is not used then.
    """
    model = infer_shapes(source.proto)
    inferred = Model(model, source.weights)
    versions = {item.domain: item.version for item in model.opset_import}
    nodes = model.graph.node
    if all(onnx.defs.has(n.op_type, versions.get(n.domain, 1), n.domain) for n in nodes):
        return inferred
    infos = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    shaped = {info.name for info in infos if not unknown_reason(info)}
    made = [name for node in model.graph.node for name in node.output if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in made if name not in shaped]
    asked = _cut(with_fields(model, output=outputs), model, known_sizes(model.graph))
    options = session_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = Model(asked, source.weights).session(options)
    except Exception:  # ONNX Runtime's exceptions share no base class
        return inferred
    args = [arg for arg in session.get_outputs() if arg.type in TENSOR_TYPES and arg.shape]
    answers = {  # sizes that depend on data have names
        arg.name: helper.make_tensor_value_info(arg.name, TENSOR_TYPES[arg.type], arg.shape)
        for arg in args
    }
    for field in (model.graph.output, model.graph.value_info):
        refill(field, [answers.get(info.name, info) for info in field])
    declared = {info.name for info in (*model.graph.output, *model.graph.value_info)}
    model.graph.value_info.extend(answers[name] for name in sorted(answers.keys() - declared))
    return Model(infer_shapes(model, answers), source.weights)


def _cut(
    proto: onnx.ModelProto, typed: onnx.ModelProto, sizes: Mapping[str, Sizes]
) -> onnx.ModelProto:
    """The model without doubtful nodes of known `sizes`; their outputs become inputs of these.

    `typed` is the model with types of its tensors.
    """
    infos = (*typed.graph.value_info, *typed.graph.output)
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    cut = {
        name: helper.make_tensor_value_info(
            name,
            types.get(name) or (TensorProto.INT64 if number else TensorProto.FLOAT),
            sizes[name],
        )
        for node in proto.graph.node
        if is_doubtful(node) and all(name in sizes for name in node.output if name)
        for number, name in enumerate(node.output)
        if name
    }
    if not cut:
        return proto
    return with_fields(
        proto,
        node=[node for node in proto.graph.node if cut.keys().isdisjoint(node.output)],
        input=[*proto.graph.input, *cut.values()],
        value_info=[info for info in proto.graph.value_info if info.name not in cut],
        output=[cut.get(info.name, info) for info in proto.graph.output],
    )


def unknown_reason(info: onnx.ValueInfoProto) -> str:
    """Why a tensor's sizes are unknown or unusable; empty if they are known."""
    if not info.type.tensor_type.HasField("shape"):
        return f"The shape of the tensor {info.name!r} is not known before a run."
    dims = info.type.tensor_type.shape.dim
    if all(dim.dim_value > 0 for dim in dims):
        return ""
    sizes = text_of(info)
    if all(dim.HasField("dim_value") for dim in dims):
        return f"The tensor {info.name!r} is empty ({sizes}); codl has no empty tensors."
    return f"The tensor {info.name!r} has the shape {sizes}; every size must be fixed."
