"""Random ONNX graphs against ONNX Runtime, and whether the comparison would see what is wrong."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import helper
from support.devices import here
from support.graph_checks import MORE_NOISY, Reference, kind_of_plan, outcome_of
from support.libraries import INSTALLED, preferred
from support.random_forms import FORMS
from support.random_graphs import RandomGraph, run_nodes
from support.random_nodes import draw_graph

from codl.machine.placement import LocalSoc

SEED, COUNT, PARTS = 1, 300, 6
#: Graphs that each of the CPU's libraries runs.
IN_LIBRARIES = 60
#: Forms in which the graphs are written.
WRITTEN = tuple(form for form in FORMS if form != "sparse")


@pytest.mark.parametrize("part", range(PARTS))
def test_random_graphs_are_right(part: int, first_soc: LocalSoc) -> None:
    kinds: Counter[str] = Counter()
    for index in range(part, COUNT, PARTS):
        plan, graph = kind_of_plan(index), draw_graph(SEED, index, WRITTEN)
        outcome = outcome_of(graph, plan, first_soc, here(first_soc), f"{SEED}:{index}")
        again = f"python scripts/fuzz_graphs.py --only {SEED}:{index} --plans {plan}"
        assert not outcome.is_failure, f"{outcome}\n{again}"
        kinds[outcome.kind] += 1
    assert kinds["right"] > 0.7 * COUNT / PARTS


@pytest.mark.parametrize("library", INSTALLED)
def test_random_graphs_are_right_in_every_library(library: str, first_soc: LocalSoc) -> None:
    """Graphs that the test above has none of, all on the CPU."""
    kinds: Counter[str] = Counter()
    for index in range(COUNT, COUNT + IN_LIBRARIES):
        with preferred(library):
            graph = draw_graph(SEED, index)
            outcome = outcome_of(graph, "cpu", first_soc, here(first_soc), f"{SEED}:{index}")
        assert not outcome.is_failure, f"{SEED}:{index} {outcome}"
        kinds[outcome.kind] += 1
    assert kinds["right"] > 0.7 * IN_LIBRARIES


def _chain(*kinds: str, value: float = 0.7, **attributes: float) -> RandomGraph:
    """Functions of an input, one after the other; the last has the attributes."""
    x = np.linspace(-1, value, 24, dtype=np.float32).reshape(1, 2, 3, 4)
    nodes = [
        helper.make_node(
            kind, [f"t{i}"], [f"t{i + 1}"], **(attributes if kind == kinds[-1] else {})
        )
        for i, kind in enumerate(kinds)
    ]
    return RandomGraph(nodes, {"t0": x}, {}, [f"t{len(kinds)}"])


def _problem(graph: RandomGraph, change: np.ndarray | float) -> str:
    """What is said of the right values, changed."""
    reference, name = Reference(graph, graph.model()), graph.outputs[0]
    right = run_nodes(graph)[name]
    assert reference.problem(name, right) == ""
    reference.blur(MORE_NOISY)
    return reference.problem(name, (right + change).astype(right.dtype))


def test_an_error_of_a_thousandth_is_seen() -> None:
    one = np.zeros((1, 2, 3, 4), np.float32)
    one[0, 1, 2, 3] = 1e-3
    nothing, infinite = (np.where(one, value, 0) for value in (np.nan, np.inf))
    for kinds in (("Tanh",), ("Sigmoid", "Exp", "Softsign"), ("Floor", "Sin")):
        assert _problem(_chain(*kinds), one).startswith("values: 1 of 24")
    assert _problem(_chain("Relu"), nothing).startswith("finite")
    assert _problem(_chain("Relu"), infinite).startswith("finite")
