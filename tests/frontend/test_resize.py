"""Sizes of outputs and of what follows, and every way to resize, as ONNX Runtime does it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from support.kernel_runs import check_on_cpu, run_cpu
from support.onnx_models import floats, model
from support.references import by_onnx_runtime, check, converted, evaluate, model_of_values
from support.some import some

from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir import Region, parse
from codl.ir.ops.resize import COORDS, ROUNDING
from codl.ir.records.soc import Soc
from codl.kernels import registry

#: Rows and columns that are made of 16 and 14. Of an axis that keeps its size ONNX Runtime takes
#: the next element too, times 0.
SIZES = ((31, 12), (32, 28))

RESIZES: list[dict[str, Any]] = [
    {"mode": "linear", "coordinate_transformation_mode": coords, **more}
    for coords in sorted(set(COORDS) - {"tf_half_pixel_for_nn"})
    for mode, more in [
        *(("nearest", {"nearest_mode": r}) for r in sorted(set(ROUNDING) - {"simple"})),
        ("linear", {}),
    ]
]


@pytest.mark.parametrize("attributes", RESIZES, ids=lambda a: "-".join(map(str, a.values())))
def test_the_reference_of_resize_agrees_with_onnx_runtime(attributes: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 4)).astype(np.float32)
    for how in ({"scales": np.float32([1, 1, 0.65, 2.3])}, {"sizes": np.int64([1, 2, 11, 3])}):
        given = {"roi": None, "scales": None, **how}
        names = ["x", *(k if v is not None else "" for k, v in given.items())]
        node = helper.make_node("Resize", names, ["y"], **attributes)
        proto = model([node], {"x": x.shape}, ["y"], how, opset=19)
        (expected,) = by_onnx_runtime(proto, {"x": x}).values()
        (layer,) = converted(proto).layers
        got = layer.op.reference([x.astype(np.float64)], {})
        np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("to", SIZES)
@pytest.mark.parametrize("coords", ["half_pixel", "align_corners", "asymmetric"])
def test_a_hole_stays_as_small_as_in_onnx_runtime(
    coords: str, to: tuple[int, int], first_soc: Soc
) -> None:
    """By the reference, and by each library on the CPU; ncnn's may make a number of it."""
    x = np.random.default_rng(0).random((1, 2, 16, 14), np.float32)
    x[0, 1, 5, 7] = np.nan
    attributes = {"mode": "linear", "coordinate_transformation_mode": coords}
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    proto = model([node], {"x": x.shape}, ["y"], {"sizes": np.int64([1, 2, *to])}, opset=19)
    (expected,) = by_onnx_runtime(proto, {"x": x}).values()
    (layer,) = converted(proto).layers
    results = {"reference": layer.op.reference([x.astype(np.float64)], {})}
    for variant in registry.variants(layer.op, "cpu", first_soc):
        if variant.backend != "ncnn":
            whole = Region.whole(layer.op.output)
            results[variant.name] = run_cpu(variant, layer.op, whole, [x], {}, first_soc)
    for name, got in results.items():
        np.testing.assert_allclose(got, expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("size", ["1x1", "1x9", "7x1", "3x9", "7x4", "14x2"])
def test_any_size_in_each_library(mode: str, size: str, first_soc: Soc) -> None:
    """The first elements of an axis are no copy of it."""
    op = parse(f"resize in=1x3x7x9 size={size} mode={mode} coords=asymmetric")
    check_on_cpu(op, first_soc)


def test_a_long_axis_takes_little_memory(first_soc: Soc) -> None:
    """Tables of it have as many rows as it has elements, and no matrix of their squares."""
    op = parse("resize in=1x2x1x30000 size=1x90001 mode=linear")
    x = np.random.default_rng(0).random(op.inputs[0], np.float32)
    tracemalloc.start()
    try:
        for variant in registry.variants(op, "cpu", first_soc):
            got = run_cpu(variant, op, Region.whole(op.output), [x], {}, first_soc)
            np.testing.assert_allclose(got, op.reference([x.astype(np.float64)], {}), atol=1e-6)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1e8


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
    p = by_onnx_runtime(pooled, given)["p"]
    expected = p.astype(np.float64) @ fixed["m"] + fixed["b"]
    got = evaluate(converted(proto), given)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
