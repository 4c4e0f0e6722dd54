"""Every way to resize, as ONNX Runtime does it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper
from support.kernel_runs import check_on_cpu, run_cpu
from support.onnx_models import model

from codl.frontend.convert import convert, simplify
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
        session = ort.InferenceSession(
            proto.SerializeToString(), session_options(1), ["CPUExecutionProvider"]
        )
        (expected,) = session.run(None, {"x": x})
        (layer,) = convert(simplify(import_onnx(proto, "test"))).layers
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
    session = ort.InferenceSession(
        proto.SerializeToString(), session_options(1), ["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"x": x})
    (layer,) = convert(simplify(import_onnx(proto, "test"))).layers
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
