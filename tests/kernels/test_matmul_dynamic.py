"""Products of rows that are rounded to 8 bits, and the ranges of rows, on either side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.kernel_runs import Case, enough, operands, reference, run_cpu, run_gpu
from support.some import some

from codl.errors import CodlError
from codl.ir import Region, parse
from codl.ir.ops.matmul_quantized import packed
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

#: Rows of one and of several tiles, columns and depths that fill neither vectors nor words.
TEXTS = (
    "matmul_dynamic in=1x1x101,1x1x2 matrix=101x37",
    "matmul_dynamic in=2x19x130,7x2 matrix=130x67 signed=1",
    "row_range in=3x5x130",
)


@pytest.mark.parametrize("text", TEXTS)
def test_kernels_of_either_side_equal_the_reference(
    text: str, gpu: OpenClDevice, as_gpu: OpenClDevice
) -> None:
    case = Case.of(parse(text))
    for variant in some(registry.variants(case.op, "cpu", gpu.soc)):
        case.on_cpu(variant, gpu.soc, case.whole)
    for device in (gpu, as_gpu):
        for element in ("float32",) if case.op.output.n == 1 else ("float32", "float16"):
            soc = replace(device.soc, gpu=replace(device.soc.gpu, element=element))
            (variant,) = registry.variants(case.op, "gpu", soc)
            case.on_gpu(variant, device)


def test_every_choice_is_right(gpu: OpenClDevice) -> None:
    case = Case.of(parse("matmul_dynamic in=40x1030,7x2 matrix=1030x90"))
    (variant,) = registry.variants(case.op, "gpu", gpu.soc)
    for choice in some(enough(variant.choices(case.op, gpu.soc))):  # type: ignore[attr-defined]
        case.on_gpu(variant, gpu, choice=choice)


def test_numbers_are_rounded_as_onnx_defines(gpu: OpenClDevice, as_gpu: OpenClDevice) -> None:
    """Halves to even ones, 0 to itself, and what is outside the ranges to an end of them."""
    op = parse("matmul_dynamic in=1x8,1x2 matrix=8x8 signed=1")
    x = np.array([[-0.5, 0.5, 1.5, 2.5, 99.0, -99.0, 0.0, 254.0]], np.float32)
    numbers = np.eye(8, dtype=np.uint8) + 128
    weights = {
        "weight": packed(numbers, 8),
        "scales": np.ones(8, np.float32),
        "zero_points": np.full(8, 128, np.uint32),
        "bias": np.zeros(8, np.float32),
    }
    inputs = [x.reshape(1, 8, 1, 1), np.float32([-1, 254]).reshape(1, 2, 1, 1)]
    expected = [0, 0, 2, 2, 99, -1, 0, 254]
    whole = Region.whole(op.output)
    assert reference(op, inputs, weights).reshape(-1).tolist() == expected
    for device in (gpu, as_gpu):
        (variant,) = registry.variants(op, "gpu", device.soc)
        got, _ = run_gpu(variant, op, whole, inputs, weights, device)
        assert got.reshape(-1).tolist() == expected
    cpu = registry.find(op, "cpu_ort")
    assert run_cpu(cpu, op, whole, inputs, weights, gpu.soc).reshape(-1).tolist() == expected


@pytest.mark.parametrize("ranges", [(0.0, 0.0), (2.0, 3.0), (-3.0, -2.0)])
def test_a_range_always_has_0_in_it(ranges: tuple[float, float], gpu: OpenClDevice) -> None:
    op = parse("matmul_dynamic in=3x16,1x2 matrix=16x9")
    inputs, weights = operands(op)
    inputs[1][...] = np.float32(ranges).reshape(1, 2, 1, 1)
    expected = reference(op, inputs, weights)
    (variant,) = registry.variants(op, "gpu", gpu.soc)
    got, _ = run_gpu(variant, op, Region.whole(op.output), inputs, weights, gpu)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("in=3x40,3x3 matrix=40x8", r"ranges, \(..., 2\), got"),
        ("in=3x40,3x2 matrix=39x8", "matrix must be 40 x columns, got"),
        ("in=3x40,3x2 matrix=40x8 trans_b=1", "neither transposed nor scaled"),
    ],
)
def test_sizes_that_do_not_fit_are_told(text: str, words: str) -> None:
    with pytest.raises(CodlError, match=words):
        parse(f"matmul_dynamic {text}")


def test_rows_whose_sums_may_not_fit_are_refused(gpu: OpenClDevice) -> None:
    op = parse("matmul_dynamic in=1x40000,1x2 matrix=40000x8")
    assert registry.variants(op, "gpu", gpu.soc) == []
    assert registry.variants(op, "cpu", gpu.soc)
