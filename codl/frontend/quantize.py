"""Matrices of a model's products in 4 or 8 bits, by ONNX Runtime's quantiser."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import onnx
from onnx import helper, numpy_helper

from codl.errors import CodlError, UnsupportedError
from codl.frontend.graph.packed_check import DOMAIN, INT8, KIND
from codl.ir.ops.matmul_nbits import BITS, BLOCKS


@dataclass(frozen=True)
class QuantizedOp:
    """A product with a matrix (k, n), and the bytes that this takes with its scales."""

    op: str
    k: int
    n: int
    bytes: int


def check_format(bits: int, block: int) -> None:
    """Raise `CodlError` for what no kernel reads."""
    for name, value, known in (("bits", bits, BITS), ("block", block, BLOCKS)):
        if value not in known:
            words = ", ".join(map(str, known))
            raise CodlError(f"The {name} of packed numbers must be one of {words}, got {value}.")


def quantize(
    proto: onnx.ModelProto,
    *,
    bits: int = 4,
    block: int = 32,
    symmetric: bool = False,
    int8: bool = False,
) -> tuple[onnx.ModelProto, list[QuantizedOp]]:
    """Pack the matrix of every MatMul by a constant one; `proto` itself may be changed.

    `bits` and `block` are those of `codl.ir.ops.matmul_nbits`; `symmetric` leaves zero points out,
    `int8` lets kernels round the other operand to 8 bits. Raises `UnsupportedError` for a model
    without such a product.
    """
    check_format(bits, block)
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer").setLevel(logging.WARNING)
    quantizer = MatMulNBitsQuantizer(
        proto,
        bits=bits,
        block_size=block,
        is_symmetric=symmetric,
        accuracy_level=INT8 if int8 else None,
        op_types_to_quantize=("MatMul",),
    )
    quantizer.process()
    model: onnx.ModelProto = quantizer.model.model
    ops = _ops(model)
    if not ops:
        raise UnsupportedError("The model has no MatMul by a constant matrix to pack.")
    return model, ops


def _ops(model: onnx.ModelProto) -> list[QuantizedOp]:
    constants = {item.name: item for item in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if (node.op_type, node.domain) != (KIND, DOMAIN):
            continue
        given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        own = (constants[name] for name in node.input if name in constants)
        size = sum(numpy_helper.to_array(item).nbytes for item in own)
        found.append(QuantizedOp(node.name or node.output[0], given["K"], given["N"], size))
    return found
