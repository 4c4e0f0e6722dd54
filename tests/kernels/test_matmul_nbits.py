"""Products with matrices of 4 and 8 bits, on either side and by every kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.kernel_runs import Case, enough, operands, reference, run_cpu, run_gpu

from codl.errors import CodlError, DeviceError
from codl.ir import Op, Region, parse, split
from codl.ir.executable import GpuOp, Refusal
from codl.ir.network import Layer, Network
from codl.ir.ops.matmul_quantized import packed, unpacked
from codl.kernels import registry
from codl.kernels.base import Variant
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan.build_plan import default_plan
from codl.records.soc import Soc
from codl.runtime.opencl import OpenClDevice

#: Rows of one and of several tiles, columns and depths that fill neither vectors nor blocks.
TEXTS = (
    "matmul_nbits in=1x1x100 matrix=100x37 bits=4 block=16 zero_points=1 act=silu",
    "matmul_nbits in=3x70 matrix=70x50 bits=8 block=32",
    "matmul_nbits in=2x19x130 matrix=130x67 bits=4 block=64 zero_points=1",
    "matmul_nbits in=40x2100 matrix=2100x90 bits=4 block=32",
    "matmul_nbits in=33x1000 matrix=1000x33 bits=8 block=256 zero_points=1 act=gelu",
)


@pytest.mark.parametrize("text", TEXTS)
def test_kernels_of_either_side_equal_the_reference(
    text: str, gpu: OpenClDevice, as_gpu: OpenClDevice
) -> None:
    """Of all rows and columns, and of some."""
    op = parse(text)
    case = Case.of(op)
    parts = [case.whole, *(part for dim in op.dims for part in split(op, dim, 0.4))]
    for variant in registry.variants(op, "cpu", gpu.soc):
        for part in parts:
            case.on_cpu(variant, gpu.soc, part)
    for device in (gpu, as_gpu):
        variants = registry.variants(op, "gpu", device.soc)
        assert variants
        for variant in variants:
            for part in parts:
                case.on_gpu(variant, device, part)
        for variant in of_halves(op, device):
            case.on_gpu(variant, device)
    for variant in registry.variants(op, "gpu", gpu.soc):
        for choice in enough(variant.choices(op, gpu.soc))[1:]:  # type: ignore[attr-defined]
            case.on_gpu(variant, gpu, choice=choice)


@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_of_very_different_elements_are_as_exact_as_floats(
    bits: int, gpu: OpenClDevice
) -> None:
    """Rows become whole numbers block by block, whatever their blocks hold."""
    op = parse(f"matmul_nbits in=1x96 matrix=96x40 bits={bits} block=16")
    inputs, weights = operands(op)
    weights["bias"][:] = 0
    sizes = np.repeat(np.float32([0, 1e-32, 1e-20, 1, 1e10, 1e20]), 16)
    variant = registry.find(op, "gpu_vector")
    whole = Region.whole(op.output)
    for blocks in ([0, 1], [1, 2], [2, 3], [4, 5]):
        kept = np.isin(np.arange(96) // 16, blocks)
        given = [x * (sizes * kept).reshape(x.shape) for x in inputs]
        got, _ = run_gpu(variant, op, whole, given, weights, gpu)
        expected = reference(op, given, weights)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())
    given = [x.copy() for x in inputs]
    given[0].reshape(-1)[3] = np.nan
    got, _ = run_gpu(variant, op, whole, given, weights, gpu)
    assert np.isnan(got).all()


def of_halves(op: Op, device: OpenClDevice) -> list[Variant]:
    """The variants of a SoC with such a device whose tensors are of halves."""
    gpu = replace(device.soc.gpu, element="float16")
    return registry.variants(op, "gpu", replace(device.soc, gpu=gpu))


def test_other_choices_stand_in_where_a_device_refuses_the_only_variant(first_soc: Soc) -> None:
    op = parse("matmul_nbits in=1x64 matrix=64x48 bits=4 block=32")
    layer = Layer("product", op, ("x",), "y", operands(op)[1])
    network = Network("one", (layer,), {"x": op.input}, {"y": ("y", tuple(op.output))})
    plan = default_plan(network, first_soc, "gpu")
    choices = registry.find(op, "gpu_vector").choices(op, first_soc)  # type: ignore[attr-defined]
    refused = []
    for choice in (None, *choices[1:]):
        (step,) = (
            own
            for own in lower(network, plan, first_soc, Tuning(), without=refused).steps
            if isinstance(own, GpuOp)
        )
        assert (step.variant, step.choice) == ("gpu_vector", choice)
        refused.append(Refusal("product", "gpu_vector", choice, "it does not build"))
    with pytest.raises(DeviceError, match="No kernel variant of 'product' works here"):
        lower(network, plan, first_soc, Tuning(), without=refused)


def test_rows_of_8_bits_are_close_where_a_model_lets_them(gpu: OpenClDevice) -> None:
    op = parse("matmul_nbits in=5x256 matrix=256x64 bits=8 block=32 int8=1")
    case = Case.of(op)
    got = run_cpu(registry.find(op, "cpu_ort"), op, case.whole, case.inputs, case.weights, gpu.soc)
    cosine = (got * case.expected).sum() / np.sqrt((got**2).sum() * (case.expected**2).sum())
    assert cosine > 0.9999


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_numbers_are_read_back(bits: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << bits, (3, 21), dtype=np.uint8)
    words = packed(numbers, bits)
    assert words.nbytes == 3 * 4 * -(-21 * bits // 32)
    np.testing.assert_array_equal(unpacked(words, bits)[:, :21], numbers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bits=3 block=32 matrix=64x8", "bits must be 4 or 8, got 3"),
        ("bits=4 block=48 matrix=64x8", "block must be one of 16, 32, 64, 128, 256, got 48"),
        ("bits=4 block=32 matrix=60x8", "matrix must be 64 x columns, got"),
    ],
)
def test_sizes_that_do_not_fit_are_told(text: str, words: str) -> None:
    with pytest.raises(CodlError, match=words):
        parse(f"matmul_nbits in=2x64 {text}")
