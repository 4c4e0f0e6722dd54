"""Element-wise ops and activations of every variant, over values and not shapes alone.

Zeros of either sign, denormals, infinities, what is not a number, and what overflows: each beside
NumPy's float64, in vectors and in what is left over behind them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.kernel_runs import run_cpu, run_gpu
from support.some import some

from codl.ir import Array, Region, parse
from codl.ir.ops.base import Op
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

NUMBERS = np.array(
    [0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 103, -103, 1, -1, 0.3, -0.3, 7.5, -2.5, 1e4, -20],
    np.float32,
)
VALUES = np.append(NUMBERS, np.array([np.nan, np.inf, -np.inf], np.float32))
#: ncnn's have a number where none goes in. A plan's first results are checked: what a model makes
#: of numbers is seen there.
HIDDEN_ON_CPU = ("clip", "sigmoid", "tanh", "hard_sigmoid")
#: ncnn squares or multiplies before it takes a limit.
OVERFLOWING_ON_CPU = ("gelu", "gelu_tanh", "silu")
#: OpenVINO takes the least numbers for 0, and a number rather than none; so `VALUES` without both.
OF_OPENVINO = VALUES[(np.abs(VALUES) > 1e-37) | (VALUES == 0)]
ACTIVATIONS = (
    "relu", "leaky_relu:0.1", "clip:-1:1", "sigmoid", "tanh", "hard_sigmoid:0.2:0.5", "hard_swish",
    "gelu", "gelu_tanh", "silu", "elu:1.0", "erf",
)  # fmt: skip
SHAPES = ("1x16x5x5", "1x3x5x7")


def operands(op: Op, values: NDArray[np.float32]) -> list[Array]:
    """All values beside one another, in another order in each input."""
    dice = np.random.default_rng(0)
    repeated = (np.resize(values, shape.elements) for shape in op.inputs)
    return [dice.permutation(v).reshape(s) for v, s in zip(repeated, op.inputs, strict=True)]


def assert_alike(got: Array, op: Op, inputs: list[Array], label: str) -> None:
    with np.errstate(all="ignore"):
        exact = op.reference([x.astype(np.float64) for x in inputs], {})
        expected = exact.astype(np.float32)
    for kind in (np.isnan, np.isposinf, np.isneginf):
        different = kind(got) != kind(expected)
        of = [float(x[different][0]) for x in inputs] if different.any() else []
        assert not different.any(), f"{label}: {got[different][0]} of {of}"
    numbers = np.isfinite(expected)
    np.testing.assert_allclose(got[numbers], expected[numbers], 1e-4, 1e-6, err_msg=label)


def check_variants(op: Op, values: NDArray[np.float32], gpu: OpenClDevice) -> None:
    """Each variant against float64; the CPU's over `values`, the GPU's over all."""
    whole = Region.whole(op.output)
    for processor in ("cpu", "gpu"):
        variants: Any = registry.variants(op, processor, gpu.soc)  # type: ignore[arg-type]
        for variant in some(variants):
            is_openvino = variant.backend == "openvino"
            own = values[np.isin(values, OF_OPENVINO)] if is_openvino else values
            inputs = operands(op, own if processor == "cpu" else VALUES)
            if processor == "cpu":
                got = run_cpu(variant, op, whole, inputs, {}, gpu.soc)
            else:
                got, _ = run_gpu(variant, op, whole, inputs, {}, gpu)
            assert_alike(got, op, inputs, variant.name)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["add", "sub", "mul", "div", "max", "min", "prelu", "pow"])
def test_two_operands(mode: str, shape: str, gpu: OpenClDevice) -> None:
    check_variants(parse(f"eltwise in={shape},{shape} mode={mode}"), VALUES, gpu)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str, shape: str, gpu: OpenClDevice) -> None:
    op = parse(f"eltwise in={shape} mode=identity act={activation}")
    values, kind = VALUES, op.activation.kind
    if kind in HIDDEN_ON_CPU:
        values = VALUES[~np.isnan(VALUES)]
    if kind in OVERFLOWING_ON_CPU:
        values = VALUES[~(np.abs(VALUES) > 1e37)]
    check_variants(op, values, gpu)
