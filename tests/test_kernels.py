"""Every kernel variant on every device: halves of random splits equal the whole, by a reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import batched, ops

from codl.device.cpu import CpuLayer, Home
from codl.device.half import CpuHalf
from codl.device.memory import GpuTensor, SharedBuffer
from codl.device.opencl import OpenClDevice
from codl.kernels import registry
from codl.kernels.base import Storage, TensorArg, Variant
from codl.ops import Array, Op, Region, Shape, Span, parse, split, to_text
from codl.soc import Soc

FEW = settings(
    max_examples=24,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
RATIOS = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
#: Ops of one image and of several.
BATCHES = st.one_of(ops(), st.builds(batched, ops(), st.integers(2, 4)))
STORAGES = [Storage(layout, element) for layout in ("blocked", "planar", "image")
            for element in ("float32", "float16")]  # fmt: skip


def tolerance(variant: Variant) -> float:
    if variant.name.endswith("_fp16"):
        return 2e-2
    return 1e-3 if "winograd" in variant.name else 1e-4


def operands(op: Op, seed: int = 0) -> tuple[list[Array], dict[str, Array]]:
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal(shape, np.float32) for shape in op.inputs]
    weights = {n: random.standard_normal(s, np.float32) for n, s in op.weight_shapes.items()}
    return inputs, weights


def reference(op: Op, inputs: Sequence[Array], weights: dict[str, Array]) -> NDArray[np.float64]:
    return op.reference([x.astype(np.float64) for x in inputs], weights)


def cut(array: Array, region: Region) -> Array:
    return array[region.slices]


def run_cpu(variant: Any, op: Op, part: Region, inputs: Sequence[Array], weights: Any,
            soc: Soc) -> Array:  # fmt: skip
    """Compute a region of an op's output in place, among arrays of the whole tensors."""
    names = [f"x{i}" for i in range(len(inputs))]
    homes = {
        name: Home(x, Region.whole(shape), op.needs(part, i))
        for i, (name, x, shape) in enumerate(zip(names, inputs, op.inputs, strict=True))
    }
    reads = tuple((name, home.used) for name, home in homes.items())
    own = op.restrict_weights(weights, part)
    layer = CpuLayer("op", op.restrict(part), variant, reads, "y", part, own)
    out = Home.allocate(op.output, Region.whole(op.output)).of(part)
    CpuHalf([layer], homes, {"y": out}, soc).run()
    return out.view()


def run_gpu(variant: Any, op: Op, part: Region, inputs: Sequence[Array], weights: Any,
            gpu: OpenClDevice, choice: Any = None) -> tuple[Array, Array]:  # fmt: skip
    """The same on the GPU; returns the region, and the whole buffer around it."""
    plan, arguments = variant.plan(op.restrict(part), gpu.soc, choice), {}
    for i, (x, shape) in enumerate(zip(inputs, op.inputs, strict=True)):
        argument = TensorArg("input", i)
        tensor = gpu.tensor(shape, Region.whole(shape), plan.storage(argument))
        gpu.upload(tensor, x)
        arguments[argument] = (tensor, op.needs(part, i))
    whole = Region.whole(op.output)
    out = gpu.tensor(op.output, whole, plan.storage(TensorArg("output")))
    canary = np.full(op.output, 7.0, np.float32)
    gpu.upload(out, canary)
    arguments[TensorArg("output")] = (out, part)
    own = op.restrict_weights(weights, part)
    gpu.run(gpu.bind(plan, arguments, weights=own))
    around = download(gpu, out)
    return cut(around, part), around


def download(gpu: OpenClDevice, tensor: GpuTensor) -> Array:
    shared = SharedBuffer(gpu, tensor.shape, tensor.region)
    gpu.run(gpu.transform(tensor, shared.tensor, tensor.region))
    gpu.wait(shared.map(write=False))
    return shared.array.copy()


def assert_close(variant: Variant, op: Op, got: Array, expected: NDArray[np.float64]) -> None:
    largest = max(float(np.abs(expected).max()), 1e-3)
    error = float(np.abs(got - expected).max()) / largest
    assert error <= tolerance(variant), f"{variant.name} of {to_text(op)}: {error:.2g}"


@given(op=BATCHES, dim=st.sampled_from(["H", "OC", "N"]), ratio=RATIOS)
@FEW
def test_halves_on_the_cpu_equal_the_whole(op: Op, dim: Any, ratio: float, first_soc: Soc) -> None:
    soc = first_soc
    inputs, weights = operands(op)
    expected = reference(op, inputs, weights)
    for part in split(op, dim if dim in op.dims else op.dims[0], ratio):
        if part.is_empty:
            continue
        for variant in registry.variants(op.restrict(part), "cpu", soc, every=True):
            got = run_cpu(variant, op, part, inputs, weights, soc)
            assert_close(variant, op.restrict(part), got, cut(expected, part))


@given(op=BATCHES, dim=st.sampled_from(["H", "OC", "N"]), ratio=RATIOS)
@FEW
def test_the_half_on_the_gpu_equals_its_part_of_the_whole(
    op: Op, dim: Any, ratio: float, gpu: OpenClDevice
) -> None:
    inputs, weights = operands(op)
    expected = reference(op, inputs, weights)
    block = gpu.soc.gpu.vector_width
    # The GPU takes the first part of a split.
    _, part = split(op, dim if dim in op.dims else op.dims[0], ratio, align=block)
    if part.is_empty:
        return
    for variant in registry.variants(op.restrict(part), "gpu", gpu.soc, every=True):
        got, around = run_gpu(variant, op, part, inputs, weights, gpu)
        assert_close(variant, op.restrict(part), got, cut(expected, part))
        for rest in Region.whole(op.output).minus(part):
            assert (cut(around, rest) == 7).all(), f"{variant.name} wrote outside {part}"


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=1x3x33x31 oc=32 kernel=3x3 pad=1 act=leaky_relu:0.1",
        "conv2d in=1x64x29x27 oc=96 kernel=3x3 pad=1 act=relu",
        "conv2d in=1x96x13x13 oc=125 kernel=1x1",
        "conv2d in=1x48x30x30 oc=48 kernel=3x3 stride=2 pad=1 groups=48",
        "pooling in=1x64x20x20 kernel=2x2 stride=2",
        "pooling in=1x70x9x9 mode=avg kernel=9x9",
        "fc in=1x40x7x7 oc=130 act=relu",
        "concat in=1x64x13x13,1x125x13x13",
    ],
)
def test_variants_at_sizes_of_networks(text: str, gpu: OpenClDevice) -> None:
    op = parse(text)
    inputs, weights = operands(op, seed=1)
    expected = reference(op, inputs, weights)
    part = Region.whole(op.output)
    found = registry.variants(op, "gpu", gpu.soc, every=True)
    assert found, "every op here has a variant on the GPU"
    for variant in found:
        got, _ = run_gpu(variant, op, part, inputs, weights, gpu)
        assert_close(variant, op, got, expected)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=1x20x14x13 oc=20 kernel=3x3 stride=2 pad=1",
        "conv2d in=1x20x13x14 oc=20 kernel=7x7 pad=3,3,2,2",
        "conv2d in=1x40x13x11 oc=3 kernel=9x9 pad=4 act=relu",
        "conv2d in=1x48x11x13 oc=64 kernel=1x1",
        "pooling in=1x20x13x15 mode=avg kernel=3x3 stride=2 pad=1",
        "fc in=1x40x3x3 oc=100",
        "fc in=11x40x3x3 oc=100",
        "concat in=1x20x9x9,1x7x9x9,1x16x9x9",
    ],
)
def test_choices_compute_the_same(text: str, gpu: OpenClDevice) -> None:
    """Some choices of every variant: all of them would take minutes to compile."""
    op = parse(text)
    inputs, weights = operands(op, seed=2)
    expected, part = reference(op, inputs, weights), Region.whole(op.output)
    for variant in registry.variants(op, "gpu", gpu.soc):
        choices = variant.choices(op, gpu.soc)  # type: ignore[attr-defined]
        for choice in choices[:: max(1, len(choices) // 2)]:
            assert variant.features(op, gpu.soc, choice)  # type: ignore[call-arg]
            got, _ = run_gpu(variant, op, part, inputs, weights, gpu, choice)
            assert_close(variant, op, got, expected)


@given(op=ops(), ratio=RATIOS, data=st.data())
@settings(FEW, max_examples=15)
def test_variants_for_real_gpus_in_any_of_their_choices(
    op: Op, ratio: float, data: st.DataObject, as_gpu: OpenClDevice
) -> None:
    inputs, weights = operands(op)
    expected = reference(op, inputs, weights)
    _, part = split(op, data.draw(st.sampled_from(op.dims)), ratio, align=4)
    if part.is_empty:
        return
    for variant in variants_for_gpus(op.restrict(part), as_gpu.soc):
        choice = data.draw(st.sampled_from(variant.choices(op.restrict(part), as_gpu.soc)))
        got, around = run_gpu(variant, op, part, inputs, weights, as_gpu, choice)
        assert_close(variant, op.restrict(part), got, cut(expected, part))
        for rest in Region.whole(op.output).minus(part):
            assert (cut(around, rest) == 7).all(), f"{variant.name} wrote outside {part}"


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=1x3x33x31 oc=32 kernel=7x7 stride=2 pad=3 act=relu",
        "conv2d in=1x96x15x13 oc=70 kernel=1x1",
        "conv2d in=1x64x14x14 oc=64 kernel=3x3 pad=1 act=leaky_relu:0.1",
        "conv2d in=1x50x17x17 oc=50 kernel=3x3 stride=2 pad=1 groups=50",
        "pooling in=1x70x9x9 mode=avg kernel=9x9",
        "fc in=5x40x3x3 oc=130 act=relu",
        "fc in=1x40x7x7 oc=130 act=relu",
    ],
)
def test_every_choice_for_real_gpus(text: str, first_gpu: OpenClDevice) -> None:
    op = parse(text)
    inputs, weights = operands(op, seed=1)
    expected, part = reference(op, inputs, weights), Region.whole(op.output)
    for variant in variants_for_gpus(op, first_gpu.soc):
        features = []
        for choice in variant.choices(op, first_gpu.soc):
            got, _ = run_gpu(variant, op, part, inputs, weights, first_gpu, choice)
            assert_close(variant, op, got, expected)
            features.append(variant.features(op, first_gpu.soc, choice))
        assert features[0] == variant.features(op, first_gpu.soc)
        assert len({tuple(values) for values in features}) == 1


def variants_for_gpus(op: Op, soc: Soc) -> list[Any]:
    found: list[Any] = registry.variants(op, "gpu", soc, every=True)
    return [variant for variant in found if variant.meant_for == {"gpu"}]


@given(
    channels=st.integers(1, 40),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    data=st.data(),
)
@FEW
def test_transform_moves_a_region_and_nothing_else(
    channels: int, height: int, width: int, data: st.DataObject, gpu: OpenClDevice
) -> None:
    shape = Shape(data.draw(st.sampled_from([1, 1, 3])), channels, height, width)
    region = Region(*(data.draw(spans(size)) for size in shape[:3]))
    values = np.arange(region.shape(shape).elements, dtype=np.float32).reshape(region.shape(shape))
    before = -1.0 - np.arange(shape.elements, dtype=np.float32).reshape(shape) % 1000
    expected = before.copy()
    cut(expected, region)[:] = values % 2000
    for storage in STORAGES:
        tensor = gpu.tensor(shape, Region.whole(shape), storage)
        gpu.upload(tensor, before)
        shared = SharedBuffer(gpu, shape, region)
        gpu.wait(shared.map(write=True))
        shared.array[:] = values % 2000
        shared.unmap()
        gpu.run(gpu.transform(shared.tensor, tensor, region))
        np.testing.assert_array_equal(download(gpu, tensor), expected, str(storage))


@given(channels=st.integers(1, 40), data=st.data())
@FEW
def test_transform_between_any_two_storages(
    channels: int, data: st.DataObject, gpu: OpenClDevice
) -> None:
    shape = Shape(2, channels, 5, 3)
    region = Region(*(data.draw(spans(size)) for size in shape[:3]))
    first, second = (data.draw(st.sampled_from(STORAGES)) for _ in range(2))
    source = gpu.tensor(shape, Region.whole(shape), first)
    target = gpu.tensor(shape, Region.whole(shape), second)
    values = np.arange(shape.elements, dtype=np.float32).reshape(shape)
    gpu.upload(source, values)
    gpu.upload(target, -values)
    gpu.run(gpu.transform(source, target, region))
    expected = -values
    cut(expected, region)[:] = cut(values, region)
    np.testing.assert_array_equal(download(gpu, target), expected, f"{first} to {second}")


def spans(size: int) -> st.SearchStrategy[Span]:
    pairs = st.tuples(st.integers(0, size - 1), st.integers(1, size))
    return pairs.map(lambda p: Span(min(p[0], p[1] - 1), max(p[0] + 1, p[1])))


@given(op=ops())
@settings(max_examples=200, deadline=None)
def test_features_are_the_same_for_every_op_and_finite(op: Op, first_soc: Soc) -> None:
    for processor in ("cpu", "gpu"):
        for variant in registry.variants(op, processor, first_soc):  # type: ignore[arg-type]
            values = variant.features(op, first_soc)
            assert values, f"{variant.name} has no features"
            assert all(np.isfinite(v) and v >= 0 for v in values.values())


def test_every_op_has_a_default_variant_on_both_processors(first_soc: Soc) -> None:
    texts = ("conv2d in=1x8x8x8 oc=8 kernel=3", "pooling in=1x8x8x8 kernel=2", "fc in=1x8x1x1 oc=4")
    for text in texts:
        for processor in ("cpu", "gpu"):
            assert registry.variants(parse(text), processor, first_soc)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=1x19x13x11 oc=34 kernel=7x7 pad=3 act=relu",
        "conv2d in=2x32x17x12 oc=5 kernel=5x5 pad=2 act=tanh",
        "conv2d in=1x3x24x20 oc=18 kernel=9x9 pad=4",
        "conv2d in=1x20x9x14 oc=16 kernel=4x6 pad=1,2,3,0",
        "conv2d in=1x18x8x8 oc=18 kernel=7x4",
    ],
)
def test_large_windows_are_sums_of_small_ones(text: str, first_soc: Soc) -> None:
    """Whole and in parts, among layers that read the same input."""
    op = parse(text)
    variant = registry.find(op, "cpu_winograd")
    inputs, weights = operands(op)
    expected = reference(op, inputs, weights)
    for dim, ratio in (("H", 0.0), ("H", 0.4), ("OC", 0.5)):
        for part in split(op, dim, ratio):  # type: ignore[arg-type]
            own = op.restrict(part) if not part.is_empty else None
            if own is not None and variant.refusal(own, first_soc) is None:
                got = run_cpu(variant, op, part, inputs, weights, first_soc)
                assert_close(variant, own, got, cut(expected, part))


def test_a_refusal_gives_the_rule_and_the_value(first_soc: Soc) -> None:
    op = parse("conv2d in=1x8x8x8 oc=32 kernel=3 stride=2 pad=1")
    winograd = registry.find(op, "cpu_winograd")
    assert "stride=2x2" in (winograd.refusal(op, first_soc) or "")
