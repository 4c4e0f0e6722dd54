"""Ops that move elements, resize and transposed convolution: kernels and lowerings on devices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from support import onnx_models
from support.engine_runs import same_as_onnx_runtime
from support.kernel_runs import check_on_gpu, operands
from support.random_ops import movements, resizes, transposed_convolutions

from codl.ir import Array, Network, Op, parse
from codl.ir.records.soc import Soc
from codl.runtime.opencl import OpenClDevice

#: Of the newest set of operators that is not said otherwise.
model = partial(onnx_models.model, opset=18)
SOME = settings(max_examples=8, derandomize=True)


@given(op=movements())
@SOME
def test_movements_equal_the_reference(op: Op, gpu: OpenClDevice) -> None:
    check_on_gpu(op, gpu)


@pytest.mark.parametrize(
    "text",
    [
        "transpose in=1x64x37x53 perm=0x2x3x1",
        "transpose in=1x37x53x64 perm=0x3x1x2",
        "transpose in=40x7x33 perm=2x1x0",
        "transpose in=3x100x101 perm=1x2x0",
        "transpose in=2x12x50x64 perm=0x2x1x3",
        "transpose in=100x17 perm=1x0 act=relu",
        "transpose in=1x3x200x211 perm=0x2x3x1",
        "transpose in=- perm=-",
        "slice in=100x100 starts=99x0 steps=-1x3 to=100x34",
        "slice in=70001 starts=70000 steps=-2 to=35001",
        "pad in=1x3x30x31 before=0x0x3x4 after=0x0x3x-4",
        "pad in=5x20 before=-2x3 after=1x40 mode=wrap",
        "tile in=1x3x1x40 repeats=2x1x50x1",
        "concat_nd in=7x5x1,7x5x2,7x5x3 axis=2",
    ],
)
def test_movements_at_sizes_of_networks(text: str, gpu: OpenClDevice) -> None:
    check_on_gpu(parse(text), gpu)


@given(data=st.data(), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4))
@SOME
def test_gather_takes_slices_by_any_index(
    data: st.DataObject, sizes: list[int], gpu: OpenClDevice
) -> None:
    axis = data.draw(st.integers(0, len(sizes) - 1))
    shape = data.draw(st.sampled_from([(), (1,), (5,), (2, 3)]))
    size = sizes[axis]
    wanted = data.draw(
        st.lists(st.integers(-size, size - 1), min_size=prod(shape), max_size=prod(shape))
    )
    written = "x".join(map(str, shape)) or "-"
    op = parse(f"gather in={'x'.join(map(str, sizes))},{written} axis={axis}")
    values = operands(op)[0][0]
    check_on_gpu(op, gpu, [values, np.array(wanted, np.float32).reshape(op.inputs[1])])


def one(kind: str, shape: tuple[int, ...], soc: Soc, constants: Mapping[str, Any] | None = None,
        outputs: int = 1, opset: int = 18, **attributes: Any) -> Network:  # fmt: skip
    """One node over `x` and constants, in order; a constant of None leaves an input out."""
    names = [f"y{i}" for i in range(outputs)]
    given = constants or {}
    inputs = ["x", *(k if v is not None else "" for k, v in given.items())]
    node = helper.make_node(kind, inputs, names, **attributes)
    fixed = {k: v for k, v in given.items() if v is not None}
    return same_as_onnx_runtime(model([node], {"x": shape}, names, fixed, opset=opset), soc)


I64 = np.int64


@pytest.mark.parametrize(
    ("kind", "shape", "how"),
    [
        ("Slice", (5, 6, 7), {"constants": {"starts": I64([1, -1]), "ends": I64([1000, -9]),
                                            "axes": I64([0, -1]), "steps": I64([2, -3])}}),
        ("Slice", (5, 6), {"opset": 9, "starts": [1], "ends": [3], "axes": [1]}),
        ("Split", (2, 7), {"outputs": 2, "opset": 13, "axis": -1,
                           "constants": {"split": I64([3, 4])}}),
        ("Split", (2, 6), {"outputs": 3, "opset": 11, "axis": 1}),
        ("Pad", (2, 3, 5), {"opset": 19, "mode": "wrap", "constants": {
            "pads": I64([2, 1]), "value": None, "axes": I64([-1])}}),
        ("Pad", (1, 3, 5, 4), {"opset": 10, "pads": [0, 0, 1, 1, 0, 0, 2, 0], "value": 3.5}),
        ("Pad", (2, 3, 5), {"constants": {"pads": I64([0, -1, 2, 0, 0, -2]),
                                          "value": np.float32(-2)}}),
        ("Expand", (3, 1), {"constants": {"to": I64([2, 1, 4])}}),
    ],
)  # fmt: skip
def test_forms_that_the_conformance_suite_lacks(
    kind: str, shape: tuple[int, ...], how: dict[str, Any], soc: Soc
) -> None:
    one(kind, shape, soc, **how)


def test_split_behind_a_reshape(soc: Soc) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "to"], ["r"]),
        helper.make_node("Split", ["r", "sizes"], ["a", "b", "c"], axis=2),
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Relu", ["a"], ["m"]),
    ]
    constants = {"to": np.int64([2, 5, 12]), "sizes": np.int64([3, 4, 5])}
    same_as_onnx_runtime(model(nodes, {"x": (2, 60)}, ["m", "t", "c"], constants), soc)


def test_a_channel_shuffle_is_one_transpose(soc: Soc) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "apart"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["b", "together"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    sizes = {"apart": np.int64([1, 2, 6, 5, 7]), "together": np.int64([1, 12, 5, 7])}
    network = same_as_onnx_runtime(model(nodes, {"x": (1, 12, 5, 7)}, ["y"], sizes), soc)
    assert [layer.op.kind for layer in network.layers] == ["transpose"]


@given(op=transposed_convolutions())
@SOME
def test_transposed_convolutions_equal_the_reference(op: Op, gpu: OpenClDevice) -> None:
    check_on_gpu(op, gpu)


@given(op=resizes())
@SOME
def test_resizes_equal_the_reference(op: Op, gpu: OpenClDevice) -> None:
    check_on_gpu(op, gpu)


def test_resizes_of_models(soc: Soc) -> None:
    def given(**how: Any) -> dict[str, Any]:
        return {"roi": None, "scales": None, **how}

    one("Resize", (2, 3, 4, 5), soc, given(scales=np.float32([1, 1, 2, 2])), mode="linear")
    one("Resize", (2, 3, 4), soc, given(sizes=np.int64([2, 3, 9])))
    one("Resize", (1, 4, 5, 3), soc, given(scales=np.float32([2, 1.5])), axes=[2, 3], mode="linear")
    one("Resize", (1, 1, 4, 4), soc, {"scales": np.float32([1, 1, 0.6, 1.5])}, opset=10)
    one("Upsample", (1, 1, 4, 4), soc, {"scales": np.float32([1, 1, 2, 3])}, opset=9)


def constant(*sizes: int) -> Array:
    return np.random.default_rng(1).standard_normal(sizes).astype(np.float32)


def test_windows_of_rows(soc: Soc) -> None:
    w = constant(6, 5, 3)
    one("Conv", (2, 5, 17), soc, {"w": w, "b": constant(6)}, strides=[2], pads=[1, 2])
    one("MaxPool", (1, 3, 20), soc, kernel_shape=[4], strides=[3], auto_pad="SAME_LOWER")
    one("GlobalAveragePool", (2, 3, 5), soc)
    one("GlobalMaxPool", (2, 3, 4, 5, 6), soc)


@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
def test_pools_that_round_up(kind: str, soc: Soc) -> None:
    for dilation in (1, 2):
        one(kind, (1, 3, 10, 10), soc, kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 1, 0],
            ceil_mode=1, opset=19, dilations=[dilation] * 2)  # fmt: skip


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
        {"strides": [3, 2], "output_shape": [16, 15]},
        {"strides": [5, 2], "output_shape": [25, 15]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 3], "auto_pad": "SAME_LOWER"},
        {"strides": [1, 2], "dilations": [2, 2], "pads": [0, 2, 1, 0]},
        {"strides": [2, 2], "group": 2},
    ],
    ids=str,
)
def test_transposed_convolutions_of_models(attributes: dict[str, Any], soc: Soc) -> None:
    one("ConvTranspose", (2, 6, 5, 7), soc, {"w": constant(6, 4, 3, 3)}, **attributes)


def test_transposed_convolutions_of_rows(soc: Soc) -> None:
    one("ConvTranspose", (1, 6, 9), soc, {"w": constant(6, 4, 3), "b": constant(4)}, strides=[2])
