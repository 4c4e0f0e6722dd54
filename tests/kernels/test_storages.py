"""Networks whose tensors lie on the GPU in images, as float16, or both, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.devices import here
from support.kernel_runs import Case, enough, operands, reference, run_gpu
from support.plans import branching_case, defaults, gpu_variant
from support.some import some

from codl.engine.engine import Engine
from codl.errors import DeviceError, UnknownNameError, UnsupportedError
from codl.ir import Network, Region, Shape, parse
from codl.ir.plan import Chain, Plan
from codl.ir.records.soc import Soc
from codl.ir.types import (
    BLOCKED,
    BLOCKED_HALF,
    IMAGE,
    IMAGE_HALF,
    PLANAR,
    PRECISIONS,
    Storage,
)
from codl.kernels import registry
from codl.kernels.tiling import image_refusal
from codl.lower import pieces
from codl.machine import placement
from codl.machine.placement import ProbedDevice
from codl.measure.closeness import max_rel_err
from codl.measure.runner import Bench, Prepared
from codl.measure.tasks import SharingTask, make_tasks
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session

HALVES = (BLOCKED_HALF, IMAGE_HALF)


def make_plan(network: Network, storages: Sequence[Storage], soc: Soc) -> Plan:
    """Chains of two layers cut in the middle; the GPU's storages in turns."""
    layers, chains = list(network.layers), []
    for first in range(0, len(layers), 2):
        pair = layers[first : first + 2]
        variants = {}
        for index, layer in enumerate(pair, first):
            storage = storages[index % len(storages)]
            cpu = defaults(layer, soc)["cpu"]
            variants[layer.name] = {"cpu": cpu, "gpu": gpu_variant(layer, storage, soc)}
        able = all("H" in layer.op.dims and layer.op.output.h > 1 for layer in pair)
        names = tuple(layer.name for layer in pair)
        chains.append(Chain(names, "H", 0.6 if able else 1.0, variants))
    return Plan(
        network.name, network.digest, soc.name, "test", "none", "missing", None, tuple(chains)
    )


@pytest.mark.parametrize(
    "storages",
    [(BLOCKED_HALF,), (IMAGE,), (IMAGE_HALF,), (BLOCKED, IMAGE, IMAGE_HALF, BLOCKED_HALF, IMAGE)],
    ids=lambda storages: "-".join(map(str, storages)),
)
def test_a_network_in_any_storage(storages: Sequence[Storage], soc: Soc) -> None:
    network, x, expected = branching_case()
    halves = any(storage.element == "float16" for storage in storages)
    with Engine(network, make_plan(network, storages, soc), here(soc)) as engine:
        outputs = engine({"image": x})
        assert set(engine.storages) - {PLANAR} == set(storages)
        assert engine.precision["stored"] == ("float16" if halves else "float32")
        assert not engine.fallbacks
    for name, own in expected.items():
        assert max_rel_err(outputs[name], own) <= (2e-2 if halves else 1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=1x6x13x11 oc=10 kernel=3x3 pad=1 act=relu",
        "conv2d in=1x33x9x9 oc=37 kernel=1x1",
        "conv2d in=1x16x10x10 oc=16 kernel=3x3 stride=2 pad=1 groups=16",
    ],
)
def test_choices_over_images(text: str, gpu: OpenClDevice) -> None:
    case = Case.of(parse(text), seed=1)
    for variant in some(registry.variants(case.op, "gpu", gpu.soc, include_unfit=True)):
        assert not isinstance(variant, type)
        if variant.storage == IMAGE:  # type: ignore[attr-defined]
            for choice in enough(variant.choices(case.op, gpu.soc)):  # type: ignore[attr-defined]
                case.on_gpu(variant, gpu, choice=choice)


def of_gpu(soc: Soc, **changes: Any) -> Soc:
    return replace(soc, gpu=replace(soc.gpu, **changes))


def test_a_soc_says_which_variants_it_has(first_soc: Soc) -> None:
    op = parse("pooling in=1x8x8x8 kernel=2")

    # Of what a device has, detection takes whatever is fastest there.
    plain = of_gpu(first_soc, memory_types=("buffer",), element="float32")

    def names(**changes: Any) -> list[str]:
        return [v.name for v in registry.variants(op, "gpu", of_gpu(plain, **changes))]

    both = ("buffer", "image2d")
    assert not any("image" in name or "fp16" in name for name in names())
    assert any(name.endswith("_image") for name in names(memory_types=both))
    assert all("_image" in name for name in names(memory_types=("image2d",)))
    assert all(name.endswith("_fp16") for name in names(memory_types=both, element="float16"))
    narrow = of_gpu(plain, memory_types=("image2d",), max_image_width=8)
    assert [v.name for v in registry.variants(op, "gpu", narrow)] == ["gpu_direct"]
    reshape = parse("reshape in=1x8x8x8 to=1x512x1x1")
    assert registry.variants(reshape, "gpu", of_gpu(plain, memory_types=("image2d",)))


def test_a_precision_says_which_variants_a_model_has(first_soc: Soc) -> None:
    op = parse("conv2d in=1x32x8x8 oc=32 kernel=1x1")
    soc = of_gpu(first_soc, half=True, memory_types=("buffer", "image2d"))

    def met(precision: str | None) -> set[tuple[str, str]]:
        taken: list[Any] = registry.variants(op, "gpu", soc.at(precision))
        return {(variant.storage.element, variant.arithmetic) for variant in taken}

    assert met(None) == met("float32") == {("float32", "float32")}
    assert met("half_storage") == {("float16", "float32")}
    assert met("half") == {("float16", "float32"), ("float16", "float16")}
    assert [soc.at(name).gpu.precision for name in PRECISIONS] == list(PRECISIONS)
    assert soc.at("half").is_as_in(soc.to_dict()), "one dataset may hold rows of all"
    for half in (False, None):
        with pytest.raises(UnsupportedError, match="cl_khr_fp16"):
            of_gpu(soc, half=half).at("half")
    with pytest.raises(UnknownNameError, match="half_storage"):
        soc.at("fp16")


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=1x512x6x5 oc=16 kernel=3x3 pad=1",
        "conv2d in=1x1024x5x3 oc=16 kernel=1x1",
        "conv2d in=1x3x24x20 oc=16 kernel=7x7 stride=2 pad=3",
    ],
)
def test_long_sums_of_halves_are_of_floats(text: str, first_gpu: OpenClDevice) -> None:
    """A sum of n halves alone is off by about sqrt(n / 2) roundings of 2^-11: 1e-2 of its size."""
    if not first_gpu.soc.gpu.half:
        pytest.skip("the device does not compute in half")
    op = parse(text)
    inputs, weights = operands(op)
    inputs = [x.astype(np.float16).astype(np.float32) for x in inputs]
    rounded = {k: v if k == "bias" else v.astype(np.float16) for k, v in weights.items()}
    expected = reference(op, inputs, rounded)
    found: list[Any] = registry.variants(op, "gpu", first_gpu.soc, include_unfit=True)
    halves = [variant for variant in found if variant.arithmetic == "float16"]
    for variant in some(halves):
        _, got = run_gpu(variant, op, Region.whole(op.output), inputs, weights, first_gpu)
        error = np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))
        assert 1e-4 < error < 2e-3, f"{variant.name}: {error:.2g}"


def test_small_weights_are_not_lost_in_halves(first_gpu: OpenClDevice) -> None:
    """Those of trained networks are some hundredths and thousandths; Winograd divides them."""
    op = parse("conv2d in=1x16x12x12 oc=16 kernel=3x3 pad=1")
    inputs, weights = operands(op)
    weights = {"weight": np.float32(1e-3) * weights["weight"], "bias": 0 * weights["bias"]}
    case = Case(op, inputs, weights, reference(op, inputs, weights))
    for name in ("gpu_winograd_fp16", "gpu_winograd_gemm_fp16"):
        variant: Any = registry.find(op, name)
        largest = next(c for c in variant.choices(op, first_gpu.soc) if c["tile"] == 6)
        case.on_gpu(variant, first_gpu, choice=largest)


def test_indices_above_2048_are_floats_beside_halves(gpu: OpenClDevice) -> None:
    op = parse("gather in=5000x3,4 axis=0")
    inputs, weights = operands(op)
    inputs[1] = np.linspace(2049, 4095, inputs[1].size, dtype=np.float32)
    inputs[1] = np.rint(inputs[1]).reshape(op.inputs[1])
    case = Case(op, inputs, weights, reference(op, inputs, weights))
    for variant in some(registry.variants(op, "gpu", of_gpu(gpu.soc, element="float16"))):
        case.on_gpu(variant, gpu)


def test_an_image_too_large_is_refused_with_its_size(first_soc: Soc) -> None:
    small = of_gpu(first_soc, max_image_width=64, max_image_height=64)
    fitting, large = (parse(f"pooling in=1x8x{n}x{n} kernel=2") for n in (8, 80))
    pooling = registry.find(fitting, "gpu_direct_image")
    assert pooling.refusal(fitting, small) is None
    assert "at most 64x64 texels, got 160x80" in (pooling.refusal(large, small) or "")
    none = of_gpu(first_soc, max_image_width=0)
    assert "max_image_width=0" in (pooling.refusal(fitting, none) or "")
    convolution = parse("conv2d in=1x8x2x2 oc=64 kernel=3 pad=1")
    winograd = registry.find(convolution, "gpu_winograd_image")
    assert "for the sums" in (winograd.refusal(convolution, small) or "")
    shape, most = Shape(1, 8, 80, 80), first_soc.gpu.max_image_width
    assert image_refusal(first_soc, [shape]) is None
    assert "got 160x80" in (image_refusal(small, [shape]) or "")
    copy = pieces.relayout(Shape(1, 4, 1, most + 1), PLANAR, IMAGE, first_soc)
    with pytest.raises(DeviceError, match=f"{most + 1}x1 float32 texels is wanted, .* {most}x"):
        Session(copy, here(first_soc).device)


def test_detection_takes_memory_and_element_by_name(devices: tuple[ProbedDevice, ...]) -> None:
    soc = placement.describe("test", devices[0], memory_types=("image2d",), element="float16")
    assert soc.gpu.memory_types == ("image2d",)
    assert soc.gpu.max_image_width > 0
    assert registry.storages(soc) == (IMAGE_HALF,)
    without = replace(devices[0], memory_types=("buffer",))
    with pytest.raises(DeviceError, match="has no image2d"):
        placement.describe("test", without, memory_types=("image2d",))
    with pytest.raises(UnknownNameError, match="float32"):
        placement.describe("test", devices[0], element="float31")


def test_sharing_is_measured_for_every_storage(soc: Soc) -> None:
    both = of_gpu(soc, memory_types=("buffer", "image2d"), element="float16")
    tasks = [t for t in make_tasks([parse("pooling in=1x8x6x6 kernel=2")], both)
             if isinstance(t, SharingTask) and t.shape == Shape(1, 8, 6, 6)]  # fmt: skip
    ways = {(task.direction, str(task.storage)) for task in tasks}
    assert {way for way in ways if not way[0].endswith("_openvino")} == {
        *((way, storage) for way in ("to_gpu", "to_cpu") for storage in map(str, HALVES)),
        ("load", "blocked float32"),
        ("store", "blocked float32"),
        ("relayout", "image float16"),
    }
    bench = Bench(here(both).device, "run1")
    for task in tasks:
        prepared = bench.prepare(task)
        assert isinstance(prepared, Prepared)
        prepared.timed.visit()
        row = prepared.row()
        assert row.key == task.key
        assert row.status == "ok" or task.direction in ("load", "store")
