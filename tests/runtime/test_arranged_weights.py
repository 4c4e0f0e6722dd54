"""Sessions of ONNX Runtime over packed matrices that are arranged once, in files that all map."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from codl.ir.onnx_wire import stand_in
from codl.runtime.ort_net import ArrangedWeights

K, N, BLOCK = 64, 320, 32


def weights(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    words = random.integers(0, 256, (N, K // BLOCK, BLOCK // 2), dtype=np.uint8)
    return {"w": words, "s": random.random((N, K // BLOCK), dtype=np.float32)}


def model(rows: int) -> bytes:
    """A product with a packed matrix that stands beside the model."""
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft",
        K=K, N=N, bits=4, block_size=BLOCK,
    )  # fmt: skip
    info = helper.make_tensor_value_info
    ends = info("x", TensorProto.FLOAT, (rows, K)), info("y", TensorProto.FLOAT, (rows, N))
    graph = helper.make_graph([node], "g", [ends[0]], [ends[1]])
    for name, value in weights(0).items():
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        stand_in(graph.initializer.add(), name, kind, value.shape)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def dequantised(own: dict[str, Any]) -> Any:
    numbers = np.stack([own["w"] & 15, own["w"] >> 4], -1).reshape(N, K // BLOCK, BLOCK)
    return ((numbers.astype(np.float64) - 8) * own["s"][..., None]).reshape(N, K).T


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_equal_matrices_are_there_once_and_outlive_their_files(folders: Path) -> None:
    arranged, random = ArrangedWeights(), np.random.default_rng(0)
    first, second, other = (
        arranged.open(model(rows), weights(seed), ort.SessionOptions)
        for rows, seed in ((1, 0), (7, 0), (1, 1))
    )
    assert first is not None
    assert second is not None
    assert other is not None
    size = sum(own.nbytes for own in weights(0).values() if own.nbytes >= 1 << 12)
    assert (first.new_bytes, second.new_bytes, other.new_bytes) == (size, 0, size)
    assert len([*folders.glob("*/*.data")]) == 2
    arranged.close()
    assert not [*folders.iterdir()]
    for opened, rows, seed in ((first, 1, 0), (second, 7, 0), (other, 1, 1)):
        x = random.standard_normal((rows, K), np.float32)
        expected = x @ dequantised(weights(seed))
        (got,) = opened.session.run(None, {"x": x})
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_there_is_none_where_nothing_can_be_written_or_read(
    monkeypatch: pytest.MonkeyPatch, folders: Path
) -> None:
    arranged = ArrangedWeights()
    assert arranged.open(bytes(9), {}, ort.SessionOptions) is None
    monkeypatch.setattr(tempfile, "tempdir", str(folders / "missing"))
    assert ArrangedWeights().open(model(1), weights(0), ort.SessionOptions) is None
    arranged.close()
