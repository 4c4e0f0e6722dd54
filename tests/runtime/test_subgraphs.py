"""Models with nodes that codl has no operator for: those run in ONNX Runtime, as layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from support.devices import here
from support.onnx_models import floats, graphs_in, model, node
from support.plans import one_by_one
from support.references import by_onnx_runtime, imported

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.ir import Network
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.records.soc import Soc
from codl.validate.validation import COSINE_OF_ROUNDED, usual_cosine

Values = Mapping[str, NDArray[Any]]


def check(
    proto: onnx.ModelProto, values: Values, soc: Soc, sides: Sequence[str] = ("cpu", "gpu", "turns")
) -> Network:
    """Run on both processors against ONNX Runtime on the whole model."""
    expected = by_onnx_runtime(proto, values, as_it_is=True)
    network = imported(proto)
    for side in sides:
        with Engine(network, one_by_one(network, soc, side), here(soc)) as engine:
            for _ in range(2):
                results = engine(values)
                for name, reference in expected.items():
                    assert results[name].dtype == reference.dtype
                    assert results[name].shape == reference.shape
                    np.testing.assert_allclose(results[name], reference, rtol=1e-4, atol=1e-5)
    return network


def kinds(network: Network) -> list[str]:
    return [layer.op.kind for layer in network.layers]


def onnx_layers(network: Network) -> list[str]:
    """The node types of every layer that is an ONNX model."""
    return [layer.op.nodes for layer in network.layers if isinstance(layer.op, OnnxModel)]


CONV = {"w": floats(6, 4, 3, 3, seed=1), "w2": floats(4, 6, 1, 1, seed=2)}


def test_an_op_without_operator_in_the_middle(first_soc: Soc) -> None:
    proto = model(
        [
            node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
            node("Det", "small", "d"),
            node("Slice", "a starts ends axes", "small"),
            node("CumSum", "a axis", "b"),
            node("Add", "a b", "c"),
            node("Relu", "c", "r"),
            node("Conv", "r w2", "e"),
            node("Mul", "e d2", "y"),
            node("Unsqueeze", "d axes2", "d2"),
        ],
        {"x": [1, 4, 6, 6]},
        ["y"],
        {
            **CONV,
            "axis": np.int64(1),
            "starts": np.int64([0, 0, 0]),
            "ends": np.int64([4, 3, 3]),
            "axes": np.int64([1, 2, 3]),
            "axes2": np.int64([2, 3]),
        },
    )
    order = ["n_a", "n_small", "n_d", "n_d2", "n_b", "n_c", "n_r", "n_e", "n_y"]
    by_name = {n.name: n for n in proto.graph.node}
    del proto.graph.node[:]
    proto.graph.node.extend(by_name[name] for name in order)
    network = check(proto, {"x": floats(1, 4, 6, 6)}, first_soc)
    assert onnx_layers(network) == ["Det", "CumSum"]
    # An activation is not fused into a model.
    assert "eltwise" in kinds(network)


class Case(NamedTuple):
    """Nodes, the sizes of inputs, outputs, constants, and the nodes of every layer that is ONNX."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Sequence[int]]
    outputs: Sequence[str]
    constants: Mapping[str, Any]
    enclosed: Sequence[str]
    types: Mapping[str, str] = {}
    opset: int = 17


DICE = np.random.default_rng(1)
PACKED = {"K": 64, "N": 24, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
GRAPHS = graphs_in(Path(__file__).parent / "enclosed_graphs.yaml")
CASES = {
    **{name: Case(**graph) for name, graph in GRAPHS.items()},
    "a packed matrix": Case(
        [node("Relu", "x", "r"), node("MatMulNBits", "r w s", "p", **PACKED),
         node("MatMul", "p m", "y")],
        {"x": [1, 5, 64]}, ["y"],
        {"w": DICE.integers(0, 256, (24, 2, 16)).astype(np.uint8),
         "s": DICE.uniform(0.01, 0.02, 48).astype(np.float32), "m": floats(24, 8)},
        ["com.microsoft.MatMulNBits"],
    ),
    "rows that are rounded in a run": Case(
        [
            node("Relu", "x", "r"), node("DynamicQuantizeLinear", "r", "q scale zero"),
            node("MatMulInteger", "q w zero wz", "i"), node("Cast", "i", "f", to=1),
            node("Mul", "scale ws", "both"), node("Mul", "f both", "p"), node("Add", "p b", "y"),
        ],
        {"x": [1, 5, 48]}, ["y"],
        {"w": DICE.integers(-128, 128, (48, 24)).astype(np.int8), "wz": np.int8(0),
         "ws": np.full(24, 0.01, np.float32), "b": floats(24)},
        ["DynamicQuantizeLinear+MatMulInteger+Cast"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_parts_run_in_onnx_runtime(name: str, first_soc: Soc) -> None:
    nodes, inputs, outputs, constants, enclosed, types, opset = CASES[name]
    proto = model(nodes, inputs, outputs, constants, types, opset)
    network = check(proto, {name: floats(*sizes) for name, sizes in inputs.items()}, first_soc)
    assert onnx_layers(network) == enclosed
    is_rounded = any("Dynamic" in one for one in enclosed)
    assert (usual_cosine(network) == COSINE_OF_ROUNDED) == is_rounded


def test_integers_beside_floats_are_exact_where_a_gpu_stores_halves(first_soc: Soc) -> None:
    """A group hands out slices of one tensor; halves count to 2048, and places go up to 5000."""
    soc = replace(first_soc, gpu=replace(first_soc.gpu, element="float16"))
    proto = model(
        [node("Relu", "x", "r"), node("TopK", "r k", "values places")],
        {"x": [1, 5000]},
        ["values", "places"],
        {"k": np.int64([9])},
        {"places": "int64"},
    )
    x = floats(1, 5000, seed=3)
    x[0, -9:] = 10 + np.arange(9)
    network = imported(proto)
    with Engine(network, one_by_one(network, soc, "gpu"), here(soc)) as engine:
        places = engine({"x": x})["places"]
    np.testing.assert_array_equal(places, [np.arange(4999, 4990, -1)])


def test_branches_on_data_and_integers_that_come_in(first_soc: Soc) -> None:
    """A graph inside a node reads a tensor from outside."""
    then = helper.make_graph(
        [helper.make_node("Mul", ["r", "two"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, [4, 5])],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["r"], ["o"])],
        "other",
        [],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, [4, 5])],
    )
    proto = model(
        [
            node("Relu", "x", "r"),
            node("ReduceSum", "ids", "sum", keepdims=0),
            node("Greater", "sum limit", "many"),
            node("If", "many", "chosen", then_branch=then, else_branch=other),
            node("Gather", "table ids", "rows"),
            node("Add", "chosen rows", "y"),
        ],
        {"x": [4, 5], "ids": [4]},
        ["y"],
        {"two": np.float32(2), "limit": np.int64(5), "table": floats(7, 5)},
        {"ids": "int64"},
    )
    for ids in ([0, 1, 2, 0], [6, 6, 1, 0]):
        given = {"x": floats(4, 5), "ids": np.int64(ids)}
        network = check(proto, given, first_soc, ["gpu"])
    assert onnx_layers(network) == ["ReduceSum+Greater+If"]
    assert "gather" in kinds(network)
    with Engine(network, one_by_one(network, first_soc, "cpu"), here(first_soc)) as engine:
        with pytest.raises(CodlError, match="exact up to 16777216"):
            engine({"x": floats(4, 5), "ids": np.int64([0, 0, 0, 1 << 25])})
        assert engine({"x": floats(4, 5), "ids": np.int64([1, 0, 0, 2])})["y"].shape == (4, 5)


def test_two_pairs_of_rounding_each_round(first_soc: Soc) -> None:
    """ONNX Runtime would make one pair of them, by a scale of its own."""
    pairs = ["QuantizeLinear", "DequantizeLinear", "QuantizeLinear", "DequantizeLinear"]
    points = ["scale zero", "scale zero", "scale other", "scale other"]
    names = ["x", "q", "a", "r", "y"]
    nodes = [node(k, f"{names[i]} {points[i]}", names[i + 1]) for i, k in enumerate(pairs)]
    constants = {"scale": np.float32(0.02), "zero": np.int8(0), "other": np.int8(-5)}
    proto = model(nodes, {"x": [1, 64]}, ["y"], constants)
    x = np.linspace(-4, 4, 64, dtype=np.float32)[None]
    rounded = np.clip(np.rint(x / np.float32(0.02)), -128, 127)
    expected = (np.clip(rounded - 5, -128, 127) + 5) * 0.02
    network = imported(proto)
    with Engine(network, one_by_one(network, first_soc, "cpu"), here(first_soc)) as engine:
        np.testing.assert_allclose(engine({"x": x})["y"], expected, rtol=1e-6)


@pytest.mark.parametrize("read", ["d", "z"])
def test_a_branch_that_quantises_a_dequantised_tensor(read: str, first_soc: Soc) -> None:
    """ONNX Runtime 1.32 kills the process if it optimises this model, or a part with the branch."""
    scales = [numpy_helper.from_array(np.float32(scale), f"s{scale}") for scale in (1, 2)]
    branches = [
        helper.make_graph(
            [node("QuantizeLinear", f"{read} s{scale} point", name)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.UINT8, [4, 4])],
            [scales[scale - 1]],
        )
        for name, scale in (("then", 1), ("else", 2))
    ]
    nodes = [
        node("QuantizeLinear", "x scale point", "q"),
        node("DequantizeLinear", "q scale point", "d"),
        node("Transpose", "d", "z", perm=[0, 1]),
        node("QuantizeLinear", "d s1 point", "other"),
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        helper.make_node("If", ["c"], ["b"], then_branch=branches[0], else_branch=branches[1]),
        node("DequantizeLinear", "b s1 point", "y"),
        node("DequantizeLinear", "other s1 point", "o"),
    ]
    constants = {"zero": np.float32(0), "scale": np.float32(0.02), "s1": np.float32(1)}
    constants |= {"point": np.uint8(128)}
    proto = model(nodes, {"x": [4, 4]}, ["y", "z", "o"], constants)
    check(proto, {"x": floats(4, 4)}, first_soc)


def test_a_branch_that_reads_a_weight_twice(first_soc: Soc) -> None:
    """Some versions of ONNX Runtime write the weight twice into the model that they optimise."""
    weight = numpy_helper.from_array(floats(4, 4), "w")
    branches = [
        helper.make_graph(
            [node("MatMul", "x w", f"{name}.m"), node("Add", f"{name}.m w", name)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])],
            [weight],
        )
        for name in ("then", "else")
    ]
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    nodes = [node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s zero", "c"), chosen]
    proto = model(nodes, {"x": [4, 4]}, ["y"], {"zero": np.float32(0)})
    check(proto, {"x": floats(4, 4, seed=1)}, first_soc)
