"""Products of rows rounded to 8 bits: recognised in every form, and equal to ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from support.decoders import split_plan
from support.devices import here
from support.onnx_models import floats, model, node

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.frontend.convert import network_of
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.quantize import quantize_dynamic
from codl.ir import Network
from codl.ir.ops.onnx_model import INPUT, OnnxModel
from codl.plan.build_plan import default_plan
from codl.records.soc import Soc

K, N = 70, 40
SCALE = np.float32(0.02)
DYNAMIC = ("row_range", "matmul_dynamic")
#: Rounding is the same everywhere and sums are exact: what is left is that of a few products.
EXACT = 2e-6


def matrix(signed: bool = True) -> Any:
    numbers = np.random.default_rng(1).integers(-128, 128, (K, N))
    return numbers.astype(np.int8) if signed else (numbers + 128).astype(np.uint8)


def read(proto: onnx.ModelProto) -> Network:
    return network_of(import_onnx(proto, "test"))


def kinds(network: Network) -> list[str]:
    return [layer.op.kind for layer in network.layers]


def equals_onnx_runtime(proto: onnx.ModelProto, soc: Soc, processor: Any) -> Network:
    """On one processor, to rounding of floats alone."""
    network = read(proto)
    sizes = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": 3 * floats(*sizes, seed=5) + 1}
    session = ort.InferenceSession(
        proto.SerializeToString(), session_options(1), ["CPUExecutionProvider"]
    )
    names = [output.name for output in proto.graph.output]
    expected = dict(zip(names, session.run(names, feeds), strict=True))
    plan = default_plan(network, soc, processor, chained=False)
    with Engine(network, plan, here(soc)) as engine:
        got = engine(feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=EXACT, atol=EXACT * np.abs(value).max())
    return network


def written_out(
    *,
    scales: Any = SCALE,
    zeros: Any = None,
    order: str = "both",
    signed: bool = True,
    x: tuple[int, ...] = (2, 3, K),
    bias: bool = False,
    extra: tuple[str, ...] = (),
) -> onnx.ModelProto:
    """As ONNX Runtime's quantiser has it; `extra` are more outputs."""
    given = "q w z" if zeros is None else "q w z wz"
    nodes = [node("DynamicQuantizeLinear", "x", "q s z"), node("MatMulInteger", given, "sums")]
    nodes.append(node("Cast", "sums", "floats", to=1))
    if order == "both":
        nodes += [node("Mul", "ws s", "factor"), node("Mul", "floats factor", "y0")]
    else:
        one, other = ("s", "ws") if order == "rows first" else ("ws", "s")
        nodes += [node("Mul", f"{one} floats", "half"), node("Mul", f"half {other}", "y0")]
    if bias:
        nodes.append(node("Add", "b y0", "y"))
    constants = {"w": matrix(signed), "ws": scales, **({} if zeros is None else {"wz": zeros})}
    constants |= {"b": floats(N)} if bias else {}
    return model(nodes, {"x": x}, ["y" if bias else "y0", *extra], constants)


def fused(kind: str, inputs: str, *, x: tuple[int, ...] = (3, K), **given: Any) -> onnx.ModelProto:
    """One node of ONNX Runtime's own, of constants of the right sizes but for those `given`."""
    right = {
        "w": matrix(),
        "ws": floats(N) / 50,
        "wz": np.arange(N).astype(np.int8),
        "b": floats(N),
    }
    constants = {name: given.get(name, value) for name, value in right.items()}
    constants = {name: value for name, value in constants.items() if name in inputs.split()}
    names = [name if name != "-" else "" for name in inputs.split()]
    nodes = [helper.make_node(kind, names, ["y"], name="product", domain="com.microsoft")]
    if "q" in names:
        nodes.insert(0, node("DynamicQuantizeLinear", "x", "q s z"))
    proto = model(nodes, {"x": x}, ["y"], constants)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


COLUMNS = floats(N, seed=2) / 50
FORMS = {
    "a tensor's scale": written_out(),
    "columns' scales and zero points": written_out(
        scales=COLUMNS, zeros=np.arange(N).astype(np.int8), bias=True
    ),
    "scales one after the other": written_out(scales=COLUMNS, order="rows first", x=(5, K)),
    "columns first, unsigned": written_out(
        scales=COLUMNS[None, None], zeros=np.uint8(131), order="columns first", signed=False
    ),
    "one row": written_out(x=(1, K), bias=True),
    "DynamicQuantizeMatMul": fused("DynamicQuantizeMatMul", "x w ws"),
    "its zero points and bias": fused("DynamicQuantizeMatMul", "x w ws wz b", x=(2, 3, K)),
    "MatMulIntegerToFloat": fused("MatMulIntegerToFloat", "q w s ws z wz b"),
    "without zero points": fused("MatMulIntegerToFloat", "q w s ws z", ws=np.float32(0.1)),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_one_product_and_equals_onnx_runtime(name: str, soc: Soc) -> None:
    for processor in ("cpu", "gpu"):
        network = equals_onnx_runtime(FORMS[name], soc, processor)
        assert kinds(network) == ["row_range", "matmul_dynamic"]


def test_products_of_one_input_share_its_ranges(soc: Soc) -> None:
    nodes = [node("DynamicQuantizeLinear", "x", "q s z")]
    for name in "abc":
        nodes.append(node("MatMulInteger", f"q {name}w z", f"{name}0"))
        nodes.append(node("Cast", f"{name}0", f"{name}1", to=1))
        nodes.append(node("Mul", f"s {name}s", f"{name}2"))
        nodes.append(node("Mul", f"{name}1 {name}2", name))
    constants = {f"{name}s": np.float32(0.1) for name in "abc"}
    constants |= {f"{name}w": np.roll(matrix(), at) for at, name in enumerate("abc")}
    proto = model(nodes, {"x": (4, K)}, [*"abc"], constants)
    assert kinds(equals_onnx_runtime(proto, soc, "gpu")) == ["row_range", *["matmul_dynamic"] * 3]


NOT_RECOGNISED = {
    "sums that are read": written_out(extra=("sums",)),
    "scales of rows": written_out(scales=floats(3, 1), x=(2, 3, K)),
    "a row alone": written_out(x=(K,)),
}


@pytest.mark.parametrize("name", NOT_RECOGNISED)
def test_others_run_in_onnx_runtime_whole(name: str, soc: Soc) -> None:
    proto = NOT_RECOGNISED[name]
    for info in proto.graph.output:
        if info.name == "sums":
            info.type.tensor_type.elem_type = onnx.TensorProto.INT32
    found = kinds(equals_onnx_runtime(proto, soc, "cpu"))
    assert "onnx" in found
    assert "matmul_dynamic" not in found


WRONG = {
    r"'ws' must be \(40,\), got \(39,\)": {"ws": floats(39)},
    r"'wz' must be \(40,\), got \(70,\)": {"wz": np.zeros(K, np.int8)},
    r"'b' must be \(40,\), got \(1,\)": {"b": floats(1)},
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_sizes_are_told_with_the_right_ones(words: str) -> None:
    with pytest.raises(CodlError, match=words):
        read(fused("DynamicQuantizeMatMul", "x w ws wz b", **WRONG[words]))


def test_the_quantiser_rounds_products_and_gemms(soc: Soc) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "s"), node("Relu", "s", "r")]
    nodes.append(node("Gemm", "r v c", "y", transB=1))
    weights = {"w": floats(K, N), "b": floats(N), "v": floats(24, N, seed=1), "c": floats(24)}
    made, ops = quantize_dynamic(model(nodes, {"x": (5, K)}, ["y"], weights))
    assert [(op.k, op.n) for op in ops] == [(K, N), (N, 24)]
    assert [op.bytes for op in ops] == [K * N + 5 * N, N * 24 + 5 * 24]
    network = equals_onnx_runtime(made, soc, "gpu")
    assert kinds(network) == ["row_range", "matmul_dynamic"] * 2
    assert network.layers[1].op.activation.kind == "relu"
    assert [layer.weights["bias"].tolist() for layer in network.layers[1::2]] == [
        weights["b"].tolist(), weights["c"].tolist()
    ]  # fmt: skip


def encoder() -> onnx.ModelProto:
    """Two layers of an encoder as BERT has them, with dynamic products."""
    tokens, heads, head = 24, 2, 16
    c, wide = heads * head, 4 * heads * head
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Any] = {
        "apart": np.array([0, 0, heads, head]), "together": np.array([0, 0, c])
    }  # fmt: skip
    constants["root"] = np.float32(head**-0.5)

    def product(x: str, name: str, k: int, n: int) -> str:
        seed = len(constants)
        constants[f"{name}.w"] = floats(k, n, seed=seed) * k**-0.5
        constants[f"{name}.b"] = floats(n, seed=seed + 1)
        nodes.append(node("MatMul", f"{x} {name}.w", f"{name}.product"))
        nodes.append(node("Add", f"{name}.b {name}.product", name))
        return name

    def normed(x: str, y: str, name: str) -> str:
        constants[f"{name}.s"] = 1 + floats(c, seed=len(constants)) / 10
        nodes.append(node("Add", f"{x} {y}", f"{name}.sum"))
        nodes.append(node("LayerNormalization", f"{name}.sum {name}.s", name, axis=-1))
        return name

    def headed(x: str, perm: list[int]) -> str:
        nodes.append(node("Reshape", f"{x} apart", f"{x}.heads"))
        nodes.append(node("Transpose", f"{x}.heads", f"{x}.t", perm=perm))
        return f"{x}.t"

    x = "x"
    for layer in "ab":
        q, k, v = (product(x, f"{layer}.{part}", c, c) for part in "qkv")
        q, v = (headed(each, [0, 2, 1, 3]) for each in (q, v))
        nodes.append(node("MatMul", f"{q} {headed(k, [0, 2, 3, 1])}", f"{layer}.raw"))
        nodes.append(node("Mul", f"{layer}.raw root", f"{layer}.scores"))
        nodes.append(node("Softmax", f"{layer}.scores", f"{layer}.soft", axis=-1))
        nodes.append(node("MatMul", f"{layer}.soft {v}", f"{layer}.seen"))
        nodes.append(node("Transpose", f"{layer}.seen", f"{layer}.rows", perm=[0, 2, 1, 3]))
        nodes.append(node("Reshape", f"{layer}.rows together", f"{layer}.mixed"))
        x = normed(x, product(f"{layer}.mixed", f"{layer}.out", c, c), f"{layer}.norm1")
        nodes.append(node("Gelu", product(x, f"{layer}.up", c, wide), f"{layer}.gelu"))
        x = normed(x, product(f"{layer}.gelu", f"{layer}.down", wide, c), f"{layer}.norm2")
    return model(nodes, {"x": (1, tokens, c)}, [x], constants, opset=20)


@pytest.mark.parametrize("sides", ["cpu", "gpu", "both"])
def test_an_encoder_of_dynamic_products_runs_on_both_processors(sides: Any, soc: Soc) -> None:
    """What rounds a row differs in the last bit, so here and there a number is another one."""
    made, ops = quantize_dynamic(encoder())
    network = read(made)
    assert kinds(network).count("matmul_dynamic") == len(ops) == 12
    assert kinds(network).count("row_range") == 8
    assert "onnx" not in kinds(network)
    feeds = {"x": floats(1, 24, 32, seed=9)}
    session = ort.InferenceSession(made.SerializeToString(), session_options(1))
    (expected,) = session.run(None, feeds)
    if sides == "both":
        plan = split_plan(network, soc)
        cut = {op for chain in plan.chains if chain.gpu_ratio == 0.5 for op in chain.ops}
        assert cut >= {one.name for one in network.layers if one.op.kind in DYNAMIC}
    else:
        plan = default_plan(network, soc, sides)
    with Engine(network, plan, here(soc)) as engine:
        (got,) = engine(feeds).values()
    assert (got * expected).sum() > 0.9999 * np.sqrt((got**2).sum() * (expected**2).sum())


@pytest.mark.parametrize("form", ["dynamic", "packed"])
def test_a_product_within_what_codl_has_no_operators_for(form: str) -> None:
    """It lies between two nodes that hand on whole numbers, so it is in a group with them."""
    numbers = np.random.default_rng(1).integers(-128, 128, (K, K)).astype(np.int8)
    nodes = [node("TopK", "x count", "v i", axis=0)]
    if form == "dynamic":
        nodes += [node("DynamicQuantizeLinear", "v", "q s z"), node("MatMulInteger", "q w z", "n")]
        nodes += [node("Cast", "n", "f", to=1), node("Mul", "s ws", "a"), node("Mul", "f a", "p")]
    else:
        nodes += [node("DequantizeLinear", "w ws", "d"), node("MatMul", "v d", "p")]
    nodes.append(node("GatherElements", "p i", "y", axis=0))
    constants = {"w": numbers, "ws": SCALE, "count": np.array([3])}
    proto = model(nodes, {"x": (3, K)}, ["y"], constants)
    network = read(proto)
    assert kinds(network) == ["onnx"]
    made = network.layers[0].op
    assert isinstance(made, OnnxModel)
    options = session_options(1)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    got, expected = (
        ort.InferenceSession(text, options).run(None, {name: floats(3, K)})[0]
        for text, name in ((made.model, f"{INPUT}0"), (proto.SerializeToString(), "x"))
    )
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


def test_products_by_int8_are_exact_though_they_share_constants(first_soc: Soc) -> None:
    """Pairs of 255 * 127 are more than 16 bits hold, in which CPUs without VNNI add them."""
    numbers = np.random.default_rng(2).integers(100, 128, (K, N)).astype(np.int8)
    nodes = [
        node("Cast", "x", "q", to=onnx.TensorProto.UINT8),
        node("MatMulInteger", "q w z wz", "a"),
        node("ReverseSequence", "q lengths", "r", batch_axis=1, time_axis=0),
        node("MatMulInteger", "r w z wz", "b"),
        node("CumSum", "b axis", "c"),
    ]
    constants = {"w": numbers, "z": np.uint8(3), "wz": np.int8(-7), "axis": np.int64(0)}
    constants["lengths"] = np.full(K, 2)
    proto = model(nodes, {"x": (2, K)}, ["a", "c"], constants, {"a": "int32", "c": "int32"})
    x = np.random.default_rng(3).integers(200, 256, (2, K)).astype(np.float32)
    network = read(proto)
    assert kinds(network)[0] == "onnx"
    with Engine(network, default_plan(network, first_soc, "cpu"), here(first_soc)) as engine:
        got = engine({"x": x})
    expected = (x.astype(np.int64) - 3) @ (numbers.astype(np.int64) + 7)
    np.testing.assert_array_equal(got["a"], expected)
    np.testing.assert_array_equal(got["c"], np.cumsum(expected[::-1], 0))


@pytest.mark.parametrize("kind", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
@pytest.mark.parametrize("inputs", ["", "x", "x -"])
def test_nodes_without_their_inputs_are_told_by_onnx_runtime(kind: str, inputs: str) -> None:
    with pytest.raises(CodlError, match="ONNX Runtime cannot load the model"):
        read(fused(kind, inputs))
