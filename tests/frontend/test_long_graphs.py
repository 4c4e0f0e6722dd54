"""Models of thousands of nodes: what passes do grows as their number does."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from math import log
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.onnx_models import model
from support.references import evaluate, imported


class Chain:
    """Collects nodes and constants of a model whose input is `x`."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {}
        self.random = np.random.default_rng(0)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def normal(self, *shape: int, scale: float = 0.3) -> str:
        return self.constant((scale * self.random.standard_normal(shape)).astype(np.float32))

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"t{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def model(self, shape: list[int], output: str) -> onnx.ModelProto:
        return model(self.nodes, {"x": shape}, [output], self.constants)


def sums(count: int) -> onnx.ModelProto:
    """Additions, one behind the other."""
    chain, x = Chain(), "x"
    other = chain.constant(np.full((1, 4), 1e-3, np.float32))
    for index in range(count):
        x = chain.add("Add", x, "x" if index % 2 else other)
    return chain.model([1, 4], x)


def unrolled(count: int, size: int = 8) -> onnx.ModelProto:
    """An LSTM step by step: its steps share their matrices and biases."""
    chain, steps = Chain(), count // 15
    wide, deep = chain.normal(4 * size, size), chain.normal(size, 4 * size)
    biases = [chain.normal(4 * size) for _ in range(2)]
    h, c = (chain.constant(np.zeros((1, size), np.float32)) for _ in range(2))
    parts = chain.constant(np.full(4, size))
    for step in range(steps):
        x = chain.add("Gather", "x", chain.constant(step), axis=0)
        a = chain.add("Gemm", x, wide, biases[0], transB=1)
        b = chain.add("Add", chain.add("MatMul", h, deep), biases[1])
        gates = chain.add("Split", chain.add("Add", a, b), parts, outputs=4, axis=1)
        kinds = ("Sigmoid", "Sigmoid", "Tanh", "Sigmoid")
        i, f, g, o = (chain.add(kind, gate) for kind, gate in zip(kinds, gates, strict=True))
        c = chain.add("Add", chain.add("Mul", f, c), chain.add("Mul", i, g))
        h = chain.add("Mul", o, chain.add("Tanh", c))
    return chain.model([steps, 1, size], h)


def _repeated(
    step: Callable[[Chain, str], str], shape: list[int], each: int
) -> Callable[[int], onnx.ModelProto]:
    """A model of `count` nodes, of which a step adds `each`."""

    def made(count: int) -> onnx.ModelProto:
        chain, x = Chain(), "x"
        for _ in range(count // each):
            x = step(chain, x)
        return chain.model(shape, x)

    return made


def _folded(chain: Chain, x: str) -> str:
    x = chain.add("Add", chain.add("MatMul", x, chain.normal(8, 8)), chain.normal(8))
    return str(chain.add("Tanh", chain.add("Mul", x, chain.normal(8))))


def _widened(chain: Chain, x: str) -> str:
    flat = chain.add("Reshape", x, chain.constant([6, 8]))
    y = chain.add("Gemm", flat, chain.normal(8, 8), chain.normal(8))
    return str(chain.add("Tanh", chain.add("Reshape", y, chain.constant([2, 3, 8]))))


def _shuffled(chain: Chain, x: str) -> str:
    apart = chain.add("Reshape", x, chain.constant([1, 2, 4, 3, 3]))
    turned = chain.add("Transpose", apart, perm=[0, 2, 1, 3, 4])
    return str(chain.add("Tanh", chain.add("Reshape", turned, chain.constant([1, 8, 3, 3]))))


def _enclosed(chain: Chain, x: str) -> str:
    return str(chain.add("Tanh", chain.add("CumSum", chain.add("Relu", x), chain.constant(1))))


def _integers(chain: Chain, x: str) -> str:
    whole = chain.add("Add", chain.add("Cast", x, to=TensorProto.INT64), chain.constant(3))
    return str(chain.add("Tanh", chain.add("Cast", whole, to=TensorProto.FLOAT)))


def _dequantised(chain: Chain, x: str) -> str:
    numbers = chain.constant(chain.random.integers(-100, 100, (8, 8)).astype(np.int8))
    matrix = chain.add("DequantizeLinear", numbers, chain.constant(np.float32(0.01)))
    return str(chain.add("Tanh", chain.add("MatMul", x, matrix)))


def _branched(chain: Chain, x: str) -> str:
    wide = chain.add("Conv", x, chain.normal(4, 4, 3, 3, scale=0.1), pads=[1, 1, 1, 1])
    narrow = chain.add("Conv", x, chain.normal(4, 4, 1, 1, scale=0.1))
    return str(chain.add("Relu", chain.add("Add", wide, narrow)))


def _backwards(count: int) -> onnx.ModelProto:
    """Nodes in the wrong order."""
    proto = unrolled(count)
    nodes = [*proto.graph.node][::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


#: Each has about as many nodes as it is asked for.
LONG: dict[str, Callable[[int], onnx.ModelProto]] = {
    "sums": sums,
    "unrolled": unrolled,
    "backwards": _backwards,
    "folded": _repeated(_folded, [3, 8], 4),
    "widened": _repeated(_widened, [2, 3, 8], 4),
    "shuffled": _repeated(_shuffled, [1, 8, 3, 3], 4),
    "enclosed": _repeated(_enclosed, [1, 8], 3),
    "integers": _repeated(_integers, [1, 8], 4),
    "dequantised": _repeated(_dequantised, [3, 8], 3),
    "branched": _repeated(_branched, [1, 4, 8, 8], 4),
}


FEW, MANY = 250, 1000
#: How steeply may grow what takes so many calls, or bytes, for few nodes and for many.
STEEPEST = 1.2
#: Memory of one node; docs/reference/onnx.md says it.
MOST_BYTES = 16 << 10


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
    imported(few)
    taken = [measure(lambda proto=proto: imported(proto)) for proto in (few, many)]
    nodes = len(many.graph.node) / len(few.graph.node)
    assert log(taken[1] / taken[0]) / log(nodes) < STEEPEST
    if measure is _bytes:
        assert taken[1] < MOST_BYTES * len(many.graph.node)


def test_a_chain_of_thousands_of_additions_is_right() -> None:
    count, x = 5000, np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4)
    network = imported(sums(count))
    (got,) = evaluate(network, {"x": x}).values()
    np.testing.assert_allclose(got, x * (1 + count // 2) + 1e-3 * (count // 2), rtol=1e-5)


def test_steps_of_an_unrolled_network_share_their_matrices() -> None:
    network = imported(LONG["unrolled"](300))
    weights = [x.weights["weight"] for x in network.layers if "weight" in x.weights]
    held = {id(each if each.base is None else each.base) for each in weights}
    assert len(weights) > 30
    assert len(held) == 2
