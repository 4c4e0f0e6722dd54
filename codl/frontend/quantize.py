"""Matrices of a model's products in 4 or 8 bits, by ONNX Runtime's quantisers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import helper, numpy_helper

from codl.errors import CodlError, UnsupportedError
from codl.frontend.graph.packed_matrices import DOMAIN, INT8, KIND
from codl.ir.ops.matmul_quantized import BITS, BLOCKS


@dataclass(frozen=True)
class QuantizedOp:
    """A product with a matrix (k, n), and the bytes that this takes with its scales."""

    op: str
    k: int
    n: int
    bytes: int


def check_format(bits: int, block: int) -> None:
    """Raise `CodlError` for what no kernel reads."""
    for name, value, allowed in (("bits", bits, BITS), ("block", block, BLOCKS)):
        if value not in allowed:
            words = ", ".join(map(str, allowed))
            raise CodlError(f"The {name} of packed numbers must be one of {words}, got {value}.")


def quantize(
    proto: onnx.ModelProto,
    *,
    bits: int = 4,
    block: int = 32,
    symmetric: bool = False,
    int8: bool = False,
) -> tuple[onnx.ModelProto, list[QuantizedOp]]:
    """Pack the matrix of every MatMul and Gemm by a constant one; `proto` itself may be changed.

    `bits` and `block` are those of `MatMulNBits`; `symmetric` leaves zero points out, `int8` lets
    kernels round the other operand to 8 bits. Raises `UnsupportedError` for a model without such a
    product.
    """
    check_format(bits, block)
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.onnx_model import ONNXModel

    ONNXModel(proto).replace_gemm_with_matmul()
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
    return model, _found(_ops(model))


def quantize_dynamic(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[QuantizedOp]]:
    """Round the same matrices to 8 bits, a scale for each column; rows are while the model runs.

    `proto` itself may be changed. Raises `UnsupportedError` for a model without such a product.
    """
    from onnxruntime import quantization

    with TemporaryDirectory() as folder, _advice_hidden():
        path = Path(folder) / "model.onnx"
        quantization.quantize_dynamic(
            proto,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
        )
        model = onnx.load(path)
    return model, _found(_dynamic_ops(model))


@contextmanager
def _advice_hidden() -> Iterator[None]:
    """Without what the quantiser says to every caller about what to run before it."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _found(ops: list[QuantizedOp]) -> list[QuantizedOp]:
    if not ops:
        raise UnsupportedError("The model has no MatMul or Gemm by a constant matrix to pack.")
    return ops


def _dynamic_ops(model: onnx.ModelProto) -> list[QuantizedOp]:
    """Every zero point has a scale of 4 bytes."""
    constants = {item.name: item for item in model.graph.initializer}
    ops = []
    for node in model.graph.node:
        if node.op_type != "MatMulInteger":
            continue
        matrix, zeros = (numpy_helper.to_array(constants[node.input[at]]) for at in (1, 3))
        size = matrix.nbytes + zeros.nbytes + 4 * zeros.size
        k, n = matrix.shape
        ops.append(QuantizedOp(node.name or node.output[0], k, n, size))
    return ops


def _ops(model: onnx.ModelProto) -> list[QuantizedOp]:
    constants = {item.name: item for item in model.graph.initializer}
    ops = []
    for node in model.graph.node:
        if (node.op_type, node.domain) != (KIND, DOMAIN):
            continue
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        operands = (constants[name] for name in node.input if name in constants)
        size = sum(numpy_helper.to_array(item).nbytes for item in operands)
        ops.append(QuantizedOp(node.name or node.output[0], attributes["K"], attributes["N"], size))
    return ops
