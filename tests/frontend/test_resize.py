"""Every way to resize, as ONNX Runtime does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper
from support.onnx_models import model

from codl.frontend.convert import convert, simplify
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir.ops.resize import COORDS, ROUNDING

RESIZES: list[dict[str, Any]] = [
    {"mode": mode, "coordinate_transformation_mode": coords, **more}
    for coords in sorted(set(COORDS) - {"tf_half_pixel_for_nn", "tf_crop_and_resize"})
    for mode, more in [
        *(("nearest", {"nearest_mode": r}) for r in sorted(set(ROUNDING) - {"simple"})),
        ("linear", {}),
        ("cubic", {"cubic_coeff_a": -0.5, "exclude_outside": 1}),
    ]
    if (mode, coords) != ("nearest", "half_pixel_symmetric")  # ONNX Runtime keeps it
]


@pytest.mark.parametrize("attributes", RESIZES, ids=lambda a: "-".join(map(str, a.values())))
def test_the_reference_of_resize_agrees_with_onnx_runtime(attributes: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 4)).astype(np.float32)
    attributes = dict(attributes)
    if (
        attributes["mode"] == "cubic"
        and attributes["coordinate_transformation_mode"] != "half_pixel"
    ):
        attributes["exclude_outside"] = 0
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
