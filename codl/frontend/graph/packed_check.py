"""Packed matrices of a model, looked at before anything reads it: what does not fit, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import onnx
from onnx import TensorProto, helper

from codl.errors import CodlError
from codl.ir.ops.matmul_quantized import BITS, BLOCKS

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
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    numbers = {"bits": BITS[0], **given}
    for name in ("K", "N", "bits", "block_size"):
        value = numbers.get(name)
        if not isinstance(value, int) or value < 1:
            yield f"{name} must be a whole number above 0, got {value}."
    k, n, bits, block = (int(numbers[name]) for name in ("K", "N", "bits", "block_size"))
    for name, value, known in (("bits", bits, BITS), ("block_size", block, BLOCKS)):
        if value not in known:
            yield f"{name} must be one of {', '.join(map(str, known))}, got {value}."
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
        own, is_packed = tuple(constants[name].dims), constants[name].data_type == TensorProto.UINT8
        if index == ZERO_POINTS and not is_packed:
            wanted = (n, blocks)
        if own not in (wanted, (prod(wanted),)):
            yield (
                f"{name!r} must be {wanted}, got {own}: K is {k}, N {n}, bits {bits} and "
                f"block_size {block}."
            )
