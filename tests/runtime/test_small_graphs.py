"""Graphs of a few nodes that a network may have anywhere: outputs are ONNX Runtime's, unoptimised.

Each ran wrong or not at all once. They run on either processor, and in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from support.devices import here
from support.libraries import INSTALLED, preferred
from support.onnx_models import floats, graphs_in, model, node
from support.random_plans import random_plan
from support.references import by_onnx_runtime, imported

from codl.engine.engine import Engine
from codl.errors import CodlWarning
from codl.ir.network import Network
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.plan.build_plan import preferring

PAIR = {"kernel_shape": [2, 2], "strides": [2, 2]}


class Case(NamedTuple):
    """Nodes in a line, the sizes of inputs, outputs, constants; `half` of float16 throughout."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Sequence[int]]
    outputs: Sequence[str]
    constants: Mapping[str, Any] = {}
    half: bool = False
    opset: int = 17

    def proto(self) -> onnx.ModelProto:
        constants = dict(self.constants)
        if self.half:
            constants = {
                name: value.astype(np.float16) if value.dtype == np.float32 else value
                for name, value in constants.items()
            }
        proto = model(self.nodes, self.inputs, self.outputs, constants, opset=self.opset)
        for port in (*proto.graph.input, *proto.graph.output) if self.half else ():
            port.type.tensor_type.elem_type = TensorProto.FLOAT16
        return proto

    def feeds(self) -> dict[str, NDArray[Any]]:
        kind = np.float16 if self.half else np.float32
        return {name: floats(*sizes, seed=7).astype(kind) for name, sizes in self.inputs.items()}


def expected_of(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    return by_onnx_runtime(proto, feeds, as_it_is=True)


def plan_of(network: Network, soc: Soc, kind: str) -> Plan:
    if kind in ("cpu", "gpu"):
        return preferring(network, soc, kind)  # type: ignore[arg-type]
    return random_plan(network, soc, Random(5), stored=("float32",))


GRAPHS = graphs_in(Path(__file__).parent / "small_graphs.yaml")
CASES = {name: Case(**graph) for name, graph in GRAPHS.items()}


@pytest.mark.parametrize("kind", ["cpu", "gpu", "split"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_onnx_runtime(name: str, kind: str, first_soc: Soc) -> None:
    proto, feeds = CASES[name].proto(), CASES[name].feeds()
    expected = expected_of(proto, feeds)
    network = imported(proto)
    with Engine(network, plan_of(network, first_soc, kind), here(first_soc)) as engine:
        for _ in range(2):
            got = engine(feeds)
            assert got.keys() == expected.keys()
            for output, value in expected.items():
                assert got[output].dtype == value.dtype
                assert got[output].shape == value.shape, output
                close = 4e-3 if CASES[name].half else 1e-5
                np.testing.assert_allclose(got[output], value, close, close, err_msg=output)


@pytest.mark.parametrize("kind", ["cpu", "gpu", "split"])
@pytest.mark.parametrize("activation", ["Sigmoid", "Tanh", "Clip", "HardSigmoid"])
def test_what_is_no_number_stays_none(activation: str, kind: str, first_soc: Soc) -> None:
    """Whoever looks at a broken model must see that it is; the next inference is as usual."""
    case = Case(
        [node("Conv", "x w", "c"), node(activation, "c", "a"), node("MaxPool", "a", "y", **PAIR)],
        {"x": (1, 3, 13, 13)}, ["a", "y"], {"w": floats(5, 3, 2, 2)},
    )  # fmt: skip
    proto, usual = case.proto(), case.feeds()
    broken = {"x": usual["x"].copy()}
    broken["x"][0, 1, 3, 4], broken["x"][0, 2, 9, 9] = np.nan, np.inf
    network = imported(proto)
    with Engine(network, plan_of(network, first_soc, kind), here(first_soc)) as engine:
        for feeds in (usual, broken, usual):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                got = engine(feeds)
            assert bool(told) == (feeds is broken and bool(engine.executable.nets))
            value = expected_of(proto, feeds)["a"]
            np.testing.assert_array_equal(np.isnan(got["a"]), np.isnan(value))
            numbers = ~np.isnan(value)
            np.testing.assert_allclose(got["a"][numbers], value[numbers], 1e-5, 1e-5)
        assert np.isnan(expected_of(proto, broken)["a"]).any()


def depth_completion() -> Case:
    """A network as those that fill holes of depth maps: down, up, and beside."""
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x w1", "c1", **same), node("Relu", "c1", "r1"),
        node("MaxPool", "r1", "p1", **PAIR),
        node("Conv", "p1 w2", "c2", group=2, **same), node("Clip", "c2 zero six", "r2"),
        node("AveragePool", "r2", "p2", **PAIR),
        node("Conv", "p2 w3", "c3", **same), node("HardSwish", "c3", "r3"),
        helper.make_node("Resize", ["r3", "", "twice"], ["u1"], mode="linear"),
        node("Concat", "u1 r2", "k", axis=1),
        node("ConvTranspose", "k w4", "t", strides=[2, 2], group=4), node("Sigmoid", "t", "y"),
    ]  # fmt: skip
    constants = {
        "w1": floats(8, 1, 3, 3), "w2": floats(16, 4, 3, 3), "w3": floats(16, 16, 3, 3),
        "w4": floats(32, 2, 2, 2), "zero": np.float32(0), "six": np.float32(6),
        "twice": np.float32([1, 1, 2, 2]),
    }  # fmt: skip
    return Case(nodes, {"x": (1, 1, 32, 24)}, ["y", "r1", "p2"], constants, opset=18)


@pytest.mark.parametrize("kind", ["cpu", "gpu", "split", *INSTALLED])
def test_a_depth_map_with_holes(kind: str, first_soc: Soc) -> None:
    """Holes are where ONNX Runtime has them, whatever computes: Winograd's tiles and groups too."""
    case = depth_completion()
    proto, feeds = case.proto(), case.feeds()
    feeds["x"][0, 0, 8:11, 13:15], feeds["x"][0, 0, 20, 3] = np.nan, np.inf
    expected = expected_of(proto, feeds)
    assert 0 < np.isnan(expected["y"]).mean() < 0.7
    network = imported(proto)
    with preferred(kind):
        plan = plan_of(network, first_soc, kind if kind in ("gpu", "split") else "cpu")
    with Engine(network, plan, here(first_soc)) as engine, warnings.catch_warnings():
        warnings.simplefilter("ignore", CodlWarning)
        got = engine(feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, 1e-4, 1e-5, err_msg=name)


QKV = {"q": (1, 2, 3, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 8), "m": (3, 5)}
#: Attention with a mask that may hide all keys of a query. ONNX's node gives zeros then, in all its
#: forms; what is spelled out gives NaN.
BLIND = {
    "node": Case([node("Attention", "q k v m", "y")], QKV, ["y"], opset=23),
    "softcap": Case([node("Attention", "q k v m", "y", softcap=5.0)], QKV, ["y"], opset=23),
    "causal": Case([node("Attention", "q k v m", "y", is_causal=1)], QKV, ["y"], opset=23),
    "spelled out": Case(
        [node("Transpose", "k", "t", perm=[0, 1, 3, 2]), node("MatMul", "q t", "s"),
         node("Add", "s m", "a"), node("Softmax", "a", "b", axis=-1), node("MatMul", "b v", "y")],
        QKV, ["y"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["cpu", "gpu", "split", *INSTALLED])
@pytest.mark.parametrize("name", [*BLIND])
def test_a_query_that_sees_nothing(name: str, kind: str, first_soc: Soc) -> None:
    case = BLIND[name]
    proto, feeds = case.proto(), case.feeds()
    feeds["m"][...] = 0
    feeds["m"][..., 1, :] = -np.inf
    feeds["m"][..., 2, 1] = -np.inf
    expected = expected_of(proto, feeds)["y"]
    makes_nan = name == "spelled out"
    assert np.isnan(expected).any() == makes_nan
    assert makes_nan or (expected[..., 1, :] == 0).all()
    network = imported(proto)
    with preferred(kind):
        plan = plan_of(network, first_soc, kind if kind in ("gpu", "split") else "cpu")
    with Engine(network, plan, here(first_soc)) as engine, warnings.catch_warnings():
        warnings.simplefilter("error", CodlWarning)  # a mask is no reason to run elsewhere
        np.testing.assert_allclose(engine(feeds)["y"], expected, 1e-4, 1e-4)


@pytest.mark.parametrize("kind", ["cpu", "gpu", "split"])
def test_infinities_count_but_in_masks(kind: str, first_soc: Soc) -> None:
    """Masks of attention have them in every run."""
    case = Case(
        [node("Conv", "x w", "c"), node("Clip", "c zero one", "a"),
         node("Add", "a mask", "s"), node("Softmax", "s", "y")],
        {"x": (1, 3, 5, 5), "mask": (1, 1, 5, 5)}, ["y"],
        {"w": floats(4, 3, 1, 1), "zero": np.float32(0), "one": np.float32(1)},
    )  # fmt: skip
    proto, usual = case.proto(), case.feeds()
    usual["mask"][0, 0, 1, 2:] = -np.inf
    broken = {**usual, "x": usual["x"].copy()}
    broken["x"][0, 1, 3, 4], broken["x"][0, 2, 3, 4] = np.inf, -np.inf
    network = imported(proto)
    with Engine(network, plan_of(network, first_soc, kind), here(first_soc)) as engine:
        for feeds in (usual, broken):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                got = engine(feeds)
            assert bool(told) == (feeds is broken and bool(engine.executable.nets))
            np.testing.assert_allclose(got["y"], expected_of(proto, feeds)["y"], 1e-5, 1e-5)


@pytest.mark.parametrize("constant", ["w", "d"])
def test_constants_that_are_no_numbers_show(constant: str, first_soc: Soc) -> None:
    """A broken model must not look healthy on one side: a rectifier would make zeros of them."""
    case = Case(
        [node("Conv", "x w", "c"), node("Div", "c d", "q"), node("Relu", "q", "y")],
        {"x": (1, 3, 5, 5)}, ["y"], {"w": floats(4, 3, 1, 1), "d": floats(1, 4, 1, 1)},
    )  # fmt: skip
    case.constants[constant][..., 1, 0, 0] = np.nan  # type: ignore[index]
    proto, feeds = case.proto(), case.feeds()
    expected = expected_of(proto, feeds)["y"]
    assert np.isnan(expected).any()
    network = imported(proto)
    plan = plan_of(network, first_soc, "cpu")
    with Engine(network, plan, here(first_soc)) as engine, pytest.warns(CodlWarning, match="no n"):
        np.testing.assert_allclose(engine(feeds)["y"], expected, 1e-5, 1e-5)
