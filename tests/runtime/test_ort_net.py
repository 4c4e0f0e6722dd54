"""Ops of the CPU side in ONNX Runtime, and shards that mix it with ncnn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.kernel_runs import operands, reference
from support.random_ops import movements, norms, ops, products, reductions, softmaxes

from codl.ir import Array, Op, Region, Span, parse, split, to_text
from codl.ir.ops.eltwise import UNARY
from codl.ir.soc import Soc
from codl.kernels import registry
from codl.measure.op_runner import cpu_work
from codl.runtime.cpu_session import CpuShard, grouped
from codl.runtime.ncnn_net import CpuLayer, Home
from codl.runtime.ort_net import OrtNet

SOME = settings(max_examples=60, deadline=None, derandomize=True)
WHOLE_ONLY = st.one_of(movements(), norms(), products(), reductions(), softmaxes())


def run(op: Op, part: Region, inputs: list[Array], weights: Any, soc: Soc) -> Array:
    """A region of an op's output, computed among arrays of the whole tensors."""
    names = [f"x{i}" for i in range(len(inputs))]
    homes = {
        name: Home(x, Region.whole(shape), op.needs(part, i))
        for i, (name, x, shape) in enumerate(zip(names, inputs, op.inputs, strict=True))
    }
    variant: Any = registry.find(op, "cpu_ort")
    reads = tuple((name, home.used) for name, home in homes.items())
    own = op.restrict_weights(weights, part)
    layer = CpuLayer("op", op.restrict(part), variant, reads, "y", part, own)
    out = Home.allocate(op.output, Region.whole(op.output))
    out.array.fill(7.0)
    net = OrtNet([layer], homes, {"y": out.of(part)}, soc)
    for _ in range(2):  # the second run reuses everything
        net.run()
    for rest in Region.whole(op.output).minus(part):
        assert (out.of(rest).view() == 7).all(), f"{to_text(op)} wrote outside {part}"
    return out.of(part).view()


def check(op: Op, part: Region, soc: Soc, inputs: list[Array] | None = None) -> None:
    own, weights = operands(op)
    inputs = inputs or own
    expected: NDArray[np.float64] = reference(op, inputs, weights)
    expected = expected[part.slices]
    got = run(op, part, inputs, weights, soc)
    largest = max(float(np.abs(expected).max()), 1e-3)
    assert np.abs(got - expected).max() / largest <= 1e-4, to_text(op)


def refused(op: Op, soc: Soc) -> bool:
    return registry.find(op, "cpu_ort").refusal(op, soc) is not None


@given(op=ops(), dim=st.sampled_from(["H", "OC"]), ratio=st.sampled_from([0.0, 0.3, 0.5, 0.8]))
@SOME
def test_halves_equal_the_whole(op: Op, dim: Any, ratio: float, first_soc: Soc) -> None:
    for part in split(op, dim if dim in op.dims else op.dims[0], ratio):
        if not part.is_empty and not refused(op.restrict(part), first_soc):
            check(op, part, first_soc)


@given(op=WHOLE_ONLY)
@SOME
def test_ops_of_any_rank_equal_the_reference(op: Op, first_soc: Soc) -> None:
    inputs, _ = operands(op)
    if getattr(op, "mode", "") in ("log_sum", "prod"):
        inputs = [np.abs(1 + 0.02 * x) for x in inputs]
    check(op, Region.whole(op.output), first_soc, inputs)


@pytest.mark.parametrize("mode", UNARY)
def test_functions_of_every_element(mode: str, first_soc: Soc) -> None:
    given = {"selu": (1.67, 1.05), "celu": (0.7,), "thresholded_relu": (0.4,), "shrink": (0.2, 0.5)}
    values = dict(zip(("alpha", "beta"), given.get(mode, ()), strict=False))
    text = " ".join(f"{key}={value}" for key, value in values.items())
    op = parse(f"eltwise in=1x19x3x4 mode={mode} {text}")
    x = np.random.default_rng(0).uniform(0.1, 0.99, op.input).astype(np.float32)
    x = 1 + x if mode == "acosh" else x
    check(op, Region.whole(op.output), first_soc, [x])


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=3x8x9x7 oc=12 kernel=3 pad=1 act=relu",
        "conv_transpose2d in=2x6x5x4 oc=4 kernel=3 stride=2 size=11x9",
        "pooling in=3x8x9x7 kernel=3 stride=2 mode=avg",
        "fc in=4x8x2x2 oc=5",
        "eltwise in=3x8x9x7,1x8x1x1 mode=mul act=hard_swish",
        "concat in=2x3x4x5,2x7x4x5",
        "reshape in=2x3x4 to=4x6",
        "resize in=2x3x4x5 size=8x9 mode=linear",
        "windows in=2x3x7x5 count=3 kernel=3 stride=2",
    ],
)
def test_batches(text: str, first_soc: Soc) -> None:
    op = parse(text)
    whole = Region.whole(op.output)
    check(op, whole, first_soc)
    if "N" in op.dims:
        check(op, whole._replace(images=Span(1, 2)), first_soc)


def test_onnx_runtime_stands_in_where_ncnn_refuses(first_soc: Soc) -> None:
    def names(text: str) -> list[str]:
        return [variant.name for variant in registry.variants(parse(text), "cpu", first_soc)]

    assert "cpu_ort" not in names("conv2d in=1x8x9x7 oc=12 kernel=3")
    assert names("eltwise in=1x8x9x7,1x8x9x7 mode=mul") == ["cpu_direct"]
    assert names("eltwise in=1x8x9x7 mode=exp") == ["cpu_ort"]
    assert names("softmax in=8x9 axes=1") == ["cpu_ort"]


def test_maxima_are_found_where_they_lie(first_soc: Soc) -> None:
    op = parse("max_indices in=2x3x8x6 kernel=3 stride=2 pad=1")
    check(op, Region.whole(op.output), first_soc)


def test_slices_are_gathered_by_indices_of_any_sign(first_soc: Soc) -> None:
    op = parse("gather in=5x4,6 axis=0")
    data = np.random.default_rng(0).standard_normal(op.inputs[0], np.float32)
    indices = np.array([0, 4, -1, -5, 9, -9], np.float32).reshape(op.inputs[1])
    check(op, Region.whole(op.output), first_soc, [data, indices])


def layer(name: str, text: str, reads: list[str], soc: Soc) -> CpuLayer:
    """A layer in its default variant that reads whole tensors."""
    op = parse(text)
    variant: Any = registry.variants(op, "cpu", soc)[0]
    _, weights = operands(op)
    needs = tuple((x, Region.whole(s)) for x, s in zip(reads, op.inputs, strict=True))
    return CpuLayer(name, op, variant, needs, name, Region.whole(op.output), weights)


def test_a_half_of_both_engines(first_soc: Soc) -> None:
    """Two branches, one of which needs ONNX Runtime: three groups, not five."""
    layers = [
        layer("a", "conv2d in=1x8x6x6 oc=16 kernel=3 pad=1", ["x"], first_soc),
        layer("b", "softmax in=1x16x36 axes=2", ["a"], first_soc),
        layer("c", "conv2d in=1x16x6x6 oc=16 kernel=1", ["a"], first_soc),
        layer("d", "reduce in=1x16x6x6 mode=mean axes=2x3 keepdims=1", ["b2"], first_soc),
        layer("b2", "reshape in=1x16x36 to=1x16x6x6", ["b"], first_soc),
        layer("e", "eltwise in=1x16x6x6,1x16x1x1 mode=prelu", ["c", "d"], first_soc),
    ]
    layers[3], layers[4] = layers[4], layers[3]
    groups = grouped(layers)
    names = [[x.name for x in group.layers] for group in groups]
    assert names == [["a", "c"], ["b"], ["b2"], ["d", "e"]]
    assert [group.is_ort for group in groups] == [False, True, False, True]
    assert all((x.variant.backend == "ort") == g.is_ort for g in groups for x in g.layers)

    values = {"x": np.random.default_rng(1).standard_normal(layers[0].op.input, np.float32)}
    for x in layers:
        given = [
            values[name].reshape(s) for (name, _), s in zip(x.inputs, x.op.inputs, strict=True)
        ]
        values[x.output] = reference(x.op, given, dict(x.weights)).astype(np.float32)
    source = Home(values["x"], Region.whole(layers[0].op.input), Region.whole(layers[0].op.input))
    result = Home.allocate(layers[-1].op.output, Region.whole(layers[-1].op.output))
    shard = CpuShard(layers, {"x": source}, {"e": result}, first_soc)
    for _ in range(2):
        shard.run()
        np.testing.assert_allclose(result.array, values["e"], rtol=1e-5, atol=1e-5)
        result.array.fill(0)


def test_layers_of_one_session_read_parts_of_each_other(first_soc: Soc) -> None:
    first = layer("a", "eltwise in=1x6x8x4,1x6x1x4 mode=add", ["x", "s"], first_soc)
    first = replace(first, variant=registry.find(first.op, "cpu_ort"))
    op, variant = parse("eltwise in=1x2x3x4 mode=exp"), registry.find(first.op, "cpu_ort")
    need = Region(Span(0, 1), Span(1, 3), Span(4, 7))
    second = CpuLayer("b", op, variant, (("a", need),), "b", need, {})  # type: ignore[arg-type]
    random = np.random.default_rng(2)
    x, s = (random.standard_normal(shape, np.float32) for shape in first.op.inputs)
    homes = {
        "x": Home(x, Region.whole(first.op.inputs[0]), Region.whole(first.op.inputs[0])),
        "s": Home(s, Region.whole(first.op.inputs[1]), Region.whole(first.op.inputs[1])),
    }
    result = Home.allocate(op.output, need)
    OrtNet([first, second], homes, {"b": result}, first_soc).run()
    np.testing.assert_allclose(result.array, np.exp(x + s)[:, 1:3, 4:7], rtol=1e-5)


@pytest.mark.parametrize(
    "text", ["softmax in=8x9 axes=1", "norm in=4x6,1x6,1x6 axis=1", "gather in=5x4,6 axis=0"]
)
def test_such_ops_are_measured_like_others(text: str, first_soc: Soc) -> None:
    op = parse(text)
    variant = registry.find(op, "cpu_ort")
    assert all(value >= 0 for value in variant.features(op, first_soc).values())
    cpu_work(op, variant, first_soc)(3)
