"""Residual adds that convolutions compute: every variant, on every device, in any plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.devices import here
from support.kernel_runs import assert_close, cut, operands, run_gpu
from support.plans import apart, defaults, gpu_variant, make_plan
from support.references import by_onnx_runtime, converted
from support.simulated import SOC, soc_with
from support.some import some
from support.variants import Failing, source, with_variants

from codl.engine.engine import Engine
from codl.errors import CodlWarning
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Array, Network, Op, Region, parse, split
from codl.ir.ops.base import Activation
from codl.ir.records.soc import Soc
from codl.ir.types import BLOCKED, IMAGE, IMAGE_HALF, Storage
from codl.kernels import registry
from codl.lower.gpu import works
from codl.lower.partition import cut as chain_cut
from codl.measure.closeness import max_rel_err
from codl.runtime.opencl import OpenClDevice

OPS = (
    ("conv2d in=1x20x13x11 oc=36 kernel=3x3 pad=1 act=relu", "OC"),
    ("conv2d in=1x20x14x13 oc=20 kernel=3x3 stride=2 pad=1 act=silu", "H"),
    ("conv2d in=1x40x9x7 oc=2 kernel=1x1 act=leaky_relu:0.1", "H"),
    ("conv2d in=2x19x8x9 oc=19 kernel=3x3 pad=1 groups=19", "N"),
    ("conv2d in=2x6x9x7 oc=10 kernel=3x3 stride=2 pad=1 groups=2", "H"),
)


def case(text: str) -> tuple[Op, list[Array], dict[str, Array], NDArray[np.float64]]:
    op = parse(text)
    inputs, weights = operands(op)
    inputs.append(np.random.default_rng(9).standard_normal(op.output, np.float32))
    plain = op.with_activation(Activation()).reference([inputs[0].astype(np.float64)], weights)
    return op, inputs, weights, op.activation.reference(plain + inputs[1])


@pytest.mark.parametrize(("text", "dim"), OPS)
def test_every_variant_adds_a_residual_to_a_part_and_to_nothing_else(
    text: str, dim: Any, gpu: OpenClDevice
) -> None:
    op, inputs, weights, expected = case(text)
    _, part = split(op, dim, 0.5, align=gpu.soc.gpu.vector_width)
    for variant in some(registry.variants(op.restrict(part), "gpu", gpu.soc, include_unfit=True)):
        _, around = run_gpu(variant, op, part, inputs, weights, gpu, adding=True)
        assert_close(variant, op, cut(around, part), cut(expected, part))
        for rest in Region.whole(op.output).minus(part):
            assert (cut(around, rest) == 7).all(), f"{variant.name} wrote outside {part}"


@pytest.mark.parametrize("text", [OPS[0][0], OPS[3][0]])
def test_variants_for_real_gpus_add_in_each_of_their_forms(
    text: str, first_gpu: OpenClDevice
) -> None:
    op, inputs, weights, expected = case(text)
    found: list[Any] = registry.variants(op, "gpu", first_gpu.soc)
    for variant in some(found):
        choices = variant.choices(op, first_gpu.soc)
        forms = {(c.get("splits", 1) > 1, c.get("teams", 1) > 1): c for c in choices}
        for choice in some(forms.values()):
            whole = Region.whole(op.output)
            got, _ = run_gpu(variant, op, whole, inputs, weights, first_gpu, choice, adding=True)
            assert_close(variant, op, got, expected)


def residual(images: int = 1) -> ModelBuilder:
    """Adds to a block's input, to a projection and of depthwise products, on to two outputs."""
    b = ModelBuilder("residual")
    x = b.relu(b.conv(b.input("image", (images, 3, 21, 13)), 20, 3, pad=1))
    x = b.relu(b.add(b.conv(x, 20, 3, pad=1), x))
    y = b.conv(b.relu(b.conv(x, 12, 1, pad=0)), 37, 1, pad=0)
    x = b.leaky_relu(b.add(y, b.conv(x, 37, 1, pad=0)), 0.1)
    x = b.add(x, b.conv(x, 37, 3, pad=1, groups=37))
    b.output(x)
    b.output(b.conv(x, 5, 3, pad=1, stride=2))
    return b


@pytest.fixture(scope="module")
def network() -> Network:
    return converted(residual())


FUSED = {"conv2 + add1", "conv5 + add2", "conv6 + add3"}


@pytest.mark.parametrize(
    ("images", "dim", "ratio"), [(1, "H", 1.0), (1, "H", 0.4), (3, "N", 0.5), (2, "H", 0.5)]
)
def test_a_network_with_residuals_is_what_onnx_runtime_computes(
    images: int, dim: str, ratio: float, first_soc: Soc
) -> None:
    proto, soc = residual(images).build(), first_soc
    network = converted(proto, "residual")
    x = np.random.default_rng(3).random((images, 3, 21, 13), np.float32)
    plan = make_plan(network, soc, [(len(network.layers), dim, ratio)], "missing")
    with apart():
        plain = Engine(network, plan, here(soc))
    with plain, Engine(network, plan, here(soc)) as engine:
        assert set(engine.executable.fused) == FUSED
        assert not plain.executable.fused
        assert not engine.fallbacks
        labels = {span.label for span in engine.profile(1) if span.kind == "kernel"}
        assert labels >= FUSED
        assert not labels & {"conv2", "add1"}
        outputs, unfused = engine({"image": x}), plain({"image": x})
        again = engine({"image": x})
    for name, expected in by_onnx_runtime(proto, {"image": x}).items():
        assert max_rel_err(outputs[name], expected) <= 1e-4
        assert max_rel_err(unfused[name], expected) <= 1e-4
        np.testing.assert_array_equal(outputs[name], again[name])


@pytest.mark.parametrize("storage", [IMAGE, IMAGE_HALF], ids=str)
def test_residuals_lie_in_images_too(storage: Storage, first_soc: Soc, network: Network) -> None:
    plan = make_plan(network, first_soc, [(len(network.layers), "H", 0.6)], "missing")
    (chain,) = plan.chains
    variants = {
        layer.name: {**defaults(layer, first_soc), "gpu": gpu_variant(layer, storage, first_soc)}
        for layer in network.layers
    }
    x = np.random.default_rng(3).random((1, 3, 21, 13), np.float32)
    with Engine(network, plan, here(first_soc)) as engine:
        expected = engine({"image": x})
    plan = replace(plan, chains=(replace(chain, variants=variants),))
    with Engine(network, plan, here(first_soc)) as engine:
        assert set(engine.executable.fused) == FUSED
        assert set(engine.storages) == {storage}
        outputs = engine({"image": x})
    for name, value in expected.items():
        assert max_rel_err(outputs[name], value) <= (2e-2 if storage == IMAGE_HALF else 1e-4)


def fused(
    build: Callable[[ModelBuilder, str], str], names: dict[str, str] | None = None, soc: Soc = SOC
) -> int:
    """How many adds are fused of what is built on an image of 16 channels."""
    b = ModelBuilder("test")
    b.output(build(b, b.input("image", (1, 16, 8, 8))))
    network = converted(b)
    outputs = {holder for holder, _ in network.outputs.values()}
    _, shard = chain_cut(network.layers, outputs, "H", 1.0, block=4)
    variants = {part.layer.name: "gpu_direct" for part in shard.parts} | (names or {})
    return sum(work.add is not None for work in works(shard, outputs, variants, soc))


def test_only_what_nobody_else_reads_is_fused() -> None:
    assert fused(lambda b, x: b.add(x, b.conv(x, 16, 3, pad=1))) == 1

    def read_twice(b: ModelBuilder, x: str) -> str:
        y = b.conv(x, 16, 3, pad=1)
        return b.concat([b.add(x, y), y])

    def an_output(b: ModelBuilder, x: str) -> str:
        y = b.conv(x, 16, 3, pad=1)
        b.output(y)
        return b.add(x, y)

    def added_to_itself(b: ModelBuilder, x: str) -> str:
        y = b.conv(x, 16, 3, pad=1)
        return b.add(y, y)

    def computed_before_the_other(b: ModelBuilder, x: str) -> str:
        y = b.conv(x, 16, 3, pad=1)
        return b.add(y, b.max_pool(x, 1, 1))

    for build in (read_twice, an_output, added_to_itself, computed_before_the_other):
        assert fused(build) == 0, build.__name__


def test_only_sums_of_plain_convolutions_and_their_like_are_fused() -> None:
    assert fused(lambda b, x: b.add(x, b.relu(b.conv(x, 16, 3, pad=1)))) == 0
    assert fused(lambda b, x: b.mul(x, b.conv(x, 16, 3, pad=1))) == 0
    assert fused(lambda b, x: b.add(b.global_average_pool(x), b.conv(x, 16, 3, pad=1))) == 0
    assert fused(lambda b, x: b.add(x, b.max_pool(x, 1, 1))) == 0
    winograd = {"conv1": "gpu_winograd"}
    on_a_cpu = soc_with(type="cpu")
    assert fused(lambda b, x: b.add(x, b.conv(x, 16, 3, pad=1)), winograd) == 1
    assert fused(lambda b, x: b.add(x, b.conv(x, 16, 3, pad=1)), winograd, on_a_cpu) == 0
    in_images = {"add1": "gpu_direct_image"}
    assert fused(lambda b, x: b.add(x, b.conv(x, 16, 3, pad=1)), in_images) == 0


def test_what_lies_between_may_read_the_residual(first_soc: Soc) -> None:
    """The add is computed before its turn, and must not give back what others still read."""
    b = ModelBuilder("between")
    x = b.relu(b.conv(b.input("image", (1, 3, 9, 9)), 16, 3, pad=1))
    y = b.conv(x, 16, 3, pad=1)
    pooled = b.max_pool(x, 3, 3)
    b.output(b.conv(b.relu(b.add(x, y)), 7, 1, pad=0))
    b.output(b.relu(b.conv(pooled, 7, 1, pad=0)))
    network = converted(b)
    kinds = [layer.op.kind for layer in network.layers]
    assert kinds.index("pooling") < kinds.index("eltwise")
    plan = make_plan(network, first_soc, [(len(network.layers), "H", 1.0)])
    image = np.random.default_rng(3).random((1, 3, 9, 9), np.float32)
    with Engine(network, plan, here(first_soc)) as engine:
        assert set(engine.executable.fused) == {"conv2 + add1"}
        outputs = engine({"image": image})
    with apart(), Engine(network, plan, here(first_soc)) as engine:
        for name, value in engine({"image": image}).items():
            assert max_rel_err(outputs[name], value) <= 1e-6


def test_a_fused_kernel_that_fails_is_replaced_by_two(
    first_soc: Soc, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '#ifdef ADDED\n#error no\n#endif\n#include "conv2d/gpu_direct.cl"\n'
    spoilt: Any = Failing(source(tmp_path, text))
    with_variants(monkeypatch, spoilt)
    plan = make_plan(network, first_soc, [(len(network.layers), "H", 1.0)], "missing")
    x = np.random.default_rng(3).random((1, 3, 21, 13), np.float32)
    with Engine(network, plan, here(first_soc)) as engine:
        expected = engine({"image": x})
    (chain,) = plan.chains
    variants = {**chain.variants, "conv2": {"gpu": spoilt.name}}
    plan = replace(plan, chains=(replace(chain, variants=variants),))
    with pytest.warns(CodlWarning, match=r"'conv2 \+ add1' runs in two kernels and not in one of"):
        engine = Engine(network, plan, here(first_soc))
    with engine:
        assert set(engine.executable.fused) == FUSED - {"conv2 + add1"}
        outputs = engine({"image": x})
    for name, value in expected.items():
        assert max_rel_err(outputs[name], value) <= 1e-5
    assert engine.storages == (BLOCKED,)
