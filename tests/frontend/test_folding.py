"""Scales, shifts, batch norms and parallel convolutions become part of the products beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from support import onnx_models, references

Values = dict[str, Any]


def floats(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


NORM = {"scale": floats(6), "shift": floats(6) + 1, "mean": floats(6), "var": np.abs(floats(6))}


def model(
    nodes: Sequence[tuple[Any, ...]], sizes: Sequence[int], outputs: Sequence[str], **values: Any
) -> onnx.ModelProto:
    """Nodes as (type, inputs, output, attributes), from one input `x`."""
    made = [
        helper.make_node(kind, reads.split(), [output], name=f"n_{output}", **dict(*more))
        for kind, reads, output, *more in nodes
    ]
    return onnx_models.model(made, {"x": sizes}, outputs, NORM | values)


def check(proto: onnx.ModelProto) -> list[str]:
    """The kinds of ops that are left, where the outputs are those of the model."""
    sizes = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    network = references.check(proto, {"x": floats(*sizes)}, encloses=True)
    return [layer.op.kind for layer in network.layers]


@pytest.mark.parametrize(
    ("nodes", "sizes", "values"),
    [
        ([("MatMul", "x w", "m"), ("Add", "m b", "y")], [1, 5, 4], {"b": floats(6)}),
        ([("MatMul", "x w", "m"), ("Sub", "b m", "y")], [1, 5, 4], {"b": floats(6)}),
        ([("MatMul", "x w", "m"), ("Sub", "m b", "y")], [1, 5, 4], {"b": floats(1, 6)}),
        ([("MatMul", "x w", "m"), ("Mul", "b m", "y")], [1, 5, 4], {"b": np.float32(0.3)}),
        ([("MatMul", "x w", "m"), ("Div", "m b", "y")], [1, 5, 4], {"b": floats(6)}),
        (
            [("MatMul", "x w", "m"), ("Add", "m b", "a"), ("Mul", "a b", "y")],
            [2, 5, 4],
            {"b": floats(6)},
        ),
        (
            [
                ("MatMul", "x w", "m"),
                ("Reshape", "m flat", "f"),
                ("BatchNormalization", "f scale shift mean var", "n"),
                ("Reshape", "n back", "y"),
            ],
            [2, 5, 4],
            {"flat": np.int64([10, 6]), "back": np.int64([2, 5, 6])},
        ),
        (
            [("Gemm", "x w b", "m", {"alpha": 0.5, "beta": 2.0}), ("Mul", "m c", "y")],
            [3, 4],
            {"b": floats(6), "c": floats(6)},
        ),
        ([("Gemm", "x v", "m", {"transB": 1}), ("Add", "m b", "y")], [3, 4], {"b": floats(6)}),
    ],
    ids=["add", "from", "sub", "scale", "div", "both", "norm", "gemm", "transposed"],
)
def test_behind_a_product(nodes: Any, sizes: Any, values: Values) -> None:
    kinds = check(model(nodes, sizes, ["y"], w=floats(4, 6), v=floats(6, 4), **values))
    assert set(kinds) <= {"matmul", "fc", "reshape"}


def test_in_front_of_products() -> None:
    norm = ("BatchNormalization", "x scale shift mean var", "n")
    nodes = [norm, ("Gemm", "n w b", "y"), ("MatMul", "n v", "z")]
    kinds = check(model(nodes, [2, 6], ["y", "z"], w=floats(6, 3), v=floats(6, 5), b=floats(3)))
    assert set(kinds) <= {"matmul", "fc", "reshape"}
    nodes = [("Mul", "x c", "n"), ("Add", "n c", "m"), ("MatMul", "m w", "y")]
    kinds = check(model(nodes, [2, 3, 6], ["y"], w=floats(6, 3), c=floats(6)))
    assert kinds == ["matmul"]


@pytest.mark.parametrize(
    ("nodes", "outputs", "values"),
    [
        ([("MatMul", "x w", "m"), ("Add", "m b", "y")], ["y", "m"], {"b": floats(6)}),
        ([("MatMul", "x w", "m"), ("Add", "m b", "y")], ["y"], {"b": floats(5, 1)}),
        ([("MatMul", "x w", "m"), ("Mul", "m m", "y")], ["y"], {}),
        ([("MatMul", "x w", "m"), ("Add", "m b", "y"), ("Mul", "m y", "z")], ["z"],
         {"b": floats(6)}),
        ([("Add", "x b", "a"), ("MatMul", "a w", "m"), ("Exp", "a", "z")], ["m", "z"],
         {"b": floats(4)}),
        ([("MatMul", "x w", "m"), ("Div", "b m", "y")], ["y"], {"b": floats(6)}),
    ],
    ids=["output", "rows", "square", "read twice", "read otherwise", "over"],
)  # fmt: skip
def test_what_cannot_be_folded_stays(nodes: Any, outputs: Any, values: Values) -> None:
    kinds = check(model(nodes, [2, 5, 4], outputs, w=floats(4, 6), **values))
    assert "eltwise" in kinds


def test_means_of_images_are_poolings() -> None:
    nodes = [("ReduceMean", "x", "y", {"axes": [2, -1], "keepdims": 0}),
             ("ReduceMax", "x", "z", {"axes": [-2, -1]})]  # fmt: skip
    assert check(model(nodes, [2, 3, 5, 4], ["y", "z"])) == ["pooling", "pooling"]


def test_factors_of_operands_are_factors_of_the_product() -> None:
    nodes = [
        ("Mul", "x half", "a"),
        ("Transpose", "x", "t", {"perm": [0, 2, 1]}),
        ("Div", "t half", "b"),
        ("Mul", "b half", "c"),
        ("MatMul", "a c", "m"),
        ("Mul", "half m", "y"),
    ]
    assert check(model(nodes, [2, 5, 4], ["y"], half=np.float32(0.3))) == ["transpose", "matmul"]


def test_hard_swish_is_one_activation() -> None:
    slope = {"alpha": 1 / 6}
    nodes = [("MatMul", "x w", "m"), ("HardSigmoid", "m", "h", slope), ("Mul", "m h", "y")]
    assert check(model(nodes, [2, 5, 4], ["y"], w=floats(4, 6))) == ["matmul"]
    nodes[1] = ("HardSigmoid", "m", "h")  # with another slope it is none
    assert "eltwise" in check(model(nodes, [2, 5, 4], ["y"], w=floats(4, 6)))


@pytest.mark.parametrize("groups", [1, 3])
def test_group_norms_between_reshapes(groups: int) -> None:
    nodes = [
        ("Reshape", "x rows", "r"),
        ("InstanceNormalization", "r ones zeros", "n", {"epsilon": 1e-3}),
        ("Reshape", "n back", "b"),
        ("Mul", "b s", "m"),
        ("Add", "m t", "y"),
    ]
    values = {
        "rows": np.int64([0, groups, -1]),
        "back": np.int64([2, 6, 5, 4]),
        "ones": np.ones(groups, np.float32),
        "zeros": np.zeros(groups, np.float32),
        "s": floats(6, 1, 1),
        "t": floats(1, 6, 1, 1),
    }
    assert check(model(nodes, [2, 6, 5, 4], ["y"], **values)) == ["norm"]
    values["zeros"] = values["zeros"] + 1
    assert len(check(model(nodes, [2, 6, 5, 4], ["y"], **values))) > 1


def branches(strides: int = 1, groups: int = 1) -> list[tuple[Any, ...]]:
    """A window of 3x3 and one of 1x1, each behind a norm of six channels."""
    common = {"strides": [strides] * 2, "group": groups}
    return [
        ("Conv", "x wide", "a", {**common, "pads": [1, 1, 1, 1]}),
        ("BatchNormalization", "a scale shift mean var", "b"),
        ("Conv", "x narrow", "c", common),
    ]


SUM = [("Add", "b c", "d"), ("Add", "d e", "y"), ("Relu", "y", "z")]
IDENTITY = ("BatchNormalization", "x scale shift mean var", "e")


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_branches_of_a_layer_are_one_convolution(groups: int) -> None:
    of_group = 6 // groups
    weights = {"wide": floats(6, of_group, 3, 3), "narrow": floats(6, of_group, 1, 1)}
    proto = model([*branches(groups=groups), IDENTITY, *SUM], (1, 6, 7, 5), ["z"], **weights)
    assert check(proto) == ["conv2d"]


@pytest.mark.parametrize("size", [6, 7])
def test_branches_with_strides_are_one_convolution(size: int) -> None:
    weights = {"wide": floats(6, 6, 3, 3), "narrow": floats(6, 6, 1, 1)}
    nodes = [*branches(strides=2), ("Add", "c b", "y")]
    assert check(model(nodes, (1, 6, size, size + 3), ["y"], **weights)) == ["conv2d"]


@pytest.mark.parametrize("square", [True, False])
def test_windows_that_stand_out_of_each_other_are_merged_where_that_is_no_more_work(
    square: bool,
) -> None:
    nodes = [
        ("Conv", "x tall", "a", {"pads": [1, 0, 1, 0]}),
        ("Conv", "x broad", "b", {"pads": [0, 1, 0, 1]}),
        ("Conv", "x square", "c", {"pads": [1, 1, 1, 1]}),
        ("Add", "a b", "y"),
        ("Sum", "a b c", "z"),
    ]
    weights = {
        "tall": floats(6, 6, 3, 1),
        "broad": floats(6, 6, 1, 3),
        "square": floats(6, 6, 3, 3),
    }
    output = "z" if square else "y"
    kinds = check(
        model(nodes[:3] + nodes[3 + square : 4 + square], (1, 6, 5, 7), [output], **weights)
    )
    assert kinds.count("conv2d") == (1 if square else 2)


@pytest.mark.parametrize(
    ("nodes", "outputs", "convolutions"),
    [
        ([("Conv", "b narrow", "e"), *SUM[:2]], "y", 3),
        ([("Relu", "x", "e"), *SUM[:2], ("Relu", "c", "w")], "y w", 2),
        ([("Relu", "x", "e"), *SUM[:2]], "y", 1),
    ],
    ids=["of another tensor", "read elsewhere", "not linear"],
)
def test_other_terms_of_a_sum_stay(
    nodes: list[tuple[Any, ...]], outputs: str, convolutions: int
) -> None:
    weights = {"wide": floats(6, 6, 3, 3), "narrow": floats(6, 6, 1, 1)}
    proto = model([*branches(), *nodes], (1, 6, 5, 7), outputs.split(), **weights)
    assert check(proto).count("conv2d") == convolutions
