"""Names that passes and converters make, where tensors and nodes of the model have them already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.onnx_models import floats
from support.random_forms import renamed
from support.random_nodes import draw_graph
from support.references import check, evaluate, model_of_values

from codl.frontend.convert import network_of
from codl.frontend.graph.onnx_import import import_onnx

SEED, COUNT, PARTS = 4, 120, 4


def _made(proto: onnx.ModelProto, shapes: dict[str, Any] | None = None) -> list[str]:
    """The names that come to those of a model, in tensors of its network and of models in it."""
    graph = import_onnx(proto, "test", shapes)
    network_of(graph)
    inner = ["codl.in0", "codl.out", "codl.out.flat", "codl.out.0", "codl.of.codl.in0", "codl.0"]
    given = {name for (kind, *_), name in graph.names.given.items() if kind == "tensor"}
    return [*sorted(given), *inner]


def _clashes(proto: onnx.ModelProto, made: list[str]) -> Iterator[dict[str, str]]:
    """Other names for tensors of a model: each that is made, for one that it is not made of."""
    own = {name for node in proto.graph.node for name in (*node.input, *node.output) if name}
    for number, name in enumerate(made):
        others = sorted(each for each in own if not name.startswith(f"{each}."))
        if others:
            yield {others[number % len(others)]: name}
    if len(made) > 2:  # all at once
        yield dict(zip(sorted(own), made, strict=False))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_models_may_have_the_names_that_passes_make(part: int) -> None:
    compared = 0
    for index in range(part, COUNT, PARTS):
        graph = draw_graph(SEED, index, ())
        if not graph.profile.startswith("common"):
            continue
        proto = graph.model()
        try:
            plain = evaluate(network_of(import_onnx(proto, "test", graph.shapes)), graph.feeds)
        except Exception:
            continue  # the reference of an op that the graph has cannot compute it
        for names in _clashes(proto, _made(proto, graph.shapes)):
            feeds = {names.get(name, name): value for name, value in graph.feeds.items()}
            shapes = {names.get(name, name): sizes for name, sizes in graph.shapes.items()}
            network = network_of(import_onnx(renamed(proto, names), "test", shapes))
            got = evaluate(network, feeds)
            for name, expected in plain.items():
                np.testing.assert_allclose(got[names.get(name, name)], expected, rtol=1e-5)
            compared += 1
    assert compared > 20


def test_nodes_may_have_the_names_that_passes_make() -> None:
    """A product and a sum become two layers of one node, whose first is named after it."""
    nodes = [
        helper.make_node("Gemm", ["a", "a", "b"], ["y"], name="gemm"),
        helper.make_node("Relu", ["y"], ["z"], name="gemm.0"),
        helper.make_node("Neg", ["z"], ["u"], name="gemm.0_1"),
        helper.make_node("Abs", ["u"], ["w"], name="Relu_4"),
        helper.make_node("Relu", ["w"], ["v"]),
    ]
    x = {"a": floats(5, 5), "b": floats(5, 1)}
    network = check(model_of_values(nodes, x, outputs=("v",)), x)
    names = [layer.name for layer in network.layers]
    assert len(set(names)) == len(names) > 3


@pytest.mark.parametrize("kind", ["input", "inner", "branch"])
@pytest.mark.parametrize("name", ["codl.in0", "codl.in1", "codl.out", "codl.out.flat", "codl.0"])
def test_tensors_of_an_enclosed_part_may_be_called_as_codl_calls_its_own(
    kind: str, name: str
) -> None:
    """Of an If whose branches read it, or make it."""
    inner = name if kind == "branch" else "inner"
    info = helper.make_tensor_value_info(inner, TensorProto.FLOAT, None)
    branches = {
        f"{word}_branch": helper.make_graph(
            [helper.make_node(op, [name if kind == "inner" else "a"], [inner])], word, [], [info]
        )
        for word, op in (("then", "Exp"), ("else", "Neg"))
    }
    x = name if kind == "input" else "a"
    if kind == "input":
        for graph in branches.values():
            graph.node[0].input[0] = x
    nodes = [
        helper.make_node("ReduceSum", [x], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["found"]),
        helper.make_node("CumSum", [x, "axis"], [name if kind == "inner" else "sum"]),
        helper.make_node("If", ["found"], ["y"], **branches),
        helper.make_node("Add", ["y", name if kind == "inner" else "sum"], ["z"]),
    ]
    given = {x: floats(1, 3, 4)}
    fixed = {"zero": np.float32(0), "axis": np.array(1)}
    proto = model_of_values(nodes, given, fixed, outputs=("z",))
    check(proto, given, encloses=True)
