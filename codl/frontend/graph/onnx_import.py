"""ONNX in: ONNX Runtime folds constants and batch norms, shapes are inferred, a `Graph` out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx
from onnx import helper

from codl.errors import UnsupportedError
from codl.frontend.graph.expansions import expand
from codl.frontend.graph.graph import Graph, Names, in_order
from codl.frontend.graph.inference import unknown_reason, with_shapes
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.old_opsets import FIRST_OF_TODAY, in_opset_7, opset_of
from codl.frontend.graph.plain_form import all_graphs
from codl.frontend.graph.shapes import fix_shapes, fold_shapes, infer_shapes, sizes_of
from codl.frontend.graph.weights import Model, constant_of, with_fields
from codl.ir.onnx_node import Node, type_of

ROUNDS = 3
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
    `UnsupportedError` for a model that is not valid, and for any other open size of an input.
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
    imported = Graph(
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
    return expand(imported)


def _in_order(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Nodes in topological order: files have them in any, and so has what ONNX Runtime writes."""
    unordered = [_node(node, index) for index, node in enumerate(proto.graph.node)]
    nodes = in_order(unordered)
    if all(node is same for node, same in zip(nodes, unordered, strict=True)):
        return proto
    return with_fields(proto, node=[node.proto for node in nodes])


def _optimise(model: Model) -> Model:
    """Fold constants and batch norms; what ONNX Runtime does not know stays as it is.

    Nodes of opsets before 7 do not: their types mean something else today.
    """
    problem: Exception | None = None
    is_old = opset_of(model.proto) < FIRST_OF_TODAY
    for same in generations(model):
        try:
            return _fold(same)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            problem = error if is_old else problem or error
    if not is_old and _is_valid(model):
        return model
    raise UnsupportedError(
        "ONNX Runtime cannot load the model, and runs what codl has no operator for: "
        f"{said_by_onnx_runtime(problem)}"
    ) from problem


def said_by_onnx_runtime(error: Exception | None) -> str:
    """A message of ONNX Runtime's in one line, without its code."""
    return " ".join(STATUS.sub("", str(error)).split())


def _is_valid(model: Model) -> bool:
    """By ONNX, which wants to know the shapes of outputs; ONNX Runtime need not."""
    try:
        onnx.checker.check_model(infer_shapes(model.whole()), full_check=True)
    except (ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def generations(model: Model) -> Iterator[Model]:
    """The model, and the same under other opsets, which ONNX Runtime may know: some are too old for
    it, and it lags behind ONNX.

    Raises `UnsupportedError` for a node that the other opset does not have.
    """
    yield model
    version = opset_of(model.proto)
    if version < FIRST_OF_TODAY:
        yield in_opset_7(replace(model, proto=_in_order(model.proto)))
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
