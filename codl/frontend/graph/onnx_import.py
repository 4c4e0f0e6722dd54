"""ONNX in: ONNX Runtime folds constants and batch norms, shapes are inferred, a `Graph` out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from codl.errors import UnsupportedError
from codl.frontend.graph.dynamic_products import fuse_dynamic_products
from codl.frontend.graph.expansions import expand
from codl.frontend.graph.graph import Graph, Names, in_order
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.packed_matrices import check_packed_matrices, keep_packed
from codl.frontend.graph.runtime_sizes import is_doubtful
from codl.frontend.graph.shapes import (
    fix_shapes,
    fold_shapes,
    infer_shapes,
    known_sizes,
    sizes_of,
    text_of,
)
from codl.frontend.graph.weights import Model, constant_of, graphs_of, refill, with_fields
from codl.ir.onnx_node import Node, type_of

ROUNDS = 3
#: ONNX's codes of types by what ONNX Runtime calls them.
TENSOR_TYPES = {f"tensor({k.lower()})": code for k, code in TensorProto.DataType.items()}
#: A model of a newer opset than this one is also tried under older opsets, down to this one.
OLDEST_TRIED = 26
#: How ONNX Runtime's messages begin.
STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (This is an invalid model\. )?")


def import_onnx(
    source: onnx.ModelProto | Model,
    name: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Graph:
    """Optimise and read an ONNX model.

    `shapes` fixes the sizes of some inputs; a batch that is left open becomes 1. A valid model that
    ONNX Runtime cannot load, for an op or opset that it lacks, is read as it is. Raises
    `UnsupportedError` for a model that is not valid, and for any other open size of an input, and
    `CodlError` for a packed matrix whose sizes do not fit.
    """
    model_given = source if isinstance(source, Model) else Model.of(source)
    check_packed_matrices(model_given.proto)
    fixed = _in_order(_without_defaults(fix_shapes(model_given.proto, shapes or {})))
    fixed = fold_shapes(fixed)
    folded = _optimise(Model(fixed, model_given.weights))
    model = _with_shapes(Model(_in_order(folded.proto), folded.weights))
    graph = model.proto.graph
    constants = model.constants()
    constants |= {n.output[0]: constant_of(n) for n in graph.node if n.op_type == "Constant"}
    fixed_sizes = {*constants, *(info.name for info in graph.input)}  # they may be outputs, too
    later = [*graph.value_info, *graph.output]
    infos = [*graph.input, *(info for info in later if info.name not in fixed_sizes)]
    unknown = {info.name: reason for info in infos if (reason := _unknown(info))}
    shapes_known = {info.name: sizes_of(info) for info in infos if info.name not in unknown}
    shapes_known |= {key: tuple(value.shape) for key, value in constants.items()}
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    types |= {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in constants.items()}
    kept = [node for node in graph.node if node.op_type != "Constant"]
    given = [*_graphs(model_given.proto.graph), *_graphs(graph)]
    nodes = tuple(_nodes(kept))
    inputs = tuple(info.name for info in graph.input if info.name not in constants)
    for each in inputs:
        if each in unknown:
            raise UnsupportedError(unknown[each])
    outputs = tuple(info.name for info in graph.output)
    opsets = model.proto.opset_import
    opset = max((item.version for item in opsets if not item.domain), default=1)
    domains = {item.domain: item.version for item in opsets if item.domain}
    imported = Graph(
        name,
        nodes,
        inputs,
        outputs,
        shapes_known,
        constants,
        opset=opset,
        types=types,
        domains=domains,
        unknown=unknown,
        names=Names(_tensors(given), (node.name for node in nodes)),
    )
    return expand(fuse_dynamic_products(keep_packed(imported)))


def _without_defaults(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Inputs that a caller may leave out, since they have values, become the constants they are."""
    fixed = {item.name for item in proto.graph.initializer}
    if fixed.isdisjoint(info.name for info in proto.graph.input):
        return proto
    return with_fields(proto, input=[i for i in proto.graph.input if i.name not in fixed])


def _in_order(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Nodes in topological order: files have them in any, and so has what ONNX Runtime writes."""
    unordered = [_node(node, index) for index, node in enumerate(proto.graph.node)]
    nodes = in_order(unordered)
    if all(node is same for node, same in zip(nodes, unordered, strict=True)):
        return proto
    return with_fields(proto, node=[node.proto for node in nodes])


def _optimise(model: Model) -> Model:
    """Fold constants and batch norms; what ONNX Runtime does not know stays as it is."""
    problem: Exception | None = None
    for older in _generations(model):
        try:
            return _fold(older)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            problem = problem or error
    try:
        onnx.checker.check_model(model.whole(), full_check=True)
    except (ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        reason = STATUS.sub("", str(problem))
        raise UnsupportedError(
            f"ONNX Runtime cannot load the model, and runs what codl has no operator for: {reason}"
        ) from problem
    return model


def _generations(model: Model) -> Iterator[Model]:
    """The model, and the same under some older opsets: ONNX Runtime lags behind ONNX."""
    yield model
    version = next((item.version for item in model.proto.opset_import if not item.domain), 0)
    if version <= OLDEST_TRIED:
        return
    whole = model.whole()
    for older in range(version - 1, OLDEST_TRIED - 1, -1):
        try:
            proto = onnx.version_converter.convert_version(whole, older)
        except RuntimeError:  # a node needs what the older opset does not have
            return
        proto.ir_version = helper.find_min_ir_version_for(proto.opset_import)
        yield Model.of(proto)


def _fold(model: Model) -> Model:
    """The basic level stays inside standard ONNX.

    ONNX Runtime expands nodes that are functions after it has folded: the next round folds those.
    """
    for _ in range(ROUNDS):
        model = model.optimised(session_options())
        graph = model.proto.graph
        fixed = {item.name for item in graph.initializer}
        if not any(node.input and fixed.issuperset(node.input) for node in graph.node):
            break
    return model


def _with_shapes(source: Model) -> Model:
    """ONNX infers the shapes of what its own operators make; ONNX Runtime those of its own too.

    ONNX Runtime says the same of a scalar as of what it knows nothing of.
    """
    model = infer_shapes(source.proto)
    inferred = Model(model, source.weights)
    if all(onnx.defs.has(node.op_type, node.domain) for node in model.graph.node):
        return inferred
    infos = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    shaped = {info.name for info in infos if not _unknown(info)}
    made = [name for node in model.graph.node for name in node.output if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in made if name not in shaped]
    asked = _cut(with_fields(model, output=outputs), known_sizes(model.graph))
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


def _cut(proto: onnx.ModelProto, sizes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """The model whose doubtful nodes are gone: what they make are inputs of the sizes known."""
    cut = [
        node
        for node in proto.graph.node
        if is_doubtful(node) and all(name in sizes for name in node.output if name)
    ]
    if not cut:
        return proto
    infos = (*proto.graph.value_info, *proto.graph.output)
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    made = [name for node in cut for name in node.output if name]
    inputs = [
        helper.make_tensor_value_info(name, types.get(name) or TensorProto.FLOAT, sizes[name])
        for name in made
    ]
    gone = set(made)
    kept = [node for node in proto.graph.node if gone.isdisjoint(node.output)]
    return with_fields(proto, node=kept, input=[*proto.graph.input, *inputs])


def _unknown(info: onnx.ValueInfoProto) -> str:
    """Why a tensor's sizes are not known, or of no use; empty where they are."""
    if not info.type.tensor_type.HasField("shape"):
        return f"The shape of the tensor {info.name!r} is not known before a run."
    dims = info.type.tensor_type.shape.dim
    if all(dim.dim_value > 0 for dim in dims):
        return ""
    sizes = text_of(info)
    if all(dim.HasField("dim_value") for dim in dims):
        return f"The tensor {info.name!r} is empty ({sizes}); codl has no empty tensors."
    return f"The tensor {info.name!r} has the shape {sizes}; every size must be fixed."


def _nodes(protos: Sequence[onnx.NodeProto]) -> Iterator[Node]:
    """Nodes with names of their own, also where the model gives none, or one twice."""
    nodes = [_node(proto, index) for index, proto in enumerate(protos)]
    taken, given = set[str](), {node.name for node in nodes}
    for index, node in enumerate(nodes):
        name = node.name
        while name in taken or (name in given and name != node.name):
            name = f"{name}_{index}"
        taken.add(name)
        yield node if name == node.name else replace(node, name=name)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all graphs in it."""
    left = [graph]
    while left:
        yield (last := left.pop())
        left += [inner for node in last.node for inner in graphs_of(node)]


def _tensors(graphs: Iterable[onnx.GraphProto]) -> Iterator[str]:
    """What tensors are called."""
    for graph in graphs:
        for node in graph.node:
            yield from (*node.input, *node.output)
        for info in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            yield info.name


def _node(node: onnx.NodeProto, index: int) -> Node:
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    name = node.name or f"{node.op_type}_{index}"
    return Node(name, type_of(node), tuple(node.input), tuple(node.output), attributes, node)
