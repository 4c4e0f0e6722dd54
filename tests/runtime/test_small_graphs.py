"""Graphs of a few nodes that a network may have anywhere: outputs are ONNX Runtime's, unoptimised.

Each ran wrong or not at all once. They run on either processor, and in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from support.devices import here
from support.libraries import INSTALLED, preferred
from support.onnx_models import floats, model, node

from codl.engine.engine import Engine
from codl.errors import CodlWarning
from codl.frontend.convert import network_of
from codl.frontend.graph.onnx_import import import_onnx
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
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def plan_of(network: Network, soc: Soc, kind: str) -> Plan:
    if kind in ("cpu", "gpu"):
        return preferring(network, soc, kind)  # type: ignore[arg-type]
    from random import Random

    from support.random_plans import random_plan

    return random_plan(network, soc, Random(5), stored=("float32",))


CASES: dict[str, Case] = {
    # One tensor holds an output, and another node wants it as it is.
    "halves beside relu": Case(
        [node("Conv", "x w", "a"), node("Relu", "a", "y")],
        {"x": (1, 3, 5, 5)}, ["y", "a"], {"w": floats(4, 3, 1, 1)}, half=True,
    ),
    "halves beside mish": Case(
        [
            node("Conv", "x w", "a"), node("Softplus", "a", "s"), node("Tanh", "s", "t"),
            node("Mul", "a t", "m"),
        ],
        {"x": (1, 3, 5, 5)}, ["m", "s", "a"], {"w": floats(4, 3, 1, 1)}, half=True,
    ),
    "mean reshaped beside relu": Case(
        [
            node("ReduceMean", "x", "m", axes=[2, 3], keepdims=1),
            node("Reshape", "m to", "o1"),
            node("Relu", "m", "o2"),
        ],
        {"x": (1, 4, 6, 5)}, ["o1", "o2"],
        {"to": np.array([1, 4], np.int64)},
    ),
    # Arithmetic.
    "square before a convolution": Case(
        [node("Relu", "x", "r"), node("Pow", "r two", "p"), node("Conv", "p w", "y")],
        {"x": (1, 3, 8, 8)}, ["y"], {"two": np.float32(2), "w": floats(5, 3, 1, 1)},
    ),
    "a hard sigmoid that falls": Case(
        [node("HardSigmoid", "x", "y", alpha=-0.3, beta=0.5)], {"x": (1, 3, 5, 5)}, ["y"]
    ),
    "division by zero": Case(
        [node("Relu", "x", "r"), node("Div", "x r", "y")], {"x": (1, 3, 5, 5)}, ["y"]
    ),
    "an output that is quantised behind a transpose and a reshape": Case(
        [node("MatMul", "x v", "y"), node("Transpose", "y", "t"), node("Reshape", "t sizes", "r"),
         node("QuantizeLinear", "r s n", "q"), node("DequantizeLinear", "q s n", "z")],
        {"x": (2, 2, 8, 1), "v": (2, 2, 1, 8)}, ["y", "z"],
        {"sizes": np.int64([2, 8, 16]), "s": np.float32(0.05), "n": np.uint8(0)},
    ),
    "places of maxima that are quantised": Case(
        [helper.make_node("MaxPool", ["x"], ["m", "i"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
         node("QuantizeLinear", "m s n", "q"), node("DequantizeLinear", "q s n", "z"),
         node("Cast", "i", "f", to=TensorProto.FLOAT)],
        {"x": (1, 2, 6, 6)}, ["z", "f"], {"s": np.float32(0.5), "n": np.int8(0)},
    ),
    "floats between quantised tensors": Case(
        [node("QuantizeLinear", "x s n", "q"), node("DequantizeLinear", "q s n", "d"),
         node("Conv", "d w", "c"), node("QuantizeLinear", "c s n", "r"),
         node("DequantizeLinear", "r s n", "y")],
        {"x": (1, 3, 5, 5)}, ["y"],
        {"s": np.float32(0.02), "n": np.int8(3), "w": floats(4, 3, 3, 3)},
    ),
    # Attention.
    "scores times zero": Case(
        [node("Transpose", "k", "t", perm=[0, 1, 3, 2]), node("MatMul", "q t", "s"),
         node("Mul", "s zero", "z"), node("Softmax", "z", "p"), node("MatMul", "p v", "y")],
        {"q": (1, 2, 5, 8), "k": (1, 2, 6, 8), "v": (1, 2, 6, 8)}, ["y"], {"zero": np.float32(0)},
    ),
    "an activation of values that attention keeps": Case(
        [node("GroupQueryAttention", "q k v pk pv lengths total", "a keys values", num_heads=4,
              kv_num_heads=2, domain="com.microsoft"),
         node("LeakyRelu", "values", "y", alpha=0.3)],
        {"q": (1, 3, 32), "k": (1, 3, 16), "v": (1, 3, 16), "pk": (1, 2, 4, 8),
         "pv": (1, 2, 4, 8)}, ["a", "y"],
        {"lengths": np.array([6], np.int32), "total": np.int32(7)},
    ),
    # ncnn makes rows of products and of means.
    "a product and a number": Case(
        [node("Flatten", "x", "f"), node("Gemm", "f w", "g"), node("Add", "g n", "a"),
         node("Mul", "a s", "y")],
        {"x": (2, 4, 3, 1), "n": (1, 1)}, ["y"], {"w": floats(12, 3), "s": floats(3)},
    ),
    "a mean and a number": Case(
        [node("GlobalAveragePool", "x", "m"), node("Mul", "m n", "a"), node("Add", "a s", "y")],
        {"x": (1, 6, 3, 5), "n": (1, 1, 1, 1)}, ["y"], {"s": floats(6, 1, 1)},
    ),
    "a mean and images": Case(
        [node("GlobalAveragePool", "x", "m"), node("Mul", "m x", "a"), node("Mul", "m n", "b"),
         node("Add", "a b", "y")],
        {"x": (1, 6, 3, 5), "n": (1, 1, 1, 1)}, ["y"],
    ),
    "means in windows": Case(
        [node("GlobalAveragePool", "x", "m"), node("Conv", "m w", "c", pads=[1, 1, 1, 1]),
         node("MaxPool", "c", "y", kernel_shape=[2, 2], pads=[1, 1, 0, 0]),
         node("Concat", "m c", "z", axis=1),
         onnx.helper.make_node("Resize", ["m", "", "r"], ["u"], mode="nearest")],
        {"x": (1, 5, 3, 5)}, ["y", "z", "u"],
        {"w": floats(4, 5, 3, 3), "r": np.array([1, 1, 2, 3], np.float32)},
    ),
    "two means, one of them wide": Case(
        [node("GlobalAveragePool", "x", "m"), node("GlobalMaxPool", "z", "k"),
         node("Concat", "m k x2", "y", axis=1)],
        {"x": (1, 5, 3, 5), "z": (1, 6, 2, 2), "x2": (1, 3, 1, 1)}, ["y"],
    ),
    # Windows.
    "instance norm, odd, two by two": Case(
        [node("InstanceNormalization", "x b b", "a"), node("MaxPool", "a", "y", **PAIR)],
        {"x": (1, 3, 13, 13)}, ["y"], {"b": floats(3)},
    ),
    "two poolings that round up, both given out": Case(
        [node("MaxPool", "x", "a", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
         node("MaxPool", "a", "y", kernel_shape=[3, 3], strides=[2, 3], pads=[1, 1, 0, 0],
              ceil_mode=1)],
        {"x": (1, 3, 3, 7)}, ["a", "y"],
    ),
    "a layer norm of one element": Case(
        [node("LayerNormalization", "x s", "y")], {"x": (3, 4, 1)}, ["y"], {"s": floats(1)},
    ),
    "a norm of nothing": Case(
        [node("Mul", "x zeros", "z"), node("LpNormalization", "z", "y", axis=1)],
        {"x": (1, 2, 3, 4)}, ["y"], {"zeros": np.zeros((1, 1, 3, 1), np.float32)}, half=True,
    ),
    "a standard function behind another's op": Case(
        [node("SimplifiedLayerNormalization", "x s", "a"),
         node("MeanVarianceNormalization", "a", "y", axes=[0, 2])],
        {"x": (1, 5, 13)}, ["y"], {"s": floats(13)},
    ),
    **{
        f"{kind} of padding alone, {sizes}": Case(
            [node("Relu", "x", "r"), node(kind, "r", "y", kernel_shape=kernel, pads=[1] * 4,
                  dilations=dilations, strides=strides)],
            {"x": (1, 3, *sizes)}, ["y"], opset=19,
        )
        for kind in ("AveragePool", "MaxPool")
        for sizes, kernel, dilations, strides in (
            ((12, 1), [2, 2], [1, 2], [1, 1]),
            ((1, 5), [2, 3], [2, 1], [1, 1]),
        )
    },
    "transposed, odd, two by two": Case(
        [node("Transpose", "x", "a", perm=[0, 1, 3, 2]), node("Conv", "a w", "y", strides=[2, 2])],
        {"x": (1, 3, 13, 13)}, ["y"], {"w": floats(3, 3, 2, 2)},
    ),
    "a mean beside patches": Case(
        [node("GlobalAveragePool", "x", "s"), node("Conv", "x w", "y", strides=[2, 2])],
        {"x": (1, 3, 25, 25)}, ["s", "y"], {"w": floats(8, 3, 2, 2)},
    ),
    "groups of an odd image": Case(
        [node("Relu", "x", "r"), node("Conv", "r w", "y", group=3, strides=[2, 2]),
         node("ReduceMean", "r", "m", keepdims=1)],
        {"x": (1, 9, 13, 13)}, ["y", "m"], {"w": floats(9, 3, 2, 2)},
    ),
    "a linear resize to an odd height": Case(
        [onnx.helper.make_node("Resize", ["x", "", "scales"], ["r"], mode="linear"),
         node("MaxPool", "r", "y", **PAIR)],
        {"x": (1, 3, 4, 4)}, ["y"],
        {"scales": np.array([1, 1, 1.75, 1.75], np.float32)},
    ),
    "nearest of two that are as near": Case(
        [onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest",
                               coordinate_transformation_mode="half_pixel_symmetric")],
        {"x": (1, 3, 10, 10)}, ["y"], {"scales": np.array([1, 1, 0.6, 0.6], np.float32)},
    ),
    "a position that is nearly between two": Case(
        [node("Resize", "x a a sizes", "y", mode="nearest", nearest_mode="round_prefer_ceil",
              coordinate_transformation_mode="asymmetric")],
        {"x": (1, 4, 7, 17)}, ["y"],
        {"sizes": np.array([1, 4, 4, 10], np.int64), "a": np.zeros(0, np.float32)},
    ),
    "a crop of axes that keep their sizes": Case(
        [node("Resize", "x roi scales", "y", mode="nearest",
              coordinate_transformation_mode="tf_crop_and_resize")],
        {"x": (1, 3, 6, 6)}, ["y"],
        {"scales": np.array([1, 1, 2, 2], np.float32),
         "roi": np.array([0, 0.2, 0.1, 0.3, 1, 0.9, 0.8, 0.9], np.float32)},
    ),
    "an average that counts padding, rounded up": Case(
        [node("AveragePool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 1, 0],
              ceil_mode=1, count_include_pad=1)],
        {"x": (1, 4, 11, 9)}, ["y"],
    ),
    **{
        f"{kind} {size} by {pads}, rounded up": Case(
            [node(kind, "x", "p", kernel_shape=[k, k], strides=[s, s], pads=[pads] * 4,
                  ceil_mode=1), node("ReduceMean", "p", "m", keepdims=1)],
            {"x": (1, 4, size, size)}, ["p", "m"],
        )
        for kind in ("AveragePool", "MaxPool")
        for k, s, size, pads in ((2, 3, 9, 0), (1, 2, 8, 0), (2, 2, 7, 1), (3, 2, 8, 1))
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ["cpu", "gpu", "split"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_onnx_runtime(name: str, kind: str, first_soc: Soc) -> None:
    proto, feeds = CASES[name].proto(), CASES[name].feeds()
    expected = expected_of(proto, feeds)
    network = network_of(import_onnx(proto, "small"))
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
    network = network_of(import_onnx(proto, "small"))
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
    network = network_of(import_onnx(proto, "small"))
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
    network = network_of(import_onnx(proto, "small"))
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
    network = network_of(import_onnx(proto, "small"))
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
    network = network_of(import_onnx(proto, "small"))
    plan = plan_of(network, first_soc, "cpu")
    with Engine(network, plan, here(first_soc)) as engine, pytest.warns(CodlWarning, match="no n"):
        np.testing.assert_allclose(engine(feeds)["y"], expected, 1e-5, 1e-5)
