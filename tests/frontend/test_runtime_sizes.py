"""Sizes of outputs, and of what follows from them, are those that ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from support.onnx_models import floats
from support.references import check, evaluate, model_of_values
from support.some import some

from codl.frontend.convert import convert, simplify
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.onnx_import import import_onnx


def _resizes(opset: int) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    random = np.random.default_rng(opset)
    for _ in range(24):
        size, to = sorted(random.integers(4, 200, 2).tolist())
        scale = np.float32((to + (to == size)) / size)
        given = {"x": floats(1, 2, size, 3)}
        scales = np.array([1, 1, scale, 1], np.float32)
        if opset < 9:
            yield helper.make_node("Upsample", ["x"], ["y"], scales=scales.tolist()), given, {}
        elif opset < 11:
            kind = "Upsample" if opset == 9 else "Resize"
            yield helper.make_node(kind, ["x", "s"], ["y"]), given, {"s": scales}
        else:
            fixed = {"r": np.empty(0, np.float32), "s": scales}
            linear = {"mode": "linear"}
            yield helper.make_node("Resize", ["x", "r", "s"], ["y"], **linear), given, fixed


@pytest.mark.parametrize("opset", [8, 9, 10, 11, 13, 18, 22])
def test_resizing_by_a_scale(opset: int) -> None:
    for node, given, fixed in some(_resizes(opset)):
        check(model_of_values([node], given, fixed, opset), given, encloses=True)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("rank", [1, 2])
def test_transposed_convolution(auto: str, rank: int) -> None:
    ways = product((1, 2, 3), (0, 1), (1, 2, 4), (1, 2), (False, True))
    for stride, more, kernel, dilation, given_size in ways:
        if more >= stride:
            continue
        given, fixed = {"x": floats(1, 2, *(5, 7)[:rank])}, {"w": floats(2, 3, *[kernel] * rank)}
        attributes: dict[str, Any] = {
            "auto_pad": auto,
            "strides": [stride] * rank,
            "dilations": [dilation] * rank,
            "output_padding": [more] * rank,
        }
        if given_size:
            attributes["output_shape"] = [n * stride for n in (5, 7)[:rank]]
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
        nodes = [node, helper.make_node("GlobalAveragePool", ["y"], ["z"])]
        proto = model_of_values(nodes, given, fixed, outputs=("y", "z"))
        try:
            onnx_runtime_takes(proto, given)
        except Exception:
            continue
        check(proto, given, encloses=True)


def onnx_runtime_takes(proto: onnx.ModelProto, given: dict[str, Any]) -> None:
    options = session_options(1)
    options.log_severity_level = 4
    ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"]).run(
        None, given
    )


def test_what_stands_behind_such_a_node_has_sizes_that_follow() -> None:
    """A shape that is asked for, another resize, and a node of ONNX Runtime's own."""
    scales = np.array([1, 1, np.float32(49 / 42), np.float32(174 / 160)], np.float32)
    again = np.array([1, 1, np.float32(87 / 49), 1], np.float32)
    nodes = [
        helper.make_node("Resize", ["x", "", "s"], ["a"], mode="linear"),
        helper.make_node("Resize", ["a", "", "t"], ["b"], mode="linear"),
        helper.make_node("Shape", ["a"], ["n"]),
        helper.make_node("Cast", ["n"], ["m"], to=1),
        helper.make_node("QuickGelu", ["b"], ["c"], domain="com.microsoft"),
        helper.make_node("Transpose", ["c"], ["d"], perm=[0, 1, 3, 2]),
    ]
    given, fixed = {"x": floats(1, 2, 42, 160)}, {"s": scales, "t": again}
    proto = model_of_values(nodes, given, fixed, 18, ("m", "d"))
    graph = import_onnx(proto, "test")
    assert graph.shapes["d"] == (1, 2, 174, 87)
    np.testing.assert_array_equal(graph.constants["m"], [1, 2, 49, 174])


def test_a_wrong_declared_shape_is_not_believed() -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")
    given = {"x": floats(1, 2, 42, 4)}
    fixed = {"s": np.array([1, 1, np.float32(49 / 42), 1], np.float32)}
    proto = model_of_values(
        [node, helper.make_node("Relu", ["y"], ["z"])], given, fixed, 18, ("z",)
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("y", 1, [1, 2, 48, 4]))
    check(proto, given)


@pytest.mark.parametrize("count", [3, 30])
def test_many_in_a_row(count: int) -> None:
    """Each rounds up what the one before it makes."""
    nodes, x = [], "x"
    for index in range(count):
        nodes.append(
            helper.make_node("MaxPool", [x], [f"t{index}"], kernel_shape=[2, 2], strides=[2, 1],
                             pads=[1, 0, 0, 1], ceil_mode=1)
        )  # fmt: skip
        x = f"t{index}"
    given = {"x": floats(1, 2, 9, 5)}
    check(model_of_values(nodes, given, outputs=(x,)), given)


def test_a_product_behind_a_pooling_that_rounds_up() -> None:
    """ONNX Runtime's fusion of a product and an addition flattens to the size that ONNX infers."""
    nodes = [
        helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[3, 3], strides=[3, 3],
                         pads=[1, 1, 1, 1], ceil_mode=1),
        helper.make_node("MatMul", ["p", "m"], ["q"]),
        helper.make_node("Add", ["b", "q"], ["y"]),
    ]  # fmt: skip
    given, fixed = {"x": floats(1, 3, 2, 3)}, {"m": floats(2, 8), "b": floats(8)}
    proto = model_of_values(nodes, given, fixed, 17, ("y",))
    pooled = helper.make_model(
        helper.make_graph(nodes[:1], "pool", proto.graph.input,
                          [helper.make_tensor_value_info("p", 1, None)]),
        opset_imports=proto.opset_import, ir_version=10,
    )  # fmt: skip
    session = ort.InferenceSession(pooled.SerializeToString(), session_options(1))
    (p,) = session.run(None, given)
    expected = p.astype(np.float64) @ fixed["m"] + fixed["b"]
    got = evaluate(convert(simplify(import_onnx(proto, "test"))), given)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
