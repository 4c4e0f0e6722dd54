"""Plans that nobody searched for, random ones among them, and a network to run by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from codl.frontend.models.builder import ModelBuilder
from codl.ir import Array, Layer, Network
from codl.ir.plan import Chain, Plan
from codl.ir.records.soc import Soc
from codl.ir.types import PLANAR, Storage
from codl.kernels import registry
from codl.plan.build_plan import chain_of
from codl.plan.cost_model import CostModel
from codl.plan.predicted_plan import make_plan as priced_plan
from support.references import by_onnx_runtime, converted
from support.simulated import SOC
from support.synthetic_predictors import SyntheticPredictors

#: A network, its input `image`, and the outputs by name.
Case = tuple[Network, Array, dict[str, Array]]


@contextmanager
def apart() -> Iterator[None]:
    """Lower plans without kernels that compute two layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codl.lower.gpu.fuses", lambda *args: False)
        yield


def branching() -> ModelBuilder:
    """Every kind of op, a skip over several ops into a concat, and two outputs."""
    b = ModelBuilder("branching")
    x = b.input("image", (1, 3, 37, 29))
    x = b.leaky_relu(b.batch_norm(b.conv(x, 32, 3, pad=1, bias=False)), 0.1)
    skip = x = b.max_pool(x, 2, 2)
    x = b.relu(b.conv(x, 48, 3, pad=1))
    x = b.relu(b.conv(x, 48, 3, pad=1, groups=48))
    x = b.relu(b.conv(b.concat([skip, x]), 64, 1, pad=0))
    b.output(x)
    x = b.max_pool(b.conv(x, 40, 5, pad=2, stride=2), 3, 2)
    x = b.relu(b.fully_connected(b.flatten(x), 50))
    b.output(b.fully_connected(x, 21))
    return b


def branching_case() -> Case:
    """The branching network, an image for it, from a seed, and what ONNX Runtime makes of that."""
    x = np.random.default_rng(3).random((1, 3, 37, 29), np.float32)
    return converted(branching()), x, by_onnx_runtime(branching().build(), {"image": x})


def make_plan(network: Network, soc: Soc, cuts: Sequence[tuple[int, str, float]],
              sharing: str = "gather") -> Plan:  # fmt: skip
    """Chains of the given lengths, dimensions and ratios; default variants."""
    layers = iter(network.layers)
    chains = []
    for length, dim, ratio in cuts:
        taken = [layer for _, layer in zip(range(length), layers, strict=False)]
        if taken:
            variants = {layer.name: defaults(layer, soc) for layer in taken}
            ops = tuple(layer.name for layer in taken)
            chains.append(Chain(ops, dim, ratio, variants))  # type: ignore[arg-type]
    for layer in layers:
        chains.append(Chain((layer.name,), "H", 0.0, {layer.name: defaults(layer, soc)}))
    return Plan(
        network.name, network.digest, soc.name, "test", "none", sharing, None, tuple(chains)  # type: ignore[arg-type]
    )  # fmt: skip


def defaults(layer: Layer, soc: Soc) -> dict[str, str]:
    """Variants that do any part of the layer: those without conditions on its shape."""
    plain = {"conv2d": "direct", "pooling": "direct", "fc": "gemv", "concat": "copy"}
    names, op = {}, layer.op
    for processor in ("cpu", "gpu"):
        found = [v.name for v in registry.variants(op, processor, soc)]  # type: ignore[arg-type]
        names[processor] = next((n for n in found if plain.get(layer.op.kind, "") in n), found[0])
    return names


def legal(network: Network, cuts: Sequence[tuple[int, str, float]]) -> list[tuple[int, str, float]]:
    """Ratios between 0 and 1 only where every op of a chain can be cut that way."""
    layers, made = list(network.layers), []
    for length, dim, ratio in cuts:
        taken, layers = layers[:length], layers[length:]
        able = all(dim in layer.op.dims for layer in taken)
        if dim == "OC":
            able = able and all(layer.op.carries_channels for layer in taken[1:])
        made.append((length, dim, ratio if able else round(ratio)))
    return made


CUTS = st.lists(
    st.tuples(
        st.integers(1, 4), st.sampled_from(["H", "OC"]), st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0])
    ),
    min_size=1,
    max_size=10,
)


def gpu_variant(layer: Layer, storage: Storage, soc: Soc) -> str:
    found: list[Any] = registry.variants(layer.op, "gpu", soc, include_unfit=True)
    fitting = [v.name for v in found if v.storage in (storage, PLANAR)]
    return next((name for name in fitting if "direct" in name), fitting[0])


def one_by_one(network: Network, soc: Soc, prefer: str) -> Plan:
    """Every layer alone, on a processor that can: the preferred one, or each in turn."""
    chains = []
    for index, layer in enumerate(network.layers):
        sides = (
            ["cpu", "gpu"]
            if prefer == "cpu" or (prefer == "turns" and index % 2)
            else ["gpu", "cpu"]
        )
        side, found = next(
            (side, own)
            for side in sides
            if (own := registry.variants(layer.op, side, soc))  # type: ignore[arg-type]
        )
        names = {layer.name: {side: found[0].name}}
        chains.append(Chain((layer.name,), "H", float(side == "gpu"), names))
    return Plan(
        network.name, network.digest, soc.name, "test", "none", "missing", None, tuple(chains)
    )


def row(length: int, size: int = 24) -> Network:
    """Convolutions in a row, of an image of so many rows."""
    b = ModelBuilder("row")
    x = b.input("x", (1, 16, size, 24))
    for _ in range(length):
        x = b.relu(b.conv(x, 16, 3, pad=1))
    b.output(x)
    return converted(b)


def image(network: Network, seed: int = 1) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.random(shape, np.float32) for name, shape in network.inputs.items()}


def planned(
    network: Network, cuts: list[tuple[int, Any, float]], predictors: SyntheticPredictors
) -> Plan:
    """A priced plan of chains of the given lengths, dimensions and ratios, on `SOC`."""
    layers, chains = list(network.layers), []
    for length, dim, ratio in cuts:
        chains.append(chain_of(layers[:length], dim, ratio))
        layers = layers[length:]
    cost = CostModel(SOC, predictors)
    return priced_plan(network, cost, chains, strategy="test", sharing="missing")
