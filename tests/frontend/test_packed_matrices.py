"""Matrices of 4 and 8 bits: read, written by `quantize`, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from support.devices import here
from support.engine_runs import same_as_onnx_runtime
from support.onnx_models import floats, model, node
from support.references import evaluate

from codl.engine.engine import Engine
from codl.errors import CodlError, UnsupportedError
from codl.frontend.convert import network_of
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.quantize import quantize
from codl.ir import Network
from codl.ir.ops.matmul_quantized import MatMulNBits
from codl.plan.build_plan import default_plan
from codl.records.soc import Soc
from codl.runtime.placement import LocalSoc
from codl.validate.references import ModelAndSource, outputs_by_ops

K, N = 64, 40


def numbers(*shape: int, low: int = 0, high: int = 256) -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(low, high, shape)


def packed_model(
    *,
    bits: Any = 4,
    block: Any = 32,
    x: tuple[int, ...] = (3, K),
    nodes: tuple[onnx.NodeProto, ...] = (),
    names: str = "x w s",
    **given: Any,
) -> onnx.ModelProto:
    """A MatMulNBits of constants of the right sizes, but for those that are `given`."""
    blocks = -(-K // block)
    right = {
        "w": numbers(N, blocks, block * bits // 8).astype(np.uint8),
        "s": floats(N, blocks),
        "z": numbers(N, -(-blocks * bits // 8)).astype(np.uint8),
    }
    constants = {key: given.pop(key, right.get(key)) for key in names.split()[1:]}
    made = helper.make_node(
        "MatMulNBits",
        names.split(),
        ["y"],
        name="packed",
        domain="com.microsoft",
        K=K,
        N=N,
        bits=bits,
        block_size=block,
    )
    result = model([made, *nodes], {"x": x}, [nodes[-1].output[0] if nodes else "y"],
                   {**constants, **given})  # fmt: skip
    result.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return result


def read(proto: onnx.ModelProto) -> Network:
    return network_of(import_onnx(proto, "test"))


def packed_ops(network: Network) -> list[MatMulNBits]:
    return [layer.op for layer in network.layers if isinstance(layer.op, MatMulNBits)]


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, (4, 32)),
        ({"names": "x w s z"}, (4, 32)),
        ({"bits": 8, "block": 16, "names": "x w s z", "x": (2, 3, K)}, (8, 16)),
        ({"block": 128, "s": floats(N)}, (4, 128)),
    ],
)
def test_the_packed_product_of_onnx_runtime(
    given: dict[str, Any], sizes: tuple[int, int], soc: Soc
) -> None:
    network = same_as_onnx_runtime(packed_model(**given), soc, atol=1e-3)
    (op,) = packed_ops(network)
    assert (op.bits, op.block) == sizes
    assert op.zero_points == ("z" in given.get("names", ""))


def test_what_is_added_to_columns_becomes_their_bias() -> None:
    added = node("Add", "y b", "sum")
    network = read(packed_model(nodes=(added,), b=floats(N, seed=3)))
    (layer,) = network.layers
    np.testing.assert_array_equal(layer.weights["bias"], floats(N, seed=3))


def dequantized(matrix: Any, scales: Any, zeros: Any = None, *, turned: bool = False,
                **attributes: Any) -> onnx.ModelProto:  # fmt: skip
    """x times a matrix that a DequantizeLinear makes, or that one's transpose."""
    names = "w s" if zeros is None else "w s z"
    constants = {"w": matrix, "s": scales, **({} if zeros is None else {"z": zeros})}
    nodes = [node("DequantizeLinear", names, "d", **attributes)]
    nodes += [node("Transpose", "d", "t", perm=[1, 0])] if turned else []
    nodes.append(node("MatMul", "x t" if turned else "x d", "y"))
    proto = model(nodes, {"x": (3, K)}, ["y"], constants, opset=21)
    proto.ir_version = 10
    return proto


INT8 = numbers(K, N, low=-128, high=128).astype(np.int8)
INT4 = numbers(K, N, low=-8, high=8).astype(ml_dtypes.int4)
UINT4 = numbers(K, N, high=16).astype(ml_dtypes.uint4)
KEPT = {
    "a tensor": (dequantized(INT8, np.float32(0.1)), (8, 64)),
    "columns": (dequantized(INT8, floats(N), np.arange(N).astype(np.int8), axis=1), (8, 64)),
    "blocks": (dequantized(INT4, floats(2, N), axis=0, block_size=32), (4, 32)),
    "zero points": (
        dequantized(
            UINT4, floats(4, N), numbers(4, N, high=16).astype(UINT4.dtype), axis=0, block_size=16
        ),
        (4, 16),
    ),
    "rows of a transpose": (dequantized(INT8.T, floats(N), axis=0, turned=True), (8, 64)),
}


@pytest.mark.parametrize("name", KEPT)
def test_matrices_of_products_stay_packed(name: str, soc: Soc) -> None:
    """ONNX Runtime would round the rows too, by its own rewriting."""
    proto, sizes = KEPT[name]
    network = same_as_onnx_runtime(proto, soc, atol=1e-2, as_it_is=True)
    (op,) = packed_ops(network)
    assert (op.bits, op.block) == sizes


@pytest.mark.parametrize(
    "proto",
    [
        dequantized(INT8, floats(K), axis=0),
        dequantized(INT8, floats(8, N), axis=0, block_size=8),
    ],
)
def test_other_scales_become_floats(proto: onnx.ModelProto, soc: Soc) -> None:
    network = same_as_onnx_runtime(proto, soc, atol=1e-2, as_it_is=True)
    assert not packed_ops(network)
    assert "onnx" not in {layer.op.kind for layer in network.layers}


@pytest.mark.parametrize("zero", [(), (1,), (1, 1)])
@pytest.mark.parametrize("scale", [(), (1,)])
def test_one_scale_and_one_zero_point_have_any_rank(
    scale: tuple[int, ...], zero: tuple[int, ...]
) -> None:
    """As ONNX Runtime's quantiser writes them for biases."""
    nodes = [node("DequantizeLinear", "b s z", "f"), node("Add", "x f", "y")]
    constants = {"b": numbers(8).astype(np.int32), "s": np.full(scale, 0.1, np.float32)}
    constants["z"] = np.full(zero, 3, np.int32)
    proto = model(nodes, {"x": [2, 8]}, ["y"], constants)
    network = network_of(import_onnx(proto, "test"))
    expected = floats(2, 8) + np.float32(0.1) * (constants["b"] - 3)
    np.testing.assert_allclose(evaluate(network, {"x": floats(2, 8)})["y"], expected, rtol=1e-5)
    assert [layer.op.kind for layer in network.layers] == ["eltwise"]


@pytest.mark.parametrize("rows", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_the_usual_output_of_onnx_runtimes_quantiser(
    form: str, rows: QuantType, tmp_path: Path, first_soc: LocalSoc
) -> None:
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Conv", "r v b", "d"),
        node("Add", "d r", "a"),
        node("GlobalAveragePool", "a", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f m h", "y", transB=1),
    ]
    constants = {"w": floats(8, 3, 3, 3), "v": floats(8, 8, 1, 1), "b": floats(8)}
    constants |= {"m": floats(12, 8), "h": floats(12)}
    onnx.save(model(nodes, {"x": [1, 3, 8, 8]}, ["y"], constants), tmp_path / "whole.onnx")
    samples = iter([{"x": floats(1, 3, 8, 8, seed=seed)} for seed in range(4)])

    class Samples(CalibrationDataReader):
        def get_next(self) -> Any:
            return next(samples, None)

    path = str(tmp_path / "quantised.onnx")
    quantize_static(
        tmp_path / "whole.onnx", path, Samples(), quant_format=QuantFormat[form],
        activation_type=rows,
    )  # fmt: skip
    read_again = ModelAndSource.load(path)
    sample = read_again.shaped({"x": floats(1, 3, 8, 8)})
    expected = read_again.outputs(sample)
    assert expected is not None
    assert not read_again.doubt(read_again.reference)
    plan = default_plan(read_again.network, first_soc, "cpu")
    with Engine(read_again.network, plan, here(first_soc)) as engine:
        run = engine(sample)
    for got in (run, outputs_by_ops(read_again.network, sample)):
        np.testing.assert_allclose(got["y"], expected["y"], atol=0.02 * np.abs(expected["y"]).max())


WRONG = {
    "bits must be one of 4, 8, got 3": lambda: packed_model(bits=3),
    "block_size must be one of 16, 32, 64, 128, 256, got 48": lambda: packed_model(block=48),
    r"'s' must be \(40, 2\), got \(40, 3\)": lambda: packed_model(s=floats(N, 3)),
    r"'w' must be \(40, 2, 16\), got \(40, 2, 15\)": lambda: packed_model(
        w=numbers(N, 2, 15).astype(np.uint8)
    ),
    r"'z' must be \(40, 1\), got \(40, 2\)": lambda: packed_model(
        names="x w s z", z=numbers(N, 2).astype(np.uint8)
    ),
    r"'s' must be \(2, 40\), got \(3, 40\)": lambda: dequantized(
        INT4, floats(3, N), axis=0, block_size=32
    ),
    r"'z' must be \(40,\), got \(64,\)": lambda: dequantized(
        INT8, floats(N), np.zeros(K, np.int8), axis=1
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_sizes_are_told_with_the_right_ones(words: str) -> None:
    with pytest.raises(CodlError, match=words):
        read(WRONG[words]())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantized_model_is_near_its_floats(bits: int, symmetric: bool, soc: Soc) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "y")]
    weights = {"w": floats(K, 96), "v": floats(96, 24, seed=1)}
    proto = model(nodes, {"x": (5, K)}, ["y"], weights)
    made, ops = quantize(proto, bits=bits, block=32, symmetric=symmetric)
    assert [(op.k, op.n) for op in ops] == [(K, 96), (96, 24)]
    values = K * 96 + 96 * 24
    assert sum(op.bytes for op in ops) <= values * bits / 8 * (1 + 5 * 8 / (32 * bits))
    network = same_as_onnx_runtime(made, soc, atol=1e-3)
    assert len(packed_ops(network)) == 2
    for op, layer in zip(packed_ops(network), network.layers, strict=True):
        matrix = weights["w" if op.k == K else "v"]
        error = op.dequantized(layer.weights) - matrix
        assert np.abs(error).max() < np.abs(matrix).max() * 1.2 / (1 << (bits - 1))


def test_a_gemm_is_packed_as_a_product_is(soc: Soc) -> None:
    gemm = node("Gemm", "x w b", "y", transB=1)
    proto = model([gemm], {"x": (5, K)}, ["y"], {"w": floats(24, K), "b": floats(24, seed=2)})
    made, (op,) = quantize(proto)
    assert (op.k, op.n) == (K, 24)
    network = same_as_onnx_runtime(made, soc, atol=1e-3)
    assert [layer.op.kind for layer in network.layers] == ["matmul_nbits"]


def test_quantize_says_what_it_cannot_do() -> None:
    with pytest.raises(UnsupportedError, match="no MatMul or Gemm by a constant"):
        quantize(model([node("Relu", "x", "y")], {"x": (2, 3)}, ["y"]))
    for given, words in (({"bits": 5}, "one of 4, 8, got 5"), ({"block": 24}, "got 24")):
        with pytest.raises(CodlError, match=words):
            quantize(onnx.ModelProto(), **given)
