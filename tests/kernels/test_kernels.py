"""Every kernel variant on every device: shards of random splits equal the whole, by a reference."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_runs import Case, cut, enough, run_copy, variants_for_gpus
from support.nd_ops import CUT
from support.random_ops import batched, ops
from support.some import some

from codl.ir import Dim, Op, Region, Shape, Span, parse, split, to_text
from codl.ir.records.soc import Soc
from codl.ir.types import PLANAR, Storage
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

FEW = settings(max_examples=24, derandomize=True)
RATIOS = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
#: Ops of one image and of several.
BATCHES = st.one_of(ops(), st.builds(batched, ops(), st.integers(2, 4)))
STORAGES = [Storage(layout, element) for layout in ("blocked", "planar", "image")
            for element in ("float32", "float16")]  # fmt: skip


@given(op=BATCHES, dim=st.sampled_from(["H", "OC", "N"]), ratio=RATIOS)
@FEW
def test_halves_on_the_cpu_equal_the_whole(op: Op, dim: Any, ratio: float, first_soc: Soc) -> None:
    soc = first_soc
    case = Case.of(op)
    for part in some(split(op, dim if dim in op.dims else op.dims[0], ratio)):
        if part.is_empty:
            continue
        for variant in some(registry.variants(op.restrict(part), "cpu", soc, include_unfit=True)):
            case.on_cpu(variant, soc, part)


@given(op=BATCHES, dim=st.sampled_from(["H", "OC", "N"]), ratio=RATIOS)
@FEW
def test_the_half_on_the_gpu_equals_its_part_of_the_whole(
    op: Op, dim: Any, ratio: float, gpu: OpenClDevice
) -> None:
    case, block = Case.of(op), gpu.soc.gpu.vector_width
    # The GPU takes the first part of a split.
    _, part = split(op, dim if dim in op.dims else op.dims[0], ratio, align=block)
    if part.is_empty:
        return
    for variant in some(registry.variants(op.restrict(part), "gpu", gpu.soc, include_unfit=True)):
        case.on_gpu(variant, gpu, part)


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
        "conv2d in=1x12x15x13 oc=24 kernel=3x5 pad=1,2,1,2 groups=4",
        "conv2d in=1x24x13x11 oc=24 kernel=3x3 pad=1 groups=3",
        "conv2d in=1x32x9x8 oc=64 kernel=3x3 stride=2 pad=1 groups=8",
        "conv2d in=1x36x15x13 oc=3 kernel=3x3 pad=1",
        "conv2d in=1x16x19x17 oc=24 kernel=3x3 pad=2,1,2,1 dilation=2x1",
        "conv2d in=1x20x12x14 oc=24 kernel=3x5 pad=1,2,1,2",
        "pooling in=1x20x13x17 kernel=3x3 stride=2 pad=0,1,2,0",
        "pooling in=1x20x14x18 mode=avg kernel=3x3 stride=2 pad=1",
        "concat in=1x13x9x8,1x22x9x8,1x7x9x8",
        "eltwise in=1x16x9x21,1x16x1x21 mode=sub",
        "eltwise in=1x16x9x21,1x16x9x1 mode=div",
        "eltwise in=1x6x9x21,1x6x1x1 mode=prelu",
        "pad in=1x3x9x40 before=0x0x1x2 after=0x0x2x1",
        "gather in=2x9x24,4 axis=1",
    ],
)
def test_variants_at_sizes_of_networks(text: str, gpu: OpenClDevice) -> None:
    case = Case.of(parse(text), seed=1)
    found = registry.variants(case.op, "gpu", gpu.soc, include_unfit=True)
    assert found, "every op here has a variant on the GPU"
    for variant in found:
        case.on_gpu(variant, gpu)


@pytest.mark.parametrize(
    "text",
    [
        "conv_transpose2d in=1x3x9x7 oc=5 kernel=1 stride=2 size=15x11 crop=1",
        "conv_transpose2d in=1x8x5x4 oc=12 kernel=1x2 stride=4x3 size=13x8 crop=3x2",
        "conv_transpose2d in=2x6x9x8 oc=6 kernel=2 stride=2x3 size=13x18 crop=5 groups=2",
    ],
)
def test_rows_that_no_tap_of_a_transposed_convolution_falls_on(
    text: str, gpu: OpenClDevice
) -> None:
    case = Case.of(op := parse(text))
    for part in (case.whole, *(part for dim in op.dims for part in split(op, dim, 0.5))):
        for variant in some(
            registry.variants(op.restrict(part), "cpu", gpu.soc, include_unfit=True)
        ):
            case.on_cpu(variant, gpu.soc, part)
    for variant in some(registry.variants(op, "gpu", gpu.soc, include_unfit=True)):
        case.on_gpu(variant, gpu)


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
    """Two choices of every variant beside the default, which all others take here.

    All of them would take minutes to compile.
    """
    op = parse(text)
    case = Case.of(op, seed=2)
    for variant in some(registry.variants(op, "gpu", gpu.soc)):
        choices = variant.choices(op, gpu.soc)  # type: ignore[attr-defined]
        for choice in some(choices[len(choices) // 2 :: max(1, len(choices) // 2)][:2]):
            assert variant.features(op, gpu.soc, choice)  # type: ignore[call-arg]
            case.on_gpu(variant, gpu, choice=choice)


@given(op=ops(), ratio=RATIOS, data=st.data())
@settings(FEW, max_examples=15)
def test_variants_for_real_gpus_in_any_of_their_choices(
    op: Op, ratio: float, data: st.DataObject, as_gpu: OpenClDevice
) -> None:
    case = Case.of(op)
    _, part = split(op, data.draw(st.sampled_from(op.dims)), ratio, align=4)
    if part.is_empty or not (variants := variants_for_gpus(op.restrict(part), as_gpu.soc)):
        return  # some small poolings have none
    for variant in some(variants):
        choice = data.draw(st.sampled_from(variant.choices(op.restrict(part), as_gpu.soc)))
        case.on_gpu(variant, as_gpu, part, choice)


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
def test_choices_for_real_gpus(text: str, first_gpu: OpenClDevice) -> None:
    """With every value of every parameter; see above for any combination.

    Over halves the first choice alone: their kernels are cut alike.
    """
    op = parse(text)
    case = Case.of(op, seed=1)
    for variant in some(variants_for_gpus(op, first_gpu.soc)):
        choices = variant.choices(op, first_gpu.soc)
        features = [variant.features(op, first_gpu.soc, choice) for choice in choices]
        assert features[0] == variant.features(op, first_gpu.soc)
        assert len({tuple(values) for values in features}) == 1
        most = None if variant.storage.element == "float32" else 1
        for choice in enough(choices)[:most]:
            case.on_gpu(variant, first_gpu, choice=choice)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=2x20x9x9 oc=24 kernel=1x1",
        "fc in=3x40x3x3 oc=100",
        "pooling in=2x20x9x9 mode=avg kernel=3x3",
    ],
)
def test_variants_for_any_device_run_as_on_real_gpus(text: str, first_gpu: OpenClDevice) -> None:
    """Work-groups are others there, and images of a batch lie apart."""
    op = parse(text)
    case = Case.of(op, seed=3)
    for variant in some(registry.variants(op, "gpu", first_gpu.soc)):
        case.on_gpu(variant, first_gpu)


@given(
    channels=st.integers(1, 40), height=st.integers(1, 9), width=st.integers(1, 9), data=st.data()
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
    moved = before.copy()
    cut(moved, region)[:] = values % 2000
    for storage in some(STORAGES):
        got = run_copy(gpu, region, (PLANAR, moved), (storage, before))
        np.testing.assert_array_equal(got, expected, str(storage))


@given(channels=st.integers(1, 40), data=st.data())
@FEW
def test_transform_between_any_two_storages(
    channels: int, data: st.DataObject, gpu: OpenClDevice
) -> None:
    shape = Shape(2, channels, 5, 3)
    region = Region(*(data.draw(spans(size)) for size in shape[:3]))
    first, second = (data.draw(st.sampled_from(STORAGES)) for _ in range(2))
    values = np.arange(shape.elements, dtype=np.float32).reshape(shape)
    got = run_copy(gpu, region, (first, values), (second, -values))
    expected = -values
    cut(expected, region)[:] = cut(values, region)
    np.testing.assert_array_equal(got, expected, f"{first} to {second}")


def spans(size: int) -> st.SearchStrategy[Span]:
    pairs = st.tuples(st.integers(0, size - 1), st.integers(1, size))
    return pairs.map(lambda p: Span(min(p[0], p[1] - 1), max(p[0] + 1, p[1])))


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
    case = Case.of(op)
    for dim, ratio in (("H", 0.0), ("H", 0.4), ("OC", 0.5)):
        for part in some(split(op, dim, ratio)):  # type: ignore[arg-type]
            own = op.restrict(part) if not part.is_empty else None
            if own is not None and variant.refusal(own, first_soc) is None:
                case.on_cpu(variant, first_soc, part)


def test_a_refusal_gives_the_rule_and_the_value(first_soc: Soc) -> None:
    op = parse("conv2d in=1x8x8x8 oc=32 kernel=3 stride=2 pad=1")
    winograd = registry.find(op, "cpu_winograd")
    assert "stride=2x2" in (winograd.refusal(op, first_soc) or "")


CASES = [pytest.param(op, dim, id=f"{dim} {to_text(op)}") for op in CUT for dim in op.dims]


def case_of(op: Op) -> Case:
    case = Case.of(op)
    if op.kind == "gather":
        case.inputs[1].flat[:] = np.arange(case.inputs[1].size) % 5 - 2
        case = Case(op, case.inputs, {}, op.reference([x.astype(float) for x in case.inputs], {}))
    return case


@pytest.mark.parametrize(("op", "dim"), CASES)
def test_shards_in_kernels_of_the_gpu(op: Op, dim: Dim, first_gpu: OpenClDevice) -> None:
    case = case_of(op)
    for part in some(split(op, dim, 0.4)):
        for variant in some(registry.variants(op.restrict(part), "gpu", first_gpu.soc)):
            case.on_gpu(variant, first_gpu, part)


@pytest.mark.parametrize(("op", "dim"), CASES)
def test_shards_in_nets_of_the_cpu(op: Op, dim: Dim, first_soc: Soc) -> None:
    case = case_of(op)
    for part in some(split(op, dim, 0.4)):
        for variant in some(registry.variants(op.restrict(part), "cpu", first_soc)):
            case.on_cpu(variant, first_soc, part)


def test_a_box_in_the_middle(first_gpu: OpenClDevice) -> None:
    """Cut through images, channels and rows at once, which lies nowhere in one piece."""
    for op in some(CUT):
        part = Region.whole(op.output)
        if len(op.dims) < 3:
            continue
        part = Region(*(Span(span.size // 3, -(-span.size // 3) + span.size // 3) for span in part))
        case = case_of(op)
        for variant in some(registry.variants(op.restrict(part), "gpu", first_gpu.soc)):
            case.on_gpu(variant, first_gpu, part)


def test_threads_use_a_kind_first_at_the_same_time() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            variants = registry.VariantRegistry()
            variants._modules = registry.VARIANTS._modules
            with ThreadPoolExecutor(8) as threads:
                found = list(threads.map(variants.of_group, ["conv2d"] * 16))
            assert all(each == registry.VARIANTS.of_group("conv2d") for each in found)
    finally:
        sys.setswitchinterval(before)
