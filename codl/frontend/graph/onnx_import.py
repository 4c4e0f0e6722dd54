"""Import of ONNX models as a `Graph`: folding, shape inference, unique names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx
from onnx import helper

from codl.errors import UnsupportedError
from codl.frontend.graph.graph import Graph, Names, in_order
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.shapes import (
    fix_shapes,
    fold_shapes,
    infer_shapes,
    sizes_of,
    unknown_reason,
    with_shapes,
)
from codl.frontend.graph.weights import (
    FIRST_OF_TODAY,
    Model,
    all_graphs,
    constant_of,
    opset_of,
    with_fields,
)
from codl.ir.onnx_node import Node, type_of

ROUNDS = 3
#: Models of newer opsets are also tried under older ones, down to this.
OLDEST_TRIED = 26
#: Prefix of ONNX Runtime's messages.
STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (This is an invalid model\. )?")


def import_onnx(
    source: onnx.ModelProto | Model, name: str, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Graph:
    """Optimise an ONNX model and read it as a graph.

    `shapes` fixes sizes of inputs; an open batch size becomes 1. A valid model that ONNX Runtime
    cannot load, for an unknown op or opset, is read without optimisation. Raises `UnsupportedError`
    for an invalid model, and for an input with any other open size.
    """
    model_given = source if isinstance(source, Model) else Model.of(source)
    fixed = _in_order(fix_shapes(model_given.proto, shapes or {}))
    fixed = fold_shapes(fixed)
    folded = _optimise(Model(fixed, model_given.weights))
    model = with_shapes(Model(_in_order(folded.proto), folded.weights))
    graph = model.proto.graph
    constants = model.constants()
    constants |= {n.output[0]: constant_of(n) for n in graph.node if n.op_type == "Constant"}
    fixed_sizes = {*constants, *(info.name for info in graph.input)}  # they may be outputs, too
    later = [*graph.value_info, *graph.output]
    infos = [*graph.input, *(info for info in later if info.name not in fixed_sizes)]
    unknown = {info.name: reason for info in infos if (reason := unknown_reason(info))}
    shapes_known = {info.name: sizes_of(info) for info in infos if info.name not in unknown}
    shapes_known |= {key: tuple(value.shape) for key, value in constants.items()}
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    types |= {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in constants.items()}
    kept = [node for node in graph.node if node.op_type != "Constant"]
    given = [*all_graphs(model_given.proto.graph), *all_graphs(graph)]
    nodes = tuple(_nodes(kept))
    inputs = tuple(info.name for info in graph.input)
    for each in inputs:
        if each in unknown:
            raise UnsupportedError(unknown[each])
    outputs = tuple(info.name for info in graph.output)
    domains = {item.domain: item.version for item in model.proto.opset_import if item.domain}
    return Graph(
        name,
        nodes,
        inputs,
        outputs,
        shapes_known,
        constants,
        opset=opset_of(model.proto),
        types=types,
        domains=domains,
        unknown=unknown,
        names=Names(_tensors(given), (node.name for node in nodes)),
    )


def _in_order(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with nodes in topological order, which neither files nor ONNX Runtime ensure."""
    unordered = [_node(node, index) for index, node in enumerate(proto.graph.node)]
    nodes = in_order(unordered)
    if all(node is same for node, same in zip(nodes, unordered, strict=True)):
        return proto
    return with_fields(proto, node=[node.proto for node in nodes])


def _optimise(model: Model) -> Model:
    """Fold constants and batch norms; a valid model that ONNX Runtime cannot load stays.

    Models below opset 7 are refused then, as their node types have changed since.
    """
    problem: Exception | None = None
    for same in generations(model):
        try:
            return _fold(same)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            problem = problem or error
    version = opset_of(model.proto)
    if version >= FIRST_OF_TODAY and _is_valid(model):
        return model
    fix = ""
    if version < FIRST_OF_TODAY:
        fix = f" Its opset is {version}: export it again with opset {FIRST_OF_TODAY} or newer."
    raise UnsupportedError(
        "ONNX Runtime cannot load the model, and runs what codl has no operator for: "
        f"{said_by_onnx_runtime(problem)}{fix}"
    ) from problem


def said_by_onnx_runtime(error: Exception | None) -> str:
    """ONNX Runtime's message in one line, without its code."""
    return " ".join(STATUS.sub("", str(error)).split())


def _is_valid(model: Model) -> bool:
    """Whether ONNX's checker accepts the model, with inferred shapes of outputs."""
    try:
        onnx.checker.check_model(infer_shapes(model.whole()), full_check=True)
    except (ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def generations(model: Model) -> Iterator[Model]:
    """The model, then the same under older opsets, as ONNX Runtime lags behind ONNX."""
    yield model
    version = opset_of(model.proto)
    whole = model.whole() if version > OLDEST_TRIED else None
    for older in range(version - 1, OLDEST_TRIED - 1, -1):
        try:
            proto = onnx.version_converter.convert_version(whole, older)
        except RuntimeError:  # a node has no equal in the older opset
            return
        proto.ir_version = helper.find_min_ir_version_for(proto.opset_import)
        yield Model.of(proto)


def _fold(model: Model) -> Model:
    """ONNX Runtime's basic optimisations, which stay within standard ONNX.

    It expands functions after it has folded, so another round folds their nodes.
    """
    for _ in range(ROUNDS):
        model = model.optimised(session_options())
        graph = model.proto.graph
        fixed = {item.name for item in graph.initializer}
        if not any(node.input and fixed.issuperset(node.input) for node in graph.node):
            break
    return model


def _nodes(protos: Sequence[onnx.NodeProto]) -> Iterator[Node]:
    """Nodes with unique names, also if the model gives none or duplicates."""
    nodes = [_node(proto, index) for index, proto in enumerate(protos)]
    taken, given = set[str](), {node.name for node in nodes}
    for index, node in enumerate(nodes):
        name = node.name
        while name in taken or (name in given and name != node.name):
            name = f"{name}_{index}"
        taken.add(name)
        yield node if name == node.name else replace(node, name=name)


def _tensors(graphs: Iterable[onnx.GraphProto]) -> Iterator[str]:
    for graph in graphs:
        for node in graph.node:
            yield from (*node.input, *node.output)
        for info in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            yield info.name


def _node(node: onnx.NodeProto, index: int) -> Node:
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    name = node.name or f"{node.op_type}_{index}"
    return Node(name, type_of(node), tuple(node.input), tuple(node.output), attributes, node)
