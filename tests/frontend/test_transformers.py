"""Transformers as exporters write them: small ones of the built-in kinds, against ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from support.references import check

from codl.frontend.models import transformers
from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.transformers import Transformer
from codl.ir import Network

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
