"""Names that passes and converters make, where tensors and nodes of the model have them already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.onnx_models import floats
from support.random_nodes import draw_graph
from support.references import check, evaluate, model_of_values
from support.renaming import renamed
from support.some import some

from codl.frontend.convert import network_of
from codl.frontend.graph.graph import Names
from codl.frontend.graph.onnx_import import import_onnx

SEED, COUNT, PARTS = 4, 120, 4


def _model(case: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of a node, or a few, for which names are made."""
    x = {"a": floats(2, 4, 6, 6)}
    if case == "conv3d":
        x = {"a": floats(1, 2, 4, 5, 5)}
        nodes = [helper.make_node("Conv", ["a", "w"], ["y"], pads=[1, 1, 1, 1, 1, 1])]
        fixed = {"w": floats(3, 2, 3, 3, 3)}
    elif case == "product":
        x = {"a": floats(3, 4)}
        nodes = [
            helper.make_node("MatMul", ["a", "w"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["q"]),
            helper.make_node("Mul", ["q", "b"], ["y"]),
        ]
        fixed = {"w": floats(4, 5), "b": floats(5)}
    elif case == "average":
        nodes = [
            helper.make_node("AveragePool", ["a"], ["y"], kernel_shape=[3, 3], strides=[2, 2],
                             ceil_mode=1, count_include_pad=1, pads=[1, 1, 0, 0]),
        ]  # fmt: skip
        fixed = {}
    elif case == "group norm":
        nodes = [helper.make_node("InstanceNormalization", ["a", "s", "b"], ["y"])]
        fixed = {"s": floats(4), "b": floats(4)}
    elif case == "attention":
        x = {"a": floats(1, 3, 4)}
        nodes = [
            helper.make_node("Attention", ["a", "w", "b"], ["y"], num_heads=2,
                             domain="com.microsoft"),
        ]  # fmt: skip
        fixed = {"w": floats(4, 24), "b": floats(24)}
    elif case == "enclosed":
        nodes = [
            helper.make_node("CumSum", ["a", "axis"], ["p"]),
            helper.make_node("TopK", ["p", "k"], ["y", "i"]),
            helper.make_node("Cast", ["i"], ["z"], to=TensorProto.FLOAT),
        ]
        fixed = {"axis": np.array(1), "k": np.array([3])}
        return model_of_values(nodes, x, fixed, outputs=("y", "z")), x
    else:
        nodes = [
            helper.make_node("Reshape", ["a", "flat"], ["p"]),
            helper.make_node("Gemm", ["p", "w", "b"], ["q"], alpha=0.5, beta=2.0),
            helper.make_node("Identity", ["q"], ["y"]),
        ]
        fixed = {"flat": np.array([2, 144]), "w": floats(144, 3), "b": floats(2, 1)}
    return model_of_values(nodes, x, fixed), x


CASES = ("conv3d", "product", "average", "group norm", "enclosed", "gemm", "attention")


def _made(proto: onnx.ModelProto, shapes: dict[str, Any] | None = None) -> list[str]:
    """The names that come to those of a model, in tensors of its network and of models in it."""
    graph = import_onnx(proto, "test", shapes)
    network_of(graph)
    inner = ["codl.in0", "codl.out", "codl.out.flat", "codl.out.0", "codl.of.codl.in0", "codl.0"]
    return [*sorted(graph.names.given), *inner]


def _clashes(proto: onnx.ModelProto, made: list[str]) -> Iterator[dict[str, str]]:
    """Other names for tensors of a model: each that is made, for one that it is not made of."""
    own = {name for node in proto.graph.node for name in (*node.input, *node.output) if name}
    for number, name in enumerate(made):
        others = sorted(each for each in own if not name.startswith(f"{each}."))
        if others:
            yield {others[number % len(others)]: name}
    if len(made) > 2:  # all at once
        yield dict(zip(sorted(own), made, strict=False))


@pytest.mark.parametrize("case", CASES)
def test_tensors_may_have_the_names_that_passes_make(case: str) -> None:
    proto, given = _model(case)
    for names in some(_clashes(proto, _made(proto))):
        feeds = {names.get(name, name): value for name, value in given.items()}
        check(renamed(proto, names), feeds, encloses=True)


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
    """Two poolings in a row become two layers of one node, whose first is named after it."""
    nodes = [
        helper.make_node("MaxPool", ["a"], ["y"], name="pool", kernel_shape=[2, 2, 2]),
        helper.make_node("Relu", ["y"], ["z"], name="pool.0"),
        helper.make_node("Neg", ["z"], ["u"], name="pool.0_1"),
        helper.make_node("Abs", ["u"], ["w"], name="Relu_4"),
        helper.make_node("Relu", ["w"], ["v"]),
    ]
    x = {"a": floats(1, 2, 5, 5, 5)}
    network = check(model_of_values(nodes, x, outputs=("v",)), x)
    names = [layer.name for layer in network.layers]
    assert len(set(names)) == len(names) > 3


def test_a_name_is_given_once() -> None:
    names = Names(tensors=["a.b", "a.b_1"], nodes=["a.c"])
    assert names.tensor("a", "b") == names.tensor("a", "b") == "a.b_2"
    assert names.tensor("a.b", "c") == "a.b.c"
    assert names.tensor("a", "b.c") == "a.b.c_1"
    assert (names.tensor("a", "c"), names.node("a", "c")) == ("a.c", "a.c_1")


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
