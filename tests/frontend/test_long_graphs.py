"""Models of thousands of nodes: what passes do grows as their number does."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from math import log

import numpy as np
import onnx
import pytest
from support.long_graphs import LONG, sums
from support.references import evaluate

from codl.frontend.convert import network_of
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir import Network

FEW, MANY = 250, 1000
#: How steeply may grow what takes so many calls, or bytes, for few nodes and for many.
STEEPEST = 1.2
#: Memory of one node; docs/reference/onnx.md says it.
MOST_BYTES = 16 << 10


def _network(proto: onnx.ModelProto) -> Network:
    return network_of(import_onnx(proto, "long"))


def _steps(work: Callable[[], object]) -> int:
    """Calls of functions, those of the interpreter's own among them, and lines that run."""
    steps = 0

    def count(frame: object, event: str, argument: object) -> object:
        nonlocal steps
        steps += 1
        return count

    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(None)
    return steps


def _bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("measure", [_steps, _bytes])
@pytest.mark.parametrize("kind", LONG)
def test_an_import_takes_as_long_as_there_are_nodes(
    kind: str, measure: Callable[[Callable[[], object]], int]
) -> None:
    few, many = LONG[kind](FEW), LONG[kind](MANY)
    _network(few)
    taken = [measure(lambda proto=proto: _network(proto)) for proto in (few, many)]
    nodes = len(many.graph.node) / len(few.graph.node)
    assert log(taken[1] / taken[0]) / log(nodes) < STEEPEST
    if measure is _bytes:
        assert taken[1] < MOST_BYTES * len(many.graph.node)


def test_a_chain_of_thousands_of_additions_is_right() -> None:
    count, x = 5000, np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4)
    network = _network(sums(count))
    (got,) = evaluate(network, {"x": x}).values()
    np.testing.assert_allclose(got, x * (1 + count // 2) + 1e-3 * (count // 2), rtol=1e-5)


def test_steps_of_an_unrolled_network_share_their_matrices() -> None:
    network = _network(LONG["unrolled"](300))
    weights = [x.weights["weight"] for x in network.layers if "weight" in x.weights]
    held = {id(each if each.base is None else each.base) for each in weights}
    assert len(weights) > 30
    assert len(held) == 2
