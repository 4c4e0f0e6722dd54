"""Rotary position embedding: what nodes become, and both sides' kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.onnx_models import floats
from support.references import check, model_of_values

from codl.errors import UnsupportedError
from codl.frontend.convert import convert
from codl.frontend.graph.onnx_import import import_onnx

HEADS, TOKENS, FEATURES, KNOWN = 3, 5, 8, 11


def tables(pairs: int = FEATURES // 2) -> dict[str, NDArray[Any]]:
    angles = np.arange(KNOWN)[:, None] * 0.7 ** np.arange(pairs)
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


def node(inputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node("RotaryEmbedding", inputs, ["y"], domain="com.microsoft", **attributes)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("positions", ["first", "same", "each", "given"])
def test_nodes_of_onnx_runtime(interleaved: int, heads_first: bool, positions: str) -> None:
    shape = (2, HEADS, TOKENS, FEATURES) if heads_first else (2, TOKENS, HEADS * FEATURES)
    given: dict[str, NDArray[Any]] = {"x": floats(*shape)}
    rows = np.arange(TOKENS) + np.array([[1], [1 if positions == "same" else 4]])
    rows = np.array([3]) if positions == "first" else rows
    constants = tables() | {"rows": rows.astype(np.int64)}
    if positions == "given":
        given["rows"] = constants.pop("rows")
    nodes = [node(["x", "rows", "cos", "sin"], interleaved=interleaved)]
    network = check(model_of_values(nodes, given, constants), given)
    kinds = [layer.op.kind for layer in network.layers]
    assert kinds.count("rotary") == 1
    assert kinds.count("gather") == (2 if positions == "given" else 0)


def test_some_features_stay() -> None:
    given = {"x": floats(2, TOKENS, HEADS * FEATURES)}
    constants = tables(3) | {"rows": np.array([0])}
    nodes = [node(["x", "rows", "cos", "sin"], num_heads=HEADS, rotary_embedding_dim=6)]
    check(model_of_values(nodes, given, constants), given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.array([9])}, "positions 9 to 13 are outside of a table of 11"),
        ({"scale": 2.0}, "scale 1"),
    ],
)
def test_what_it_cannot_be_is_said(change: dict[str, Any], message: str) -> None:
    given, constants = {"x": floats(2, HEADS, TOKENS, FEATURES)}, tables()
    rows = change.get("rows", np.array([0]))
    scale = {"scale": change["scale"]} if "scale" in change else {}
    proto = model_of_values(
        [node(["x", "rows", "cos", "sin"], **scale)], given, constants | {"rows": rows}
    )
    with pytest.raises(UnsupportedError, match=message):
        convert(import_onnx(proto, "test"))
