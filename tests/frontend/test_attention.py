"""ONNX's attention as one op, or left to ONNX Runtime, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.onnx_models import floats
from support.references import check, model_of_values

HEADS, TOKENS, KEYS, FEATURES = 4, 5, 7, 16
MASKS: dict[str, NDArray[Any]] = {
    "": np.empty(0),
    "added": floats(1, HEADS, TOKENS, KEYS),
    "of images": floats(2, 1, TOKENS, KEYS),
    "chosen": np.tril(np.ones((TOKENS, KEYS), bool), 2),
    "blind": np.arange(KEYS) < np.array([[3], [KEYS], [0], [1], [2]]),
}


def attention(groups: int, flat: bool) -> dict[str, NDArray[np.float32]]:
    made = {}
    for seed, (name, heads, rows) in enumerate(
        (("q", HEADS, TOKENS), ("k", groups, KEYS), ("v", groups, KEYS))
    ):
        apart = floats(2, heads, rows, FEATURES, seed=seed)
        made[name] = apart.swapaxes(1, 2).reshape(2, rows, -1) if flat else apart
    return made


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("groups", "flat", "attributes"),
    [
        (HEADS, False, {}),
        (2, False, {"scale": 0.2}),
        (HEADS, True, {}),
        (2, True, {"is_causal": 1}),
    ],
)
def test_masks(
    groups: int, flat: bool, attributes: dict[str, Any], mask: str, is_given: bool
) -> None:
    given, constants = attention(groups, flat), {}
    inputs = [*given, *(["m"] if mask else [])]
    if mask:
        (given if is_given else constants)["m"] = MASKS[mask]
    heads = {"q_num_heads": HEADS, "kv_num_heads": groups} if flat else {}
    nodes = [helper.make_node("Attention", inputs, ["y"], **heads, **attributes)]
    proto = model_of_values(nodes, given, constants, opset=23)
    network = check(proto, given, encloses=True)
    kinds = {layer.op.kind for layer in network.layers}
    is_choice = mask in ("chosen", "blind")
    wanted = {"onnx"} if is_choice and is_given else {"attention"}
    assert kinds - {"transpose"} == wanted


@pytest.mark.parametrize(
    ("inputs", "outputs", "attributes"),
    [
        ("q k v", "y", {"softcap": 2.0}),
        ("q k v", "y - - scores", {}),
        ("q k v - pk pv", "y all_k all_v", {}),
        ("wide wide_k wide_v", "y", {}),
    ],
)
def test_others_are_onnx_runtimes(inputs: str, outputs: str, attributes: dict[str, Any]) -> None:
    given = attention(HEADS, flat=False)
    given |= {name: floats(2, HEADS, 3, FEATURES, seed=3) for name in ("pk", "pv")}
    given |= {"wide": floats(2, HEADS, TOKENS, 200)}
    given |= {f"wide_{name}": floats(2, HEADS, KEYS, 200) for name in "kv"}
    names = [[name.strip("-") for name in text.split()] for text in (inputs, outputs)]
    given = {name: value for name, value in given.items() if name in names[0]}
    nodes = [helper.make_node("Attention", *names, **attributes)]
    wanted = tuple(filter(None, names[1]))
    proto = model_of_values(nodes, given, opset=23, outputs=wanted)
    network = check(proto, given, encloses=True)
    assert "attention" not in {layer.op.kind for layer in network.layers}
