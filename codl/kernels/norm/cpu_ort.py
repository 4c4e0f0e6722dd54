"""Normalization in ONNX Runtime: its layer and instance norms, and what those lack as nodes."""

from __future__ import annotations

import numpy as np

from codl.ir.onnx_node import Node
from codl.ir.ops.norm import Norm
from codl.kernels.ort import CpuOrt, NamedArrays, OrtPlan, ints, node, number


def _plan(op: Norm) -> OrtPlan:
    if op.center and op.affine and _is_layer_norm(op):
        own = op.shapes[0][op.axis :]
        norm = node("LayerNormalization", ("x0", "x1", "x2"), axis=op.axis, epsilon=op.epsilon)
        return OrtPlan((norm,), (op.shapes[0], own, own), op.shapes[0])
    if op.affine and _is_layer_norm(op):
        own = op.shapes[0][op.axis :]
        given = {"axis": op.axis, "epsilon": op.epsilon}
        # ONNX Runtime's own node; ONNX has it from opset 23 on, as RMSNormalization.
        norm = node("SimplifiedLayerNormalization", ("x0", "x1"), "scaled", **given)
        sum_ = node("Add", ("scaled", "x2"))
        return OrtPlan((norm, sum_), (op.shapes[0], own, own), op.shapes[0])
    nodes, constants = _runs(op) if op.center else _root_mean_square(op)
    shapes = (op.shapes[0], *(_stretched(op) for _ in op.shapes[1:]))
    if op.affine:
        nodes += [node("Mul", ("normal", "x1"), "scaled"), node("Add", ("scaled", "x2"))]
    else:
        nodes.append(node("Identity", ("normal",)))
    return OrtPlan(tuple(nodes), shapes, op.shapes[0], constants)


def _is_layer_norm(op: Norm) -> bool:
    """Whether scale and bias have an element for every one of a run."""
    first, last = op.shapes[1][: op.axis], op.shapes[1][op.axis :]
    return op.groups == 1 and set(first) <= {1} and last == op.shapes[0][op.axis :]


def _stretched(op: Norm) -> tuple[int, ...]:
    return op.shapes[1]


def _runs(op: Norm) -> tuple[list[Node], NamedArrays]:
    """Runs are the channels of one image."""
    nodes = [
        node("Reshape", ("x0", "runs"), "rows"),
        node("InstanceNormalization", ("rows", "ones", "zeros"), "even", epsilon=op.epsilon),
        node("Reshape", ("even", "back"), "normal"),
    ]
    return nodes, {
        "runs": ints(1, op.runs, op.run),
        "ones": np.ones(op.runs, np.float32),
        "zeros": np.zeros(op.runs, np.float32),
        "back": ints(*op.shapes[0]),
    }


def _root_mean_square(op: Norm) -> tuple[list[Node], NamedArrays]:
    nodes = [
        node("Reshape", ("x0", "runs"), "rows"),
        node("Mul", ("rows", "rows"), "squares"),
        node("ReduceMean", ("squares", "axis"), "mean", keepdims=1),
        node("Add", ("mean", "epsilon"), "above"),
        node("Sqrt", ("above",), "root"),
        node("Div", ("rows", "root"), "even"),
        node("Reshape", ("even", "back"), "normal"),
    ]
    return nodes, {
        "runs": ints(op.runs, op.run),
        "axis": ints(1),
        "epsilon": number(op.epsilon),
        "back": ints(*op.shapes[0]),
    }


VARIANT = CpuOrt("norm", _plan)
