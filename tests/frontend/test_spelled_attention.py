"""Attention as one op: spelled out by exporters, or a node of ONNX; against ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.onnx_models import floats
from support.references import check, model_of_values

from codl.frontend.models import transformers
from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.transformers import Transformer
from codl.ir import Network

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


SMALL = Transformer(layers=2, features=24, heads=3, widened=40)


def network_of(describe: Callable[[ModelBuilder], None]) -> Network:
    """The network of a model, whose outputs by the ops' references are ONNX Runtime's."""
    b = ModelBuilder("small")
    describe(b)
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(b.shapes[name]).astype(np.float32) for name in b.inputs}
    return check(b.build(), given)


def counted(network: Network) -> Counter[str]:
    return Counter(layer.op.kind for layer in network.layers)


def functions(network: Network) -> Counter[str]:
    return Counter(layer.op.activation.kind for layer in network.layers)


def test_bert() -> None:
    network = network_of(lambda b: transformers.bert(b, SMALL, tokens=6))
    kinds = counted(network)
    assert (kinds["norm"], kinds["attention"], kinds["matmul"]) == (5, 2, 12)
    assert not kinds["reshape"]
    assert functions(network)["gelu"] == 2


@pytest.mark.parametrize("scale", [0.11, 0.5])
def test_scores_of_any_scale(scale: float) -> None:
    def describe(b: ModelBuilder) -> None:
        q, k, v = (b.input(name, (1, 2, 6, 4)) for name in "qkv")
        turned = b.transpose(b.node("Tanh", [k]), (0, 1, 3, 2))
        b.output(b.matmul(b.softmax(b.scaled(b.matmul(q, turned), scale)), v))

    assert counted(network_of(describe))["attention"] == 1


def test_vit() -> None:
    network = network_of(lambda b: transformers.vit_base(b, SMALL, side=48))
    kinds = counted(network)
    assert kinds["norm"] == 5
    assert not kinds["reshape"]
    assert functions(network)["gelu"] == 2


def test_whisper() -> None:
    network = network_of(lambda b: transformers.whisper_tiny_encoder(b, SMALL, frames=14))
    assert functions(network)["gelu"] == 4


def test_a_block_of_a_unet() -> None:
    network = network_of(lambda b: transformers.sd_unet_block(b, channels=64, side=4))
    kinds = counted(network)
    assert (kinds["norm"], kinds["attention"]) == (6, 2)
    assert functions(network)["silu"] >= 3
