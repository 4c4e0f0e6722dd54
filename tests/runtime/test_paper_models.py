"""The built-in models on either side, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.devices import here
from support.references import by_onnx_runtime, converted

from codl.engine.engine import Engine
from codl.frontend.models import transformers
from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.transformers import Transformer
from codl.ir import Network, split
from codl.ir.plan import Chain, Plan
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS
from codl.jobs.interleaved import compare, load
from codl.kernels import registry
from codl.plan.build_plan import preferring


def loaded(name: str, folder: Path) -> tuple[Network, Any]:
    """A built-in model and its reference; `small_bert` has few layers and features."""
    if name != "small_bert":
        return load(name)
    b, path = ModelBuilder(name), folder / f"{name}.onnx"
    transformers.bert(b, Transformer(layers=2, features=128, heads=4, widened=512), tokens=64)
    onnx.save(b.build(), path)
    return load(str(path))


@pytest.mark.parametrize("name", ["small_bert", "matmul", "op_chain"])
def test_both_sides_agree_with_onnxruntime(name: str, first_soc: Soc, tmp_path: Path) -> None:
    network, reference = loaded(name, tmp_path)
    for output in reference.outputs.values():
        assert 0.01 < output.std() < 10
    for side in PROCESSORS:
        with Engine(network, preferring(network, first_soc, side), here(first_soc)) as engine:
            close = compare(engine(reference.inputs), reference)
        assert close.cosine >= 0.99999
        assert close.max_rel_err <= 1e-4


def split_everywhere(network: Network, soc: Soc, turn: int) -> Plan:
    """Every layer on both sides, cut along one of its dimensions after another."""
    chains = []
    for index, layer in enumerate(network.layers):
        dims = layer.op.dims or ("H",)
        dim, ratio = dims[(index + turn) % len(dims)], (0.3, 0.5, 0.7)[index % 3]
        ratio = ratio if layer.op.dims else float(index % 2)
        shares = split(layer.op, dim, ratio, align=soc.gpu.vector_width)
        names = {
            side: registry.variants(layer.op.restrict(part), side, soc)[0].name
            for side, part in zip(PROCESSORS, shares, strict=True)
            if not part.is_empty
        }
        chains.append(Chain((layer.name,), dim, ratio, {layer.name: names}))
    return Plan(
        network.name, network.digest, soc.name, "test", "none", "missing", None, tuple(chains)
    )


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("name", ["small_bert", "matmul"])
def test_products_and_attention_are_split_any_way(
    name: str, turn: int, first_soc: Soc, tmp_path: Path
) -> None:
    """By tokens, features, heads and matrices, with exchanges between all of them."""
    network, reference = loaded(name, tmp_path)
    plan = split_everywhere(network, first_soc, turn)
    assert sum(0 < chain.gpu_ratio < 1 for chain in plan.chains) > 0.9 * len(plan.chains)
    with Engine(network, plan, here(first_soc)) as engine:
        close = compare(engine(reference.inputs), reference)
    assert close.cosine >= 0.99999
    assert close.max_rel_err <= 1e-4


def test_a_batch_norm_that_no_convolution_takes_in_is_one_op(first_soc: Soc) -> None:
    b = ModelBuilder("preactivation")
    x = b.input("x", (1, 20, 6, 5))
    x = b.add(x, b.relu(b.conv(x, 20, 3, pad=1)))
    b.output(b.relu(b.batch_norm(x)))
    proto = b.build()
    network = converted(proto, "preactivation")
    last = network.layers[-1].op
    assert [layer.op.kind for layer in network.layers] == ["conv2d", "eltwise", "conv2d"]
    assert set(last.dims) == {"H", "OC"}
    assert last.activation.kind == "relu"
    x_value = np.random.default_rng(0).standard_normal((1, 20, 6, 5)).astype(np.float32)
    (expected,) = by_onnx_runtime(proto, {"x": x_value}).values()
    for side in PROCESSORS:
        with Engine(network, preferring(network, first_soc, side), here(first_soc)) as engine:
            np.testing.assert_allclose(engine(x_value), expected, atol=1e-5)
