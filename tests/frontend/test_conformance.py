"""The ONNX backend: ONNX's own conformance cases on every device, and conversion of types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import conformance
from support.devices import here
from support.libraries import INSTALLED, preferred
from support.onnx_backend import CodlBackend, from_float32, parameter_inputs

from codl.errors import CodlError, UnsupportedError
from codl.ir.types import Processor
from codl.records.soc import Soc

#: Cases of promised ops that do not pass, by name, and a part of the reason that is given.
EMPTY = "codl has no empty tensors"
EXCEPTIONS: Mapping[str, str] = {
    # Values that are no tensors, and tensors without elements.
    "test_identity_(opt|sequence)": "codl knows tensors only",
    "test_reduce_(l2|max|sum)_empty_set.*": EMPTY,
    "test_reshape_allowzero_reordered": EMPTY,
    "test_slice_start_out_of_bounds": EMPTY,
    "test_split_zero_size_splits_opset1[38]": EMPTY,
    "test_rotary_embedding_(3d_input|(no_position_ids_)?(interleaved_)?)?_?expanded": EMPTY,
    # Of an opset whose attention ONNX Runtime writes out before codl sees it.
    "test_attention_((3d_)?local|bidirectional)_window.*": "has no operator for it",
    "test_einsum_batch_diagonal": "takes a diagonal",
    # What only training has a use for.
    "test_batchnorm_.*_training_mode": "training",
    "test_convtranspose_3d": "1 or 2 spatial axes are known",
    # Averages over a window that grows with the scale.
    "test_resize_.*_antialias": "antialias must be 0",
    # A size of scale x length that is no integer: these cases go on with the fraction, codl and
    # ONNX Runtime with the size that the output really has.
    "test_resize_downsample_scales_(cubic|linear)_align_corners": "Not equal to tolerance",
}

#: Node types that the backend must know, whatever else it does.
# fmt: off
PROMISED = (
    "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul",
    "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool",
    "Add", "Div", "Max", "Mean", "Min", "Mul", "Pow", "Sub", "Sum",
    "Clip", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "Relu",
    "Sigmoid", "Swish", "Tanh",
    "Attention", "BatchNormalization", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "RMSNormalization", "RotaryEmbedding",
    "ReduceL2", "ReduceMax", "ReduceMean", "ReduceSum", "Softmax",
    "Concat", "DepthToSpace", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Resize", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Transpose", "Unsqueeze", "Upsample",
)
# fmt: on


def check(cases: Sequence[conformance.Case], soc: Soc, side: Processor = "gpu") -> None:
    """All pass but the exceptions, and those do not pass."""
    wrong = []
    for outcome in conformance.run(cases, here(soc), side):
        why = next(
            (why for name, why in EXCEPTIONS.items() if re.fullmatch(name, outcome.case)), ""
        )
        if (outcome.status == "passed") == bool(why) or why not in outcome.reason:
            wrong.append(f"{outcome.case} {outcome.status}: {outcome.reason}")
    assert not wrong, "\n".join(wrong)


def promised() -> list[conformance.Case]:
    return [case for case in conformance.select() if case.op in PROMISED]


def test_the_cases_of_promised_ops_pass(first_soc: Soc) -> None:
    """Every eighth case of each op: `support.conformance` runs them all, which takes minutes.

    The first of each is for every device, below.
    """
    cases = promised()
    assert len(cases) > 400
    by_op: dict[str, list[conformance.Case]] = {}
    for case in cases:
        by_op.setdefault(case.op, []).append(case)
    assert set(by_op) == set(PROMISED)
    check([case for own in by_op.values() for case in own[8::8]], first_soc)


def test_a_case_of_every_promised_op_passes_on_every_device(soc: Soc) -> None:
    check(list({case.op: case for case in reversed(promised())}.values()), soc)


@pytest.mark.parametrize("library", INSTALLED)
def test_the_cases_of_promised_ops_pass_in_every_library(library: str, first_soc: Soc) -> None:
    """Every fourth case of each op; no kernel is compiled for the CPU."""
    by_op: dict[str, list[conformance.Case]] = {}
    for case in promised():
        by_op.setdefault(case.op, []).append(case)
    with preferred(library):
        check([case for own in by_op.values() for case in own[::4]], first_soc, "cpu")


def tensor(name: str, kind: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "test", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def run_node(node: onnx.NodeProto, inputs: Sequence[Any], soc: Soc, **options: Any) -> Any:
    return CodlBackend.run_node(node, inputs, target=here(soc), opset_version=18, **options)


def test_a_node_runs_alone_on_either_side(first_soc: Soc) -> None:
    node = helper.make_node("Sub", ["a", "b"], ["y"])
    a, b = np.float32([[1, 2, 3]]), np.float32([[4, 6, 9]])
    for side in ("gpu", "cpu"):
        (y,) = run_node(node, [a, b], first_soc, side=side)
        np.testing.assert_array_equal(y, a - b)


def test_integers_wrap_around_and_quotients_are_cut_off(first_soc: Soc) -> None:
    add, div = (helper.make_node(kind, ["a", "b"], ["y"]) for kind in ("Add", "Div"))
    (y,) = run_node(add, [np.uint8([250, 3]), np.uint8([10, 4])], first_soc)
    np.testing.assert_array_equal(y, np.uint8([4, 7]))
    (y,) = run_node(div, [np.int32([7, -7, 6]), np.int32([2, 2, 3])], first_soc)
    np.testing.assert_array_equal(y, np.int32([3, -3, 2]))
    near = np.float32([2.9999998, -2.9999998, 2.99])
    np.testing.assert_array_equal(from_float32("y", near, np.dtype(np.int8)), [3, -3, 2])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int64, np.bool_])
def test_outputs_have_the_type_that_the_model_declares(dtype: Any, first_soc: Soc) -> None:
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    x = np.array([[1, 0, 1], [0, 0, 1]], dtype)
    (y,) = run_node(node, [x], first_soc)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x.T)


def test_an_integer_that_float32_does_not_have_is_refused(first_soc: Soc) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    with pytest.raises(UnsupportedError, match=r"'x' reaches 1.67772e\+07"):
        run_node(node, [np.int64([(1 << 24) + 1])], first_soc)


def test_types_that_codl_cannot_convert_are_refused(first_soc: Soc) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    for kind, word in ((TensorProto.STRING, "string"), (TensorProto.COMPLEX64, "complex64")):
        model = model_of([node], [tensor("x", kind, [2])], [tensor("y", kind, [2])])
        assert not CodlBackend.is_compatible(model)
        with pytest.raises(UnsupportedError, match=f"'x' is of type {word}"):
            CodlBackend.prepare(model, target=here(first_soc))
    assert not CodlBackend.supports_device("CUDA")


def test_parameters_are_inputs_of_every_run(first_soc: Soc) -> None:
    """Other axes, and other sizes, on one representation of a model; the data's batch is open."""
    nodes = [
        helper.make_node("Add", ["shift", "shift"], ["twice"]),
        helper.make_node("Slice", ["x", "starts", "twice"], ["y"]),
    ]
    inputs = [
        tensor("x", TensorProto.FLOAT, ["n", 4]),
        tensor("starts", TensorProto.INT64, [1]),
        tensor("shift", TensorProto.INT64, [1]),
    ]
    model = model_of(nodes, inputs, [tensor("y", TensorProto.FLOAT, ["m", 4])])
    assert parameter_inputs(model.graph) == {"starts", "shift"}
    rep = CodlBackend.prepare(model, target=here(first_soc))
    for rows, start, shift in ((6, 1, 2), (6, 1, 2), (6, 0, 1), (9, 2, 3)):
        x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
        (y,) = rep.run([x, np.array([start]), np.array([shift])])
        np.testing.assert_array_equal(y, x[start : 2 * shift])
    with pytest.raises(CodlError, match="The inputs must be x, starts, shift; 1 were given"):
        rep.run([x])
    with pytest.raises(CodlError, match="The inputs must be x, starts, shift, got x"):
        rep.run({"x": x})


def test_an_output_may_be_an_input_or_a_constant(first_soc: Soc) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Reshape", ["same", "shape"], ["flat"]),
        helper.make_node("Constant", [], ["fixed"], value_floats=[1.0, 2.0]),
    ]
    inputs = [tensor("x", TensorProto.FLOAT, [2, 3]), tensor("shape", TensorProto.INT64, [1])]
    outputs = [
        tensor("same", TensorProto.FLOAT, [2, 3]),
        tensor("flat", TensorProto.FLOAT, ["n"]),
        tensor("fixed", TensorProto.FLOAT, [2]),
    ]
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    given = {"x": x, "shape": np.array([-1])}
    results = CodlBackend.run_model(model_of(nodes, inputs, outputs), given, target=here(first_soc))
    for result, wanted in zip(results, (x, x.reshape(-1), np.float32([1, 2])), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_cases_are_counted(tmp_path: Path, first_soc: Soc) -> None:
    soc, out = first_soc.save(tmp_path / "soc.yaml"), tmp_path / "conformance.json"
    conformance.main(["--soc", str(soc), "--only", "^test_(add|identity)", "-o", str(out)])
    content = json.loads(out.read_text())
    assert content["cases"] == content["passed"] + content["refused"] + content["failed"]
    assert content["failed"] == 0
    assert content["converted"] == 6
    assert content["renamings"] == 1
    reasons = " ".join(content["refusals"])
    assert "kind sequence" in reasons
    assert "kind optional" in reasons
