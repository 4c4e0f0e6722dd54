"""Convolutions against ONNX Runtime: both shards of any split together are its whole output."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from support.kernel_runs import operands, run_cpu, run_gpu, tolerance
from support.random_ops import convolutions

from codl.frontend.graph.onnx_import import session_options
from codl.ir import Activation, Array, Weights, parse, split, to_text
from codl.ir.ops.conv2d import Conv2d
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

RATIOS = [step / 10 for step in range(11)]


def run_onnxruntime(op: Conv2d, x: Array, weights: Weights) -> Array:
    """A model of one Conv node, on the CPU."""
    node = helper.make_node(
        "Conv",
        ["x", *weights],
        ["y"],
        kernel_shape=list(op.kernel),
        strides=list(op.stride),
        dilations=list(op.dilation),
        pads=[op.pad.top, op.pad.left, op.pad.bottom, op.pad.right],
        group=op.groups,
    )
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, tuple(op.input))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, tuple(op.output))],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    content = model.SerializeToString()
    session = ort.InferenceSession(content, session_options(1), ["CPUExecutionProvider"])
    result: Array = session.run(["y"], {"x": x})[0]
    return result


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
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
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
    ],
)
def test_any_split_of_what_networks_are_made_of(text: str, dim: Any, gpu: OpenClDevice) -> None:
    op = parse(text)
    assert isinstance(op, Conv2d)
    check_every_split(op, dim, gpu)
