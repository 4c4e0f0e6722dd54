"""Attention nodes as one op, or as products, masks and a softmax, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.references import check, model_of_values

from codl.errors import UnsupportedError
from codl.frontend.convert import convert, network_of
from codl.frontend.graph.graph import Graph
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir.onnx_node import Node

IMAGES, HEADS, TOKENS, KEYS, FEATURES = 2, 4, 5, 7, 16
WIDTH = HEADS * FEATURES

Values = dict[str, NDArray[Any]]


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def node(kind: str, inputs: str, outputs: str = "y", **attributes: object) -> onnx.NodeProto:
    """A node of `com.microsoft`; a dash is an input or output left out."""
    names = [[n.strip("-") for n in given.split()] for given in (inputs, outputs)]
    return helper.make_node(kind, *names, domain="com.microsoft", **attributes)


def qkv(keys: int = KEYS, groups: int = HEADS) -> Values:
    width = groups * FEATURES
    return {
        "q": random(IMAGES, TOKENS, WIDTH),
        "k": random(IMAGES, keys, width, seed=1),
        "v": random(IMAGES, keys, width, seed=2),
    }


@pytest.mark.parametrize("extra", ["bias", "padding", "given padding", "added", "scaled"])
def test_multi_head_attention(extra: str) -> None:
    given, constants, inputs, attributes = qkv(), {}, "q k v", {}
    if extra == "bias":
        inputs, constants = "q k v b", {"b": random(3 * WIDTH)}
    elif extra.endswith("padding"):
        inputs = "q k v - m"
        mask = (np.arange(KEYS) < np.array([[3], [KEYS]])).astype(np.int32)
        (given if extra.startswith("given") else constants)["m"] = mask
    elif extra == "added":
        inputs, given["m"] = "q k v - - m", random(1, HEADS, TOKENS, KEYS)
    else:
        attributes = {"scale": 0.2}
    nodes = [node("MultiHeadAttention", inputs, num_heads=HEADS, **attributes)]
    network = check(model_of_values(nodes, given, constants), given)
    kinds = [layer.op.kind for layer in network.layers]
    assert (kinds.count("attention"), kinds.count("matmul")) == (1, 0)


def test_a_bias_of_attention_goes_into_the_products_before_it() -> None:
    given = {"x": random(IMAGES, TOKENS, 24)}
    constants: Values = {f"w{name}": random(24, WIDTH, seed=i) for i, name in enumerate("qkv")}
    constants["b"] = random(3 * WIDTH)
    nodes = [helper.make_node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"]
    nodes.append(node("MultiHeadAttention", "q k v b", num_heads=HEADS))
    network = check(model_of_values(nodes, given, constants), given, 5e-4)
    kinds = {layer.op.kind for layer in network.layers}
    assert kinds == {"matmul", "transpose", "attention"}


def test_attention_that_looks_back_keeps_keys_and_values() -> None:
    given = qkv(TOKENS)
    for name in ("past_k", "past_v"):
        given[name] = random(IMAGES, HEADS, 3, FEATURES)
    nodes = [
        node(
            "MultiHeadAttention",
            "q k v - - - past_k past_v",
            "y all_k all_v",
            num_heads=HEADS,
            unidirectional=1,
        )
    ]
    check(model_of_values(nodes, given, outputs=("y", "all_k", "all_v")), given)


def test_masks_that_hide_all_keys_of_a_query_are_ops_of_their_own() -> None:
    given = {"q": random(1, 2, 3, 8), "k": random(1, 2, 4, 8), "v": random(1, 2, 4, 8)}
    seen = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
    nodes = [helper.make_node("Attention", ["q", "k", "v", "m"], ["y"])]
    network = network_of(import_onnx(model_of_values(nodes, given, {"m": seen}, opset=23), "test"))
    kinds = [layer.op.kind for layer in network.layers]
    assert "softmax" in kinds
    assert "attention" not in kinds


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        ("x w b", {}),
        ("x w b m", {}),
        ("x w b", {"unidirectional": 1}),
        ("x w b - - a", {}),
        ("x u c", {"qkv_hidden_sizes": [WIDTH, WIDTH, 2 * WIDTH]}),
    ],
)
def test_attention_with_matrices_of_its_own(inputs: str, attributes: dict[str, Any]) -> None:
    given = {"x": random(IMAGES, TOKENS, 24)}
    constants: Values = {"w": random(24, 3 * WIDTH), "b": random(3 * WIDTH)}
    constants |= {"u": random(24, 4 * WIDTH), "c": random(4 * WIDTH)}
    constants["m"] = (np.arange(TOKENS) < np.array([[3], [TOKENS]])).astype(np.int32)
    constants["a"] = random(1, HEADS, TOKENS, TOKENS)
    nodes = [node("Attention", inputs, num_heads=HEADS, **attributes)]
    network = check(model_of_values(nodes, given, constants), given, 5e-4)
    kinds = [layer.op.kind for layer in network.layers]
    assert (kinds.count("attention"), kinds.count("matmul")) == (1, 3)


def test_tensors_of_other_ranks_are_refused_by_name() -> None:
    shapes = {"q": (2, 5, 32), "k": (2, 5, 4, 8), "v": (2, 5, 4, 8)}
    attention = Node("n", "Attention", ("q", "k", "v"), ("y",), {"q_num_heads": 4})
    graph = Graph("g", (attention,), tuple(shapes), ("y",), {**shapes, "y": (2, 5, 32)}, {})
    with pytest.raises(UnsupportedError, match=r"'k' must have 3 axes, got \(2, 5, 4, 8\)"):
        convert(graph)


def test_heads_that_do_not_fit_are_refused() -> None:
    proto = model_of_values([node("MultiHeadAttention", "q k v", num_heads=4)], qkv())
    proto.graph.node[0].attribute[0].i = 5
    with pytest.raises(UnsupportedError):
        convert(import_onnx(proto, "test"))
