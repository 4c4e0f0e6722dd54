"""Convolutions against ONNX Runtime: both shards of any split together are its whole output."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_runs import assert_close, operands, run_cpu, run_gpu, tolerance
from support.onnx_models import model, node
from support.random_ops import convolutions
from support.references import by_onnx_runtime
from support.some import some

from codl.ir import Activation, Array, Op, Weights, parse, split, to_text
from codl.ir.ops.convolution import Conv2d
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

RATIOS = [step / 10 for step in range(11)]


def run_onnxruntime(op: Conv2d, x: Array, weights: Weights) -> Array:
    """A model of one Conv node, on the CPU."""
    window = {"kernel_shape": [*op.kernel], "strides": [*op.stride], "dilations": [*op.dilation]}
    pads = [op.pad.top, op.pad.left, op.pad.bottom, op.pad.right]
    conv = node("Conv", " ".join(["x", *weights]), "y", pads=pads, group=op.groups, **window)
    return by_onnx_runtime(model([conv], {"x": op.input}, ["y"], weights), {"x": x})["y"]


def check_every_split(op: Conv2d, dim: Any, gpu: OpenClDevice) -> None:
    """All ratios; from one to the next, each shard goes on to its next variant."""
    inputs, weights = operands(op)
    expected = run_onnxruntime(op, inputs[0], weights)
    turns = {processor: cycle(range(97)) for processor in ("cpu", "gpu")}
    for ratio in RATIOS:
        got, allowed, names = np.full(op.output, np.nan, np.float32), 0.0, []
        shards = split(op, dim, ratio, align=gpu.soc.gpu.vector_width)
        for processor, part in zip(("cpu", "gpu"), shards, strict=True):
            if part.is_empty:
                continue
            found = registry.variants(op.restrict(part), processor, gpu.soc, include_unfit=True)  # type: ignore[arg-type]
            variant = found[next(turns[processor]) % len(found)]
            if processor == "cpu":
                shard = run_cpu(variant, op, part, inputs, weights, gpu.soc)
            else:
                shard, _ = run_gpu(variant, op, part, inputs, weights, gpu)
            got[part.slices] = shard
            allowed = max(allowed, tolerance(variant))
            names.append(variant.name)
        error = np.abs(got - expected).max() / np.abs(expected).max()
        assert error <= allowed, f"{to_text(op)} {dim} {ratio} {names}: {error:.2g}"


@given(op=convolutions(), dim=st.sampled_from(["H", "OC"]))
@settings(max_examples=4, derandomize=True)
def test_any_split_of_any_convolution(op: Conv2d, dim: Any, gpu: OpenClDevice) -> None:
    check_every_split(replace(op, activation=Activation()), dim if dim in op.dims else "OC", gpu)


@pytest.mark.parametrize("dim", ["H", "OC"])
@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=1x24x23x21 oc=72 kernel=3x3 pad=1",
        "conv2d in=1x40x20x20 oc=64 kernel=1x1",
        "conv2d in=1x3x40x40 oc=32 kernel=7x7 stride=2 pad=3",
        "conv2d in=1x80x21x20 oc=80 kernel=3x3 pad=1 groups=80",
        "conv2d in=1x72x13x12 oc=72 kernel=3x3 pad=1 groups=9",
    ],
)
def test_any_split_of_what_networks_are_made_of(text: str, dim: Any, gpu: OpenClDevice) -> None:
    op = parse(text)
    assert isinstance(op, Conv2d)
    check_every_split(op, dim, gpu)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gpu_gemm_fp16", "conv2d in=1x3x32x32 oc=24 kernel=8x8 stride=8"),
        ("gpu_gemm_fp16", "conv2d in=2x21x9x8 oc=40 kernel=3x3 stride=2 pad=1"),
        ("gpu_gemm_fp16", "conv2d in=1x70x10x9 oc=36 kernel=1x1"),
        ("gpu_winograd_gemm_fp16", "conv2d in=2x24x11x9 oc=20 kernel=3x3 pad=1"),
        ("gpu_depthwise_pixels_fp16", "conv2d in=2x22x9x11 oc=22 kernel=3x3 pad=1 groups=22"),
        ("gpu_rows_fp16", "fc in=3x22x3x2 oc=37"),
    ],
)
def test_any_split_in_halves_on_a_gpu(name: str, text: str, first_gpu: OpenClDevice) -> None:
    """In the choice of the whole op, so that its kernels are compiled once."""
    op = parse(text)
    inputs, weights = operands(op)
    variant: Any = registry.find(op, name)
    choice = variant.choices(op, first_gpu.soc)[0]
    expected = run_onnxruntime(*as_convolution(op, inputs[0], weights))
    for dim, ratio in some(product(op.dims, (0.4, 1.0))):
        _, part = split(op, dim, ratio, align=first_gpu.soc.gpu.vector_width)
        if part.is_empty:
            continue
        got, _ = run_gpu(variant, op, part, inputs, weights, first_gpu, choice)
        assert_close(variant, op.restrict(part), got, expected[part.slices])


def as_convolution(op: Op, x: Array, weights: Weights) -> tuple[Conv2d, Array, Weights]:
    """A fully connected layer as a window that is the whole input."""
    if isinstance(op, Conv2d):
        return op, x, weights
    _, c, h, w = x.shape
    outputs, bias = op.output.c, weights["bias"]
    conv = parse(f"conv2d in={op.inputs[0]} oc={outputs} kernel={h}x{w}")
    assert isinstance(conv, Conv2d)
    return conv, x, {"weight": weights["weight"].reshape(outputs, c, h, w), "bias": bias}
