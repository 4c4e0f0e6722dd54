"""Ops that move elements, resize and transposed convolution: kernels and lowerings on devices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support import onnx_models
from support.engine_runs import same_as_onnx_runtime
from support.kernel_runs import check_on_gpu, operands
from support.random_ops import movements, resizes, transposed_convolutions

from codl.ir import Array, Network, Op, parse
from codl.records.soc import Soc
from codl.runtime.opencl import OpenClDevice

#: Of the newest set of operators that is not said otherwise.
model = partial(onnx_models.model, opset=18)
SOME = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


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


def test_transposes_and_reshapes(soc: Soc) -> None:
    one("Transpose", (2, 3, 4, 5), soc, perm=[3, 1, 0, 2])
    one("Transpose", (2, 3, 4), soc)
    one("DepthToSpace", (2, 12, 3, 5), soc, blocksize=2, mode="DCR")
    one("DepthToSpace", (2, 12, 3, 5), soc, blocksize=2, mode="CRD")
    one("SpaceToDepth", (2, 3, 6, 4), soc, blocksize=2)


def test_slices(soc: Soc) -> None:
    i64 = np.int64
    one("Slice", (5, 6, 7), soc, {"starts": i64([1, -1]), "ends": i64([1000, -9]),
                                  "axes": i64([0, -1]), "steps": i64([2, -3])})  # fmt: skip
    one("Slice", (5, 6), soc, {"starts": i64([1]), "ends": i64([-1])})
    one("Slice", (5, 6), soc, opset=9, starts=[1], ends=[3], axes=[1])


def test_splits(soc: Soc) -> None:
    one("Split", (2, 7), soc, outputs=2, opset=13, axis=-1, constants={"split": np.int64([3, 4])})
    one("Split", (2, 7, 3), soc, outputs=3, axis=1, num_outputs=3)
    one("Split", (2, 6), soc, outputs=3, opset=11, axis=1)


def test_split_behind_a_reshape(soc: Soc) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "to"], ["r"]),
        helper.make_node("Split", ["r", "sizes"], ["a", "b", "c"], axis=2),
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Relu", ["a"], ["m"]),
    ]
    constants = {"to": np.int64([2, 5, 12]), "sizes": np.int64([3, 4, 5])}
    same_as_onnx_runtime(model(nodes, {"x": (2, 60)}, ["m", "t", "c"], constants), soc)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads(mode: str, soc: Soc) -> None:
    opset = 19
    pads = np.int64([0, 1, 2, 0, 0, 3])
    one("Pad", (2, 3, 5), soc, {"pads": pads}, mode=mode, opset=opset)
    some = {"pads": np.int64([2, 1]), "value": None, "axes": np.int64([-1])}
    one("Pad", (2, 3, 5), soc, some, mode=mode, opset=opset)


def test_constant_pads(soc: Soc) -> None:
    one("Pad", (1, 3, 5, 4), soc, opset=10, pads=[0, 0, 1, 1, 0, 0, 2, 0], value=3.5)
    value = {"pads": np.int64([0, -1, 2, 0, 0, -2]), "value": np.float32(-2)}
    one("Pad", (2, 3, 5), soc, value)


def test_stretching(soc: Soc) -> None:
    one("Tile", (2, 3), soc, {"repeats": np.int64([2, 3])})
    one("Expand", (3, 1), soc, {"to": np.int64([2, 1, 4])})
    one("Expand", (3, 4), soc, {"to": np.int64([1, 1])})


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concatenation_along_any_axis(axis: int, soc: Soc) -> None:
    node = helper.make_node("Concat", ["x", "z", "c"], ["y"], axis=axis)
    constants = {"c": np.ones((2, 3, 4), np.float32)}
    proto = model([node], {"x": (2, 3, 4), "z": (2, 3, 4)}, ["y"], constants)
    same_as_onnx_runtime(proto, soc)


@pytest.mark.parametrize("indices", [np.int64(1), np.int64([2, -1]), np.int64([[0], [1]])])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_with_constant_indices(indices: Any, axis: int, soc: Soc) -> None:
    one("Gather", (3, 4, 5), soc, {"indices": indices}, axis=axis)


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


def test_resize_of_any_axes(soc: Soc) -> None:
    def given(**how: Any) -> dict[str, Any]:
        return {"roi": None, "scales": None, **how}

    one("Resize", (2, 3, 4, 5), soc, given(scales=np.float32([1, 1, 2, 2])), mode="linear")
    one("Resize", (2, 3, 4), soc, given(sizes=np.int64([2, 3, 9])))
    one("Resize", (1, 2, 3, 4, 5), soc, given(sizes=np.int64([1, 2, 6, 5, 3])))
    one("Resize", (1, 4, 5, 3), soc, given(scales=np.float32([2, 1.5])), axes=[1, 2], mode="linear")
    crop = {"roi": np.float32([0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7]), "scales": None,
            "sizes": np.int64([1, 1, 3, 3])}  # fmt: skip
    one("Resize", (1, 1, 4, 4), soc, crop, mode="linear", extrapolation_value=10.0,
        coordinate_transformation_mode="tf_crop_and_resize")  # fmt: skip
    one("Resize", (1, 1, 4, 4), soc, {"scales": np.float32([1, 1, 0.6, 1.5])}, opset=10)
    one("Upsample", (1, 1, 4, 4), soc, {"scales": np.float32([1, 1, 2, 3])}, opset=9)


def constant(*sizes: int) -> Array:
    return np.random.default_rng(1).standard_normal(sizes).astype(np.float32)


def test_windows_of_other_ranks(soc: Soc) -> None:
    w1, w3 = constant(6, 5, 3), constant(6, 2, 3, 2, 3)
    one("Conv", (2, 5, 17), soc, {"w": w1, "b": constant(6)}, strides=[2], pads=[1, 2])
    one("Conv", (2, 4, 6, 7, 8), soc, {"w": w3}, group=2, pads=[1, 0, 1, 1, 1, 0],
        strides=[2, 1, 1], dilations=[1, 2, 1])  # fmt: skip
    one("MaxPool", (1, 3, 20), soc, kernel_shape=[4], strides=[3], auto_pad="SAME_LOWER")
    one("MaxPool", (2, 3, 7, 8, 9), soc, kernel_shape=[2, 3, 2], strides=[2, 1, 2],
        pads=[1, 1, 0, 0, 1, 1])  # fmt: skip
    one("AveragePool", (1, 3, 7, 8, 9), soc, kernel_shape=[2, 3, 2], strides=[2, 2, 2],
        pads=[1, 1, 0, 0, 1, 1])  # fmt: skip
    one("GlobalAveragePool", (2, 3, 5), soc)
    one("GlobalMaxPool", (2, 3, 4, 5, 6), soc)


@pytest.mark.parametrize("count_pad", [0, 1])
@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
def test_pools_that_round_up(kind: str, count_pad: int, soc: Soc) -> None:
    attributes: dict[str, Any] = {"count_include_pad": count_pad} if kind == "AveragePool" else {}
    for dilation in (1, 2):
        one(kind, (1, 3, 10, 10), soc, kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 1, 0],
            ceil_mode=1, opset=19, dilations=[dilation] * 2, **attributes)  # fmt: skip


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


def test_batches_on_the_gpu(soc: Soc) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("ConvTranspose", ["p", "v"], ["t"], strides=[2, 2]),
        helper.make_node("Concat", ["r", "t"], ["j"], axis=1),
        helper.make_node("Resize", ["j", "", "s"], ["z"]),
        helper.make_node("Add", ["z", "z"], ["y"]),
    ]
    constants = {"w": constant(20, 3, 3, 3), "v": constant(20, 7, 2, 2),
                 "s": np.float32([1, 1, 2, 2])}  # fmt: skip
    proto = model(nodes, {"x": (3, 3, 8, 10)}, ["y"], constants)
    network = same_as_onnx_runtime(proto, soc)
    assert network.shapes["x"].n == 3


@pytest.mark.parametrize("order", [0, 1])
def test_indices_of_maxima(order: int, soc: Soc) -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "at"], kernel_shape=[3, 2], strides=[2, 2],
                            pads=[1, 0, 0, 1], storage_order=order)  # fmt: skip
    proto = model([node], {"x": (2, 3, 9, 8)}, ["y"])
    proto.graph.output.append(helper.make_tensor_value_info("at", TensorProto.INT64, None))
    same_as_onnx_runtime(proto, soc)
