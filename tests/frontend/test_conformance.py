"""The ONNX backend: ONNX's own conformance cases on every device, and conversion of types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest
from support import conformance
from support.devices import here
from support.libraries import INSTALLED, preferred

from codl.ir.records.soc import Soc
from codl.ir.types import Processor

#: Cases of promised ops that do not pass, by name, and a part of the reason that is given.
EMPTY = "codl has no empty tensors"
EXCEPTIONS: Mapping[str, str] = {
    # Values that are no tensors, and tensors without elements.
    "test_identity_(opt|sequence)": "codl knows tensors only",
    "test_reduce_(l2|max|sum)_empty_set.*": EMPTY,
    "test_reshape_allowzero_reordered": EMPTY,
    "test_slice_start_out_of_bounds": EMPTY,
    "test_split_zero_size_splits_opset1[38]": EMPTY,
    # ONNX Runtime has no kernel for these, or hands out other scores.
    "test_attention_4d_(causal_)?padded_kv_bf16": "Could not find an implementation for Add",
    "test_attention_4d_diff_heads_mask4d_padded_kv": "Attention",
    "test_attention_4d_.*_qk_matmul_bias_[34]d_mask_causal": "Not equal to tolerance",
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
    """Every eighth case of each op: `scripts/conformance.py` runs them all, which takes minutes.

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
