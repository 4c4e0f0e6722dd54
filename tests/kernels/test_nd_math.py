"""Products of matrices, softmax, norms, reductions and functions of every element: any rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import helper
from support.engine_runs import same_as_onnx_runtime
from support.kernel_runs import (
    assert_close,
    check_on_cpu,
    check_on_gpu,
    operands,
    reference,
    run_cpu,
    run_gpu,
)
from support.onnx_models import model
from support.random_ops import norms, products, reductions, softmaxes
from support.some import some

from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.transformers import Transformer, bert
from codl.ir import Activation, Region, Shape, Span, parse
from codl.ir.ops.eltwise import UNARY, Eltwise
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.reductions import Norm, Reduce, Softmax
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

SOME = settings(max_examples=8, derandomize=True)


@given(op=reductions())
@SOME
def test_reductions_equal_the_reference(op: Reduce, gpu: OpenClDevice) -> None:
    inputs, _ = operands(op)
    if op.mode in ("log_sum", "prod"):
        # Near 1, so that no product of thousands leaves the range of a float.
        inputs = [np.abs(1 + 0.02 * x) for x in inputs]
    check_on_gpu(op, gpu, inputs)
    check_on_cpu(op, gpu.soc, inputs)


@given(op=softmaxes())
@SOME
def test_softmax_equals_the_reference(op: Softmax, gpu: OpenClDevice) -> None:
    check_on_gpu(op, gpu)
    check_on_cpu(op, gpu.soc)


@given(op=norms())
@SOME
def test_norms_equal_the_reference(op: Norm, gpu: OpenClDevice) -> None:
    check_on_gpu(op, gpu)
    check_on_cpu(op, gpu.soc)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("shape", [(1, 19, 9, 11), (1, 3, 1, 1), (1, 16, 70, 130)])
def test_norms_of_channels(
    shape: tuple[int, ...], center: bool, affine: bool, gpu: OpenClDevice, as_gpu: OpenClDevice
) -> None:
    """Channels of very different means, as after a convolution with a bias."""
    ones = (1, shape[1], 1, 1)
    op = Norm(
        shapes=(shape, ones, ones) if affine else (shape,),
        axis=1,
        groups=shape[1],
        center=center,
        activation=Activation("leaky_relu", 0.5),
    )
    inputs, _ = operands(op)
    inputs[0] = inputs[0] + np.linspace(-30, 30, shape[1], dtype=np.float32).reshape(ones)
    for device in (gpu, as_gpu):
        check_on_gpu(op, device, inputs)


@given(op=products())
@SOME
def test_products_equal_the_reference(op: MatMul, gpu: OpenClDevice) -> None:
    check_on_gpu(op, gpu, choices=1)  # all of them below
    check_on_cpu(op, gpu.soc)


@pytest.mark.parametrize(
    "text",
    [
        "matmul in=2x3x1x70,2x1x83x70 alpha=0.5 trans_b=1",  # a few rows that share a b
        "matmul in=2x3x13x33,2x1x33x70 act=relu",
        "matmul in=1x40 matrix=90x40 trans_b=1",
        "matmul in=13x2100,41x2100 trans_b=1 act=tanh",  # k in several blocks
        "matmul in=2100x37,2100x41 trans_a=1",
    ],
)
def test_products_of_shapes_that_have_ways_of_their_own(text: str, gpu: OpenClDevice) -> None:
    check_on_gpu(parse(text), gpu)


@pytest.mark.parametrize(
    "text",
    [
        "matmul in=2x13x64 matrix=64x20 act=gelu",
        "matmul in=70x260 matrix=76x260 trans_b=1 alpha=0.5",  # k is split among work-groups
    ],
)
@pytest.mark.parametrize("name", ["gpu_gemm", "gpu_gemm_fp16"])
def test_products_with_a_constant_on_a_gpu(name: str, text: str, as_gpu: OpenClDevice) -> None:
    op = parse(text)
    inputs, weights = operands(op)
    expected, whole = reference(op, inputs, weights), Region.whole(op.output)
    variant = registry.find(op, name)
    choices = variant.choices(op, as_gpu.soc)  # type: ignore[attr-defined]
    splits = {choice["splits"]: choice for choice in reversed(choices)}
    for choice in splits.values():
        _, got = run_gpu(variant, op, whole, inputs, weights, as_gpu, choice)
        assert_close(variant, op, got, expected)
    part = whole._replace(channels=Span(3, 9)) if len(op.shapes[0]) == 3 else whole
    _, got = run_gpu(variant, op, part, inputs, weights, as_gpu)
    assert_close(variant, op, got[part.slices], expected[part.slices])


@pytest.mark.parametrize(
    ("shape", "before", "axis", "keepdims", "behind"),
    [
        ((2, 1, 4), (0, 2, 1), 0, 0, None),
        ((2, 1, 4), (2, 0, 1), 1, 0, None),
        ((2, 1, 4), (2, 1, 0), 2, 0, None),
        ((6, 8), None, 0, 1, (1, 0)),
        ((6, 8), None, 1, 1, (1, 0)),
    ],
)
def test_reductions_beside_transposes(
    shape: tuple[int, ...],
    before: tuple[int, ...] | None,
    axis: int,
    keepdims: int,
    behind: tuple[int, ...] | None,
    first_soc: Soc,
) -> None:
    """OpenVINO exchanged the two, and gave results of another shape."""
    nodes = [
        helper.make_node("Transpose" if before else "Abs", ["x"], ["a"], perm=before),
        helper.make_node("ReduceMean", ["a"], ["b"], axes=[axis], keepdims=keepdims),
        helper.make_node("Transpose" if behind else "Abs", ["b"], ["y"], perm=behind),
    ]
    same_as_onnx_runtime(model(nodes, {"x": shape}, ["y"], {}, opset=17), first_soc, as_it_is=True)


@pytest.mark.parametrize("mode", UNARY)
def test_functions_of_every_element(mode: str, gpu: OpenClDevice) -> None:
    """All variants have the functions from one text: not each one has to meet them all."""
    parameters = {
        "selu": (1.67, 1.05),
        "celu": (0.7,),
        "thresholded_relu": (0.4,),
        "shrink": (0.2, 0.5),
    }
    values = dict(zip(("alpha", "beta"), parameters.get(mode, ()), strict=False))
    op = Eltwise(inputs=(Shape(1, 19, 3, 4),), mode=mode, **values)
    x = np.random.default_rng(0).uniform(-0.99, 0.99, op.input).astype(np.float32)
    if mode in ("log", "sqrt", "reciprocal"):
        x = np.abs(x) + np.float32(0.1)
    if mode == "acosh":
        x = 1 + np.abs(x)
    check_on_gpu(op, gpu, [x], variants=None if mode in [*UNARY][::6] else 1)
    check_on_cpu(op, gpu.soc, [x])


@pytest.mark.parametrize("mode", ["softplus", "mish", "selu", "softsign", "exp", "sinh", "atan"])
def test_functions_far_from_zero(mode: str, first_soc: Soc) -> None:
    """Each value is as close as float32 has it, the smallest too."""
    values = {"alpha": 1.67, "beta": 1.05} if mode == "selu" else {}
    op = Eltwise(inputs=(Shape(1, 2, 20, 20),), mode=mode, **values)
    x = np.linspace(-80, 80, op.input.elements, dtype=np.float32).reshape(op.input)
    expected = op.reference([x.astype(np.float64)], {})
    for variant in some(registry.variants(op, "cpu", first_soc)):
        got = run_cpu(variant, op, Region.whole(op.output), [x], {}, first_soc)
        np.testing.assert_allclose(got, expected, 2e-5, 1e-30, err_msg=variant.name)


@pytest.mark.parametrize(
    "text",
    [
        "eltwise in=1x3x5x7 mode=identity act=hard_sigmoid:1:0",
        "eltwise in=1x3x5x7 mode=identity act=hard_sigmoid:0:0.5",
        "conv2d in=1x3x5x7 oc=4 kernel=3x3 pad=1 act=hard_sigmoid:1:0",
        "eltwise in=1x3x5x7 mode=selu alpha=0 beta=2",
        "eltwise in=1x3x5x7 mode=selu alpha=1 beta=0",
        "eltwise in=1x3x5x7 mode=thresholded_relu alpha=0",
        "eltwise in=1x3x5x7 mode=shrink alpha=0 beta=0.5",
        "eltwise in=1x3x5x7 mode=shrink alpha=0.5 beta=0",
        "eltwise in=1x3x5x7 mode=identity act=leaky_relu:0",
        "eltwise in=1x3x5x7 mode=identity act=elu:0",
        "eltwise in=1x3x5x7 mode=identity act=clip:0:0.5",
    ],
)
def test_parameters_of_0_are_no_defaults(text: str, first_soc: Soc) -> None:
    check_on_cpu(parse(text), first_soc)


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "silu", "sigmoid", "tanh"])
def test_large_inputs_give_the_limit_and_no_nan(kind: str, gpu: OpenClDevice) -> None:
    op = Eltwise(inputs=(Shape(1, 1, 1, 10),), mode="identity", activation=Activation(kind))
    x = np.array([-3.4e38, -1e10, -1e4, -100, -20, 20, 100, 1e4, 1e10, 1e30], np.float32)
    variant = registry.find(op, "gpu_direct")
    whole = Region.whole(op.output)
    got = run_gpu(variant, op, whole, [x.reshape(op.input)], {}, gpu)[1].ravel()
    limits = {"sigmoid": (0, 1), "tanh": (-1, 1)}
    low, high = limits.get(kind, (0, x[5:]))
    np.testing.assert_allclose(got[:5], low, atol=1e-6)
    np.testing.assert_allclose(got[5:], high, rtol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "slice in=5x40 starts=1x2 steps=1x1 to=3x37 act=gelu",
        "slice in=5x40 starts=1x2 steps=1x3 to=3x9 act=gelu",
        "pooling in=1x20x7x7 kernel=2x2 stride=2x2 act=gelu",
        "fc in=1x40x1x1 oc=24 act=gelu",
    ],
)
def test_gelu_behind_kernels_with_names_of_their_own(text: str, gpu: OpenClDevice) -> None:
    check_on_gpu(parse(text), gpu, choices=1)


@pytest.mark.parametrize("log", [False, True])
def test_softmax_is_stable(log: bool, gpu: OpenClDevice) -> None:
    x = np.random.default_rng(0).standard_normal((3, 70, 5), np.float32)
    x = x * 10 + np.array([-1e4, 0, 1e4], np.float32).reshape(3, 1, 1)
    for axes in ((1,), (2,)):
        op = Softmax(shapes=(x.shape,), axes=axes, log=log)
        check_on_gpu(op, gpu, [x.reshape(op.input)])


@pytest.fixture(scope="module")
def encoder() -> onnx.ModelProto:
    """A transformer's encoder layer with two heads, as exporters write it."""
    b = ModelBuilder("encoder")
    bert(b, Transformer(layers=1, features=24, heads=2, widened=48), tokens=7)
    return b.build()


def test_an_encoder_layer_over_halves(encoder: onnx.ModelProto, first_soc: Soc) -> None:
    """Every op of a SoC of halves has a variant over them, and that is the one taken."""
    soc = replace(first_soc, gpu=replace(first_soc.gpu, element="float16"))
    network = same_as_onnx_runtime(encoder, soc, atol=2e-2)
    taken: list[Any] = [registry.variants(x.op, "gpu", soc)[0] for x in network.layers]
    assert {variant.storage.element for variant in taken} == {"float16"}


def test_a_mask_beyond_halves_hides_and_is_a_number(first_soc: Soc) -> None:
    """The lowest float32 times 0, as exporters write the mask of what may all be seen."""
    soc = replace(first_soc, gpu=replace(first_soc.gpu, element="float16"))
    nodes = [
        helper.make_node("Relu", ["x"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "lowest"], ["mask"]),
        helper.make_node("Softmax", ["mask"], ["y"], axis=-1),
    ]
    constants = {"lowest": np.finfo(np.float32).min}
    same_as_onnx_runtime(model(nodes, {"x": (3, 40)}, ["y"], constants, opset=17), soc, atol=1e-3)


def test_an_encoder_layer_runs_on_the_gpu_alone(encoder: onnx.ModelProto, soc: Soc) -> None:
    network = same_as_onnx_runtime(encoder, soc)
    kinds = [layer.op.kind for layer in network.layers]
    assert {"norm", "matmul", "attention"} <= set(kinds)
    assert "gelu" in [layer.op.activation.kind for layer in network.layers]
