"""Matrices of few bits: the checks of packed ones, and constants that a node dequantises.

A product with such a constant becomes the node that ONNX Runtime's quantiser writes, whose numbers
stay packed in memory; other readers get floats. A scale of a whole tensor, or of a column, is there
again for every block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from codl.errors import CodlError
from codl.frontend.graph.expansions import made_node
from codl.frontend.graph.graph import Draft, Graph, GraphView, Rewrite
from codl.ir.onnx_node import Node
from codl.ir.ops.matmul_quantized import BITS, BLOCKS, packed

#: What ONNX Runtime calls its product with a packed matrix.
KIND, DOMAIN = "MatMulNBits", "com.microsoft"
#: Its inputs behind the rows.
WEIGHT, SCALES, ZERO_POINTS, ORDER, BIAS = range(1, 6)
#: What its `accuracy_level` is where it may round rows to 8 bits.
INT8 = 4


def check_packed_matrices(proto: onnx.ModelProto) -> None:
    """Raise `CodlError` for a MatMulNBits whose attributes or constants do not fit together."""
    nodes = [node for node in proto.graph.node if (node.op_type, node.domain) == (KIND, DOMAIN)]
    if not nodes:
        return
    constants = {item.name: item for item in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    for node in nodes:
        for problem in _problems(node, constants):
            raise CodlError(f"The node {node.name or node.output[0]!r} ({KIND}): {problem}")


def _problems(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> Iterator[str]:
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    numbers = {"bits": BITS[0], **attributes}
    for name in ("K", "N", "bits", "block_size"):
        value = numbers.get(name)
        if not isinstance(value, int) or value < 1:
            yield f"{name} must be a whole number above 0, got {value}."
    k, n, bits, block = (int(numbers[name]) for name in ("K", "N", "bits", "block_size"))
    for name, value, allowed in (("bits", bits, BITS), ("block_size", block, BLOCKS)):
        if value not in allowed:
            yield f"{name} must be one of {', '.join(map(str, allowed))}, got {value}."
    blocks = -(-k // block)
    sizes: dict[int, tuple[int, ...]] = {
        WEIGHT: (n, blocks, block * bits // 8),
        SCALES: (n, blocks),
        ZERO_POINTS: (n, -(-blocks * bits // 8)),
        BIAS: (n,),
    }
    for index, wanted in sizes.items():
        name = node.input[index] if len(node.input) > index else ""
        if name not in constants:
            continue
        dims = tuple(constants[name].dims)
        if index == ZERO_POINTS and constants[name].data_type != TensorProto.UINT8:
            wanted = (n, blocks)
        if dims not in (wanted, (prod(wanted),)):
            yield (
                f"{name!r} must be {wanted}, got {dims}: K is {k}, N {n}, bits {bits} and "
                f"block_size {block}."
            )


#: The types of packed numbers: their bits, and what is added so that none is negative.
TYPES: Mapping[str, tuple[int, int]] = {
    "uint4": (4, 0),
    "int4": (4, 8),
    "uint8": (8, 0),
    "int8": (8, 128),
}
#: Those of numbers that become floats at once, such as biases.
WIDE = ("int16", "uint16", "int32")


@dataclass(frozen=True, eq=False)
class Quantized:
    """A constant as a DequantizeLinear has it: numbers, and scales and zero points of one shape.

    That is one for all, one for each place along `axis`, or one for each `block` of these.
    """

    numbers: NDArray[Any]
    scales: NDArray[np.float32]
    zeros: NDArray[np.int32]
    axis: int
    block: int

    @classmethod
    def of(cls, graph: GraphView, node: Node) -> Quantized | None:
        """What a node of constants reads; None where any is none, or of another type.

        Raises `CodlError` where the scales, or the zero points, are not of the shape that they
        must have.
        """
        names = [name for name in node.inputs if name]
        if any(name not in graph.constants for name in names):
            return None
        numbers, scales, *zeros = (graph.constants[name] for name in names)
        if numbers.dtype.name not in (*TYPES, *WIDE) or scales.dtype.kind != "f":
            return None
        axis, block = node.attributes.get("axis", 1), node.attributes.get("block_size", 0)
        axis %= max(numbers.ndim, 1)
        right = _sizes(numbers.shape, axis, block) if scales.size > 1 else scales.shape
        for name, value in zip(names[1:], (scales, *zeros), strict=True):
            if value.shape != right and not value.size == scales.size == 1:
                raise CodlError(
                    f"The node {node.name!r} ({node.type}): {name!r} must be {right}, got "
                    f"{value.shape}: {names[0]!r} is {numbers.shape}, axis {axis}, block_size "
                    f"{block}."
                )
        points = zeros[0].reshape(right) if zeros else np.zeros(right)
        return cls(numbers, scales.astype(np.float32), points.astype(np.int32), axis, block)

    @property
    def turned(self) -> Quantized:
        """Of two axes: the transpose."""
        scales, zeros = (x.T for x in (self.scales, self.zeros))
        return replace(self, numbers=self.numbers.T, scales=scales, zeros=zeros, axis=1 - self.axis)

    @property
    def values(self) -> NDArray[np.float32]:
        """What the numbers stand for."""
        numbers = (self.numbers.astype(np.int32) - self._stretched(self.zeros)).astype(np.float32)
        return np.asarray(numbers * self._stretched(self.scales), np.float32)

    def _stretched(self, value: NDArray[Any]) -> NDArray[Any]:
        if value.size == 1:
            return value.reshape(())
        if self.block:
            size = self.numbers.shape[self.axis]
            return np.repeat(value, self.block, self.axis).take(range(size), self.axis)
        return value.reshape([-1 if i == self.axis else 1 for i in range(self.numbers.ndim)])

    @property
    def in_blocks(self) -> tuple[int, NDArray[np.float32], NDArray[np.int32]] | None:
        """Of a matrix (k, n) the size of blocks along k, and scales and zero points (n, blocks).

        None where a block of a size that kernels know has not the same ones.
        """
        k, n = self.numbers.shape
        if self.block and self.scales.size > 1:
            if self.axis != 0 or self.block not in BLOCKS:
                return None
            return self.block, self.scales.T, self.zeros.T
        if self.axis != 1 and self.scales.size > 1:
            return None
        block = max((size for size in BLOCKS if k % size == 0), default=BLOCKS[0])
        to = (n, -(-k // block))
        scales, zeros = self.scales.reshape(-1, 1), self.zeros.reshape(-1, 1)
        return block, np.broadcast_to(scales, to), np.broadcast_to(zeros, to)


def keep_packed(graph: Graph) -> Graph:
    """The graph without nodes that dequantise constants."""
    draft = Draft(graph)
    for node in [node for node in graph.nodes if node.type == "DequantizeLinear"]:
        quantized = Quantized.of(draft, node)
        if quantized is not None:
            _remove(draft, node, quantized)
    return draft.graph


def _remove(draft: Draft, node: Node, quantized: Quantized) -> None:
    """Readers that are products get the packed matrix, others the floats; also of its transpose."""
    found = [(node, quantized)]
    for maker, numbers in found:  # grows
        name = maker.outputs[0]
        if numbers.numbers.ndim != 2 or numbers.numbers.dtype.name not in TYPES:
            continue
        for reader in draft.consumers(name):
            if reader.type == "Transpose":
                found.append((reader, numbers.turned))
            elif _is_product(draft, reader, name):
                _multiply_packed(draft, reader, numbers)
    for maker, numbers in reversed(found):
        name = maker.outputs[0]
        draft.rewrite(Rewrite(maker))
        if draft.is_read(name):
            draft.constants[name] = numbers.values


def _is_product(graph: GraphView, node: Node, matrix: str) -> bool:
    """Whether a node multiplies rows by a matrix, and adds at most a constant to each column."""
    if node.type not in ("MatMul", "Gemm") or matrix != node.inputs[1] or matrix in node.inputs[2:]:
        return False
    if node.inputs[0] == matrix or len(graph.shapes.get(node.inputs[0], ())) < 2:
        return False
    scaled = any(node.attributes.get(name, 1.0) != 1 for name in ("alpha", "beta"))
    columns = graph.shapes.get(node.outputs[0], (0,))[-1:]
    added = [graph.shapes.get(name) for name in node.inputs[2:] if name in graph.constants]
    is_bias = len(added) == len(node.inputs[2:]) and all(sizes == columns for sizes in added)
    return not scaled and not node.attributes.get("transA", 0) and is_bias


def _multiply_packed(draft: Draft, node: Node, quantized: Quantized) -> None:
    """Let a product read a packed matrix, where the scales allow that."""
    matrix = quantized.turned if node.attributes.get("transB", 0) else quantized
    blocks = matrix.in_blocks
    if blocks is None:
        return
    block, scales, zeros = blocks
    (k, n), (bits, middle) = matrix.numbers.shape, TYPES[matrix.numbers.dtype.name]
    numbers = (matrix.numbers.T.astype(np.int16) + middle).astype(np.uint8)
    whole = np.pad(numbers, ((0, 0), (0, -k % block)))
    constants: dict[str, NDArray[Any]] = {
        "weight": _bytes(whole, bits).reshape(n, -(-k // block), -1),
        "scales": np.ascontiguousarray(scales),
        "zero_points": _bytes((zeros + middle).astype(np.uint8), bits),
    }
    names = {key: draft.names.tensor(node.outputs[0], key) for key in constants}
    inputs = (node.inputs[0], *names.values(), "", *node.inputs[2:])
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    made = made_node(node.name, KIND, inputs, node.outputs, domain=DOMAIN, **attributes)
    added = {names[key]: value for key, value in constants.items()}
    draft.rewrite(Rewrite(node, [made], added))
    draft.domains = {DOMAIN: 1, **draft.domains}


def _sizes(sizes: tuple[int, ...], axis: int, block: int) -> tuple[int, ...]:
    """The shape of scales that are several."""
    if not block:
        return sizes[axis : axis + 1]
    return tuple(-(-size // block) if i == axis else size for i, size in enumerate(sizes))


def _bytes(rows: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Rows of numbers, packed."""
    words = packed(rows, bits).astype("<u4", copy=False)
    return np.ascontiguousarray(words.view(np.uint8)[:, : -(-rows.shape[1] * bits // 8)])
