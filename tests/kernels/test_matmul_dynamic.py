"""Products of rows that are rounded to 8 bits, and the ranges of rows, on either side."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from typing import Any

import numpy as np
import pytest
from support.kernel_runs import Case, enough, operands, reference, run_cpu, run_gpu
from support.some import some

from codl import kernels
from codl.errors import CodlError
from codl.ir import Region, parse
from codl.ir.ops.matmul_quantized import packed
from codl.kernels import registry
from codl.kernels.source import compile_options, third_version
from codl.runtime.drivers import cl_module, make_kernel
from codl.runtime.launch import BoundKernel
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


#: What a compiler that has a vendor's instruction gives a source: stand-ins of these functions.
VENDORS = {
    "shifts": "",
    "cl_khr_integer_dot_product": "",
    "cl_arm_integer_dot_product_accumulate_int8": """
uint arm_dot_acc(uchar4 a, uchar4 b, uint sum)
{
    const uint4 x = convert_uint4(a) * convert_uint4(b);
    return sum + x.s0 + x.s1 + x.s2 + x.s3;
}""",
    "cl_arm_integer_dot_product_int8": """
uint arm_dot(uchar4 a, uchar4 b)
{
    const uint4 x = convert_uint4(a) * convert_uint4(b);
    return x.s0 + x.s1 + x.s2 + x.s3;
}""",
    "cl_qcom_dot_product8": """
int qcom_udot8_acc(uint a, uint b, int sum)
{
    const int4 x = convert_int4(as_uchar4(a)) * convert_int4(as_uchar4(b));
    return sum + x.s0 + x.s1 + x.s2 + x.s3;
}""",
}
DOTS = """
__kernel void dots(__global const uint *a, __global const uint *b, __global uint *sums)
{
    const int i = get_global_id(0);
    sums[i] = ADD_DOT(sums[i], a[i], b[i]);
}"""


@pytest.mark.parametrize("name", VENDORS)
def test_dots_of_bytes_are_exact_by_any_instruction(name: str, first_gpu: OpenClDevice) -> None:
    """OpenCL's own by the device's, where its OpenCL C is the third; vendors' by stand-ins."""
    is_own = name == "cl_khr_integer_dot_product"
    options = compile_options(third_version(first_gpu.soc.gpu.opencl_version) if is_own else {})
    if is_own and not {options, name} <= {"-cl-std=CL3.0 -DOPENCL_C=300", *extensions(first_gpu)}:
        pytest.skip("the device has no dot products of OpenCL's own")
    begin = "" if is_own or not VENDORS[name] else f"#define {name} 1{VENDORS[name]}\n"
    if is_own:
        begin = "#ifndef __opencl_c_integer_dot_product_input_4x8bit_packed\n#error\n#endif\n"
    text = begin + resources.files(kernels).joinpath("matmul_dynamic/add_dot.cl").read_text()
    dots = make_kernel(first_gpu.programs.build_text(name, text + DOTS, options), "dots")
    random = np.random.default_rng(0)
    a, b = (random.integers(0, 256, (1024, 4), np.uint8) for _ in range(2))
    a[:8] = b[:8] = 255
    sums = random.integers(0, 1 << 32, 1024, np.uint32)
    expected = sums + (a.astype(np.uint32) * b).sum(axis=1, dtype=np.uint32)
    assert np.array_equal(run_kernel(first_gpu, dots, a, b, sums), expected)


def extensions(gpu: OpenClDevice) -> list[str]:
    names: list[str] = gpu.programs._device.extensions.split()
    return names


def run_kernel(gpu: OpenClDevice, kernel: Any, *arrays: np.ndarray) -> np.ndarray:
    """The last array, as a kernel with an item for each of its elements leaves it."""
    context = gpu.programs._context
    cl = cl_module()
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(context, flags, hostbuf=array) for array in arrays]
    left = np.empty_like(arrays[-1])
    BoundKernel("dots", kernel, left.shape, None, buffers).enqueue(gpu.queue)
    cl.enqueue_copy(gpu.queue, left, buffers[-1])
    return left
