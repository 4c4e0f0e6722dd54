"""Forms in which random graphs are written: old opsets and files, names, weights of all kinds.

A form changes how a model is written, and not what it computes, so the graph as it was drawn is the
reference. Drawing a form throws dice of its own: the graph of a seed stays the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import helper, numpy_helper

from codl.frontend.convert import network_of
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.graph.weights import refill
from support.random_graphs import (
    FLOATS,
    Dropped,
    Form,
    RandomGraph,
    reads,
    run_nodes,
)


def renamed(proto: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    """A model with other names for some tensors."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    _rename(copy.graph, names)
    return copy


def renamed_node(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A node that reads and makes tensors of other names."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    _rename_of_node(copy, names)
    return copy


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    sparse = (item.values for item in graph.sparse_initializer)
    infos = (graph.input, graph.output, graph.value_info, graph.initializer, sparse)
    for item in chain(*infos):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        _rename_of_node(node, names)


def _rename_of_node(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    for field in (node.input, node.output):
        field[:] = [names.get(name, name) for name in field]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            _rename(graph, names)


#: Forms by their share of graphs.
FORMS = {
    "opset": 0.15,
    "ir": 0.1,
    "sparse": 0.08,
    "external": 0.08,
    "branch": 0.08,
    "names": 0.15,
    "strays": 0.06,
}
#: A model says that it is of one of these; ONNX Runtime has all kernels of opset 7.
OPSETS, IR_VERSIONS = range(7, 24), range(3, 12)
ODD_NAMES = (
    *("0", " ", "a b", "\t", "é", "ß", "x" * 300, "a/b:0", "a.b", "model.0/Conv_output_0"),
    *("codl.in0", "codl.out", "codl.out.flat", "%s", "{}", "'", '"', "\\"),
)


def drawn_forms(seed: int, index: int, forms: Collection[str]) -> set[str]:
    """The forms of graph `index` of a seed, of those that may be."""
    dice = Random(f"forms {seed} {index}")
    return {form for form, share in FORMS.items() if dice.random() < share and form in forms}


def in_form(graph: RandomGraph, drawn: Collection[str], dice: Random) -> RandomGraph:
    """The graph with the form in which it is written."""
    if "branch" in drawn:
        graph = _with_branch(graph, dice)
    if "names" in drawn:
        graph = _with_names(graph, dice)
    plain = [n for n, v in graph.constants.items() if v.dtype in FLOATS and v.size and v.ndim]
    oldest = 4 if "branch" in drawn else 3  # before, constants of branches are no use
    form = Form(
        ir_version=max(dice.choice(IR_VERSIONS), oldest) if "ir" in drawn else 10,
        sparse=tuple(n for n in plain if dice.random() < 0.5) if "sparse" in drawn else (),
        external="external" in drawn,
    )
    return replace(graph, form=form)


def written(graph: RandomGraph) -> onnx.ModelProto:
    """The model in its form, with its weights in it."""
    proto = graph.model()
    form, content = graph.form, proto.graph
    proto.ir_version = form.ir_version
    if form.ir_version < 4:  # there constants are inputs, too
        given = {info.name for info in content.input}
        for item in content.initializer:
            if item.name not in given:
                info = helper.make_tensor_value_info(item.name, item.data_type, item.dims)
                content.input.append(info)
    for name in form.sparse:
        if name in graph.constants and name not in {info.name for info in content.input}:
            kept = [item for item in content.initializer if item.name != name]
            refill(content.initializer, kept)
            content.sparse_initializer.append(_sparse(name, graph.constants[name]))
    return proto


def saved(graph: RandomGraph, folder: Path) -> Path:
    """The model as a file, with its weights in another one."""
    path = folder / "model.onnx"
    onnx.save(
        written(graph), path, save_as_external_data=True, location="weights", size_threshold=0
    )
    return path


def _sparse(name: str, value: np.ndarray) -> onnx.SparseTensorProto:
    """The elements that are not 0, by their places, or by their indices along the axes."""
    places = np.flatnonzero(value)
    indices = places if len(name) % 2 else np.argwhere(value)
    return helper.make_sparse_tensor(
        numpy_helper.from_array(value.reshape(-1)[places], name),
        numpy_helper.from_array(indices.astype(np.int64), f"{name}.indices"),
        list(value.shape),
    )


def _with_names(graph: RandomGraph, dice: Random) -> RandomGraph:
    """Other names for some tensors: odd ones, and such as codl's passes make for this graph."""
    own = [*graph.feeds, *graph.constants]
    own += [name for node in graph.nodes for name in node.output if name]
    others = [name for name in ODD_NAMES if name not in own]
    try:
        imported = import_onnx(graph.model(), "random", graph.shapes)
        network_of(imported)
        others = [*sorted(imported.names.given - set(own)), *others]
    except Exception:  # what is wrong is found when the graph is run
        pass
    dice.shuffle(others)
    names = dict(zip(dice.sample(own, min(len(own), 4)), others, strict=False))

    def of(name: str) -> str:
        return names.get(name, name)

    return replace(
        graph,
        nodes=[renamed_node(node, names) for node in graph.nodes],
        feeds={of(name): value for name, value in graph.feeds.items()},
        constants={of(name): value for name, value in graph.constants.items()},
        outputs=[of(name) for name in graph.outputs],
        declared={of(name): sizes for name, sizes in graph.declared.items()},
        overridable=tuple(map(of, graph.overridable)),
    )


def _with_branch(graph: RandomGraph, dice: Random) -> RandomGraph:
    """A node with weights is in both branches of an If, which hold them."""
    weighty = [
        node
        for node in graph.nodes
        if len(node.output) == 1 and node.op_type not in ("If", "Identity", "Constant")
        and any(name in graph.constants for name in node.input)
    ]  # fmt: skip
    inputs = [name for name, value in graph.feeds.items() if value.dtype == np.float32]
    if not weighty or not inputs:
        return graph
    node = dice.choice(weighty)
    found = f"{node.output[0]}.found"
    branches = {f"{word}_branch": _branch(graph, node, word) for word in ("then", "else")}
    total, zero = f"{found}.total", f"{found}.zero"
    more = {"keepdims": 0}
    made = [
        helper.make_node("ReduceMax", [dice.choice(inputs)], [total], **more),
        helper.make_node("Greater", [total, zero], [found]),
        helper.make_node("If", [found], node.output, **branches),
    ]
    nodes = [new for old in graph.nodes for new in (made if old is node else [old])]
    changed = replace(graph, nodes=nodes, constants={**graph.constants, zero: np.float32(0)})
    try:
        run_nodes(changed)
    except Dropped:
        return graph
    read = {name for each in nodes for name in reads(each)} | set(changed.outputs)
    kept = {n: v for n, v in changed.constants.items() if n in read or n in graph.overridable}
    return replace(changed, constants=kept)


def _branch(graph: RandomGraph, node: onnx.NodeProto, word: str) -> onnx.GraphProto:
    """The node with its weights as initializers, or made by Constant nodes."""
    output, names = f"{node.output[0]}.{word}", dict[str, str]()
    inner, held = [], []
    for name in dict.fromkeys(node.input):
        if name in graph.constants:
            names[name] = f"{node.output[0]}.{word}.{len(names)}"
            value = numpy_helper.from_array(graph.constants[name], names[name])
            if word == "then":
                held.append(value)
            else:
                inner.append(helper.make_node("Constant", [], [names[name]], value=value))
    inner.append(renamed_node(node, {**names, node.output[0]: output}))
    value = run_nodes(graph)[node.output[0]]
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    info = helper.make_tensor_value_info(output, kind, value.shape)
    return helper.make_graph(inner, word, [], [info], held)
