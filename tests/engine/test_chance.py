"""Nodes that draw numbers without a seed: each draws others, and others in every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.devices import here
from support.references import model_of_values

from codl.engine.engine import Engine
from codl.frontend.convert import network_of
from codl.frontend.graph.onnx_import import import_onnx
from codl.machine.placement import LocalSoc
from codl.plan.build_plan import default_plan

KINDS = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli")


def _drawn(kind: str, x: str, name: str) -> Any:
    if kind == "Bernoulli":
        return helper.make_node(kind, ["half"], [name])
    if kind.endswith("Like"):
        return helper.make_node(kind, [x], [name])
    return helper.make_node(kind, [], [name], shape=[2, 40])


@pytest.mark.parametrize("kind", KINDS)
def test_two_nodes_draw_other_numbers(kind: str, first_soc: LocalSoc) -> None:
    nodes = [helper.make_node("Add", ["x", "halves"], ["half"])]
    for i in range(3):
        nodes.append(_drawn(kind, "x", f"r{i}"))
        nodes.append(helper.make_node("Tanh", [f"r{i}"], [f"t{i}"]))  # groups lie apart
    x = {"x": np.zeros((2, 40), np.float32)}
    fixed = {"halves": np.float32(0.5)}
    outputs = ("t0", "t1", "t2")
    proto = model_of_values(nodes, x, fixed, outputs=outputs)
    drawn: list[NDArray[Any]] = []
    network = network_of(import_onnx(proto, "test"))
    plan = default_plan(network, first_soc, "cpu", chained=False)
    with Engine(network, plan, here(first_soc)) as engine:
        for _ in range(2):
            drawn += [np.array(value) for value in engine(x).values()]
    for i, one in enumerate(drawn):
        assert one.std() > 0.1
        for other in drawn[:i]:
            assert not np.array_equal(one, other)
