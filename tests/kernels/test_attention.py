"""Attention in one pass: every variant of either processor against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from support.kernel_runs import assert_close, operands, reference, run_cpu, run_gpu
from support.some import some

from codl.errors import CodlError
from codl.ir import Region, Span, parse, to_text
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

TEXTS = (
    "attention in=1x3x37x24,1x3x41x24,1x3x41x20 scale=0.2",
    "attention in=2x4x21x16,2x2x70x16,2x2x70x37 scale=0.25 act=relu",  # heads share keys
    "attention in=1x2x130x64,1x2x197x64,1x2x197x64 scale=0.125",  # several blocks of keys
    "attention in=1x4x1x80,1x1x77x80,1x1x77x80 scale=0.11",  # one query, one group
    "attention in=2x3x21x5,2x3x29x5,2x3x29x3,1x3x1x29",  # biases of every kind
    "attention in=2x3x21x5,2x3x29x5,2x3x29x3,2x1x21x29 causal=1 first=8",
    "attention in=1x2x150x16,1x2x150x16,1x2x150x16 scale=0.25 causal=1",
    "attention in=1x1x600x8,1x1x40x8,1x1x40x8",  # more queries than a work-item takes
)


@pytest.mark.parametrize("text", TEXTS)
def test_every_variant_equals_the_reference(
    text: str, gpu: OpenClDevice, as_gpu: OpenClDevice
) -> None:
    op = parse(text)
    assert parse(to_text(op)) == op
    inputs, weights = operands(op)
    expected, whole = reference(op, inputs, weights), Region.whole(op.output)
    # A kernel compiles for seconds: the first few texts are for all that depends on the device,
    # and choices are for devices that a variant is fit for.
    for device in (gpu, as_gpu) if text in TEXTS[:3] else (gpu,):
        fit = registry.variants(op, "gpu", device.soc) if text == TEXTS[0] else []
        for variant in registry.variants(op, "gpu", device.soc, include_unfit=True):
            choices = variant.choices(op, device.soc)  # type: ignore[attr-defined]
            for choice in choices if variant in fit else choices[:1]:
                features = variant.features(op, device.soc, choice)  # type: ignore[call-arg]
                assert all(np.isfinite(v) and v >= 0 for v in features.values())
                _, got = run_gpu(variant, op, whole, inputs, weights, device, choice)
                assert_close(variant, op, got, expected)
    variant = registry.find(op, "cpu_ort")
    got = run_cpu(variant, op, whole, inputs, weights, gpu.soc)
    assert_close(variant, op, got, expected)


def test_large_scores_and_hidden_keys_stay_exact(gpu: OpenClDevice) -> None:
    """Scores of hundreds that grow from block to block, and a bias that hides keys."""
    op = parse("attention in=1x1x9x16,1x1x200x16,1x1x200x16,1x1x9x200")
    inputs, weights = operands(op)
    inputs[0] = np.full_like(inputs[0], 5.0)
    inputs[1] = inputs[1] + np.linspace(-9, 9, 200, dtype=np.float32).reshape(1, 1, 200, 1)
    bias = np.zeros_like(inputs[3])
    bias[..., 150:], bias[..., :70] = -np.inf, -1e38
    inputs[3] = bias
    expected, whole = reference(op, inputs, weights), Region.whole(op.output)
    for variant in some(registry.variants(op, "gpu", gpu.soc, include_unfit=True)):
        _, got = run_gpu(variant, op, whole, inputs, weights, gpu)
        assert_close(variant, op, got, expected)


@pytest.mark.parametrize("zeros", [0, 1])
@pytest.mark.parametrize("causal", ["", " causal=1", " causal=1 first=190"])
def test_a_query_that_sees_no_key(causal: str, zeros: int, gpu: OpenClDevice) -> None:
    """NaN, as a softmax has it, or zeros; in several blocks of keys, and beside a causal mask."""
    op = parse(f"attention in=1x2x9x16,1x2x200x16,1x2x200x16,1x2x9x200{causal} zeros={zeros}")
    inputs, weights = operands(op)
    inputs[3][0, 0, 4], inputs[3][0, 1, 2, :5] = -np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected, whole = reference(op, inputs, weights), Region.whole(op.output)
    blind = expected[0, 0, 4]
    assert (blind == 0).all() if zeros else np.isnan(blind).all()
    results = {}
    for variant in registry.variants(op, "cpu", gpu.soc):
        results[variant.name] = run_cpu(variant, op, whole, inputs, weights, gpu.soc)
    for variant in some(registry.variants(op, "gpu", gpu.soc, include_unfit=True)):
        if variant.storage.element == "float32":  # type: ignore[attr-defined]
            results[variant.name], _ = run_gpu(variant, op, whole, inputs, weights, gpu)
    for name, got in results.items():
        np.testing.assert_allclose(got, expected, 1e-4, 1e-4, err_msg=name)


def test_a_causal_part_needs_the_keys_that_it_sees() -> None:
    op = parse("attention in=1x2x100x8,1x2x120x8,1x2x120x8 causal=1 first=20")
    part = Region.whole(op.output)._replace(rows=Span(30, 50))
    own = op.restrict(part)
    assert own == parse("attention in=1x2x20x8,1x2x70x8,1x2x70x8 causal=1 first=50")
    assert own.flops == 2 * sum(50 + i + 1 for i in range(20)) * (2 * 16 + 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attention in=1x3x4x8,1x2x4x8,1x2x4x8", "do not fit together"),
        ("attention in=1x2x4x8,1x2x4x6,1x2x4x8", "do not fit together"),
        ("attention in=1x2x4x8,1x2x5x8,1x2x5x8,1x2x4x1", "must have all keys"),
        ("attention in=1x2x4x8,1x2x5x8,1x2x5x8,1x2x3x5", "must have all keys"),
        ("attention in=2x4x8,2x4x8,2x4x8", "4 axes"),
        ("attention in=1x2x4x8,1x2x5x8,1x2x5x8 causal=1 first=-1", "must not be negative"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(text: str, message: str) -> None:
    with pytest.raises(CodlError, match=message):
        parse(text)
