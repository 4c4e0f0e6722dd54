"""Models of as many nodes as one likes: a few nodes, again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Chain:
    """Collects nodes and constants of a model whose input is `x`."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normal(self, *shape: int, scale: float = 0.3) -> str:
        return self.constant((scale * self.random.standard_normal(shape)).astype(np.float32))

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"t{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def model(self, shape: list[int], output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


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
