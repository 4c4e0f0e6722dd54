"""The ops that ONNX Runtime runs on the CPU, each as its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.ir import columns
from codl.ir.columns import FeatureColumns
from codl.ir.onnx_node import Node
from codl.ir.ops.attention import TOKENS, Attention, AttentionColumns
from codl.ir.ops.base import Weights
from codl.ir.ops.concat import Concat, ConcatNd, Gather
from codl.ir.ops.convolution import ConvTranspose2d
from codl.ir.ops.eltwise import UNARY, Eltwise
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.matmul import MatMul, MatMulColumns
from codl.ir.ops.movement import PadNd, Reshape, SliceNd, TileNd, Transpose, Windows
from codl.ir.ops.nd import Sizes
from codl.ir.ops.norm import Norm
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.ops.pooling import MaxIndices, Pool2d
from codl.ir.ops.reductions import Reduce, Softmax
from codl.ir.ops.resize import AxisTable, Resize
from codl.kernels.feature_columns import THIRD_LEVEL, beyond, by_level
from codl.kernels.ort import TYPES, CpuOrt, NamedArrays, OrtPlan, ints, nd_plan, node, number
from codl.kernels.registry import register
from codl.records.soc import Soc

Describe = Callable[[Any], OrtPlan]


def _ort(
    op_kind: str, refuse: Callable[[Any], str | None] = lambda op: None
) -> Callable[[Describe], Describe]:
    """Registers a function as what writes the nodes of a kind of op."""

    def registered(describe: Describe) -> Describe:
        register(CpuOrt(op_kind, describe, refuse=refuse))
        return describe

    return registered


@_ort("fc")
def _fc(op: FullyConnected) -> OrtPlan:
    gemm = node("Gemm", ("x0", "weight", "bias"), transB=1)
    flat = (op.input.n, op.in_features)
    return OrtPlan((gemm,), (flat,), (op.input.n, op.out_channels))


@_ort("conv_transpose2d")
def _conv_transpose2d(op: ConvTranspose2d) -> OrtPlan:
    """The bias comes last: rows and columns that are added around the result have it too."""
    axes = list(zip((op.input.h, op.input.w), op.stride, op.extent, op.crop, op.size, strict=True))
    behind = [(n - 1) * stride + extent - crop - size for n, stride, extent, crop, size in axes]
    conv = node(
        "ConvTranspose",
        ("x0", "weight"),
        "whole",
        kernel_shape=list(op.kernel),
        strides=list(op.stride),
        dilations=list(op.dilation),
        group=op.groups,
    )
    pads = ints(0, 0, *(-crop for crop in op.crop), 0, 0, *(-rest for rest in behind))
    nodes = (conv, node("Pad", ("whole", "pads"), "cut"), node("Add", ("cut", "bias")))

    def pack(weights: Weights) -> NamedArrays:
        """ONNX's weights have the input channels first, and its bias is stretched here."""
        per_group = op.out_channels // op.groups
        grouped = weights["weight"].reshape(op.groups, per_group, -1, *op.kernel).swapaxes(1, 2)
        weight = np.ascontiguousarray(grouped).reshape(-1, per_group, *op.kernel)
        return {"weight": weight, "bias": weights["bias"].reshape(-1, 1, 1)}

    return OrtPlan(nodes, op.inputs, op.output, {"pads": pads}, pack)


def _window(op: Any) -> dict[str, Any]:
    return {
        "kernel_shape": list(op.kernel),
        "strides": list(op.stride),
        "dilations": list(op.dilation),
        "pads": [op.pad.top, op.pad.left, op.pad.bottom, op.pad.right],
    }


def _refuse_pads(op: Any) -> str | None:
    pads = zip((op.pad.top, op.pad.left, op.pad.bottom, op.pad.right), op.kernel * 2, strict=True)
    if any(pad >= size for pad, size in pads):
        return f"ONNX Runtime pads by less than the window {op.kernel}, got pad={op.pad}"
    return None


@_ort("pooling", _refuse_pads)
def _pooling(op: Pool2d) -> OrtPlan:
    more: dict[str, Any] = {"count_include_pad": int(op.count_pad)} if op.mode == "avg" else {}
    kind = "MaxPool" if op.mode == "max" else "AveragePool"
    if op.kernel == (op.input.h, op.input.w) and not any(op.pad):
        return OrtPlan((node(f"Global{kind}"),), op.inputs, op.output)
    return OrtPlan((node(kind, **_window(op), **more),), op.inputs, op.output)


@_ort("max_indices", _refuse_pads)
def _max_indices(op: MaxIndices) -> OrtPlan:
    pool = Node(
        "pool",
        "MaxPool",
        ("x0",),
        ("maxima", "indices"),
        {**_window(op), "storage_order": int(op.by_columns)},
    )
    nodes = (pool, node("Cast", ("indices",), to=TYPES["float32"]))
    return OrtPlan(nodes, op.inputs, op.out_sizes)


#: ONNX's nodes by mode, with the attributes that take `alpha` and `beta`.
_ELEMENTWISE: Mapping[str, tuple[str, ...]] = {
    "add": ("Add",),
    "sub": ("Sub",),
    "mul": ("Mul",),
    "div": ("Div",),
    "max": ("Max",),
    "min": ("Min",),
    "pow": ("Pow",),
    "identity": ("Identity",),
    "selu": ("Selu", "alpha", "gamma"),
    "celu": ("Celu", "alpha"),
    "thresholded_relu": ("ThresholdedRelu", "alpha"),
    "shrink": ("Shrink", "bias", "lambd"),
}


@_ort("eltwise")
def _eltwise(op: Eltwise) -> OrtPlan:
    constants: NamedArrays = {}
    if op.mode == "prelu":  # ONNX's own stretches the slope alone
        constants = {"zero": number(0)}
        nodes = [
            node("Less", ("x0", "zero"), "below"),
            node("Mul", ("x0", "x1"), "scaled"),
            node("Where", ("below", "scaled", "x0")),
        ]
    else:
        kind, *named = _ELEMENTWISE.get(op.mode, (op.mode.capitalize(),))
        inputs = ("x0",) if op.mode in UNARY else ("x0", "x1")
        attributes: dict[str, Any] = dict(zip(named, op.parameters, strict=True))
        nodes = [node(kind, inputs, **attributes)]
    return OrtPlan(tuple(nodes), op.inputs, op.output, constants)


@_ort("norm")
def _norm(op: Norm) -> OrtPlan:
    return norm_plan(op, has_simplified=True)


def norm_plan(op: Norm, *, has_simplified: bool) -> OrtPlan:
    """A norm's nodes; one without a mean is a node of ONNX Runtime's own where that is there."""
    if op.center and op.affine and _is_layer_norm(op):
        normalized = op.shapes[0][op.axis :]
        norm = node("LayerNormalization", ("x0", "x1", "x2"), axis=op.axis, epsilon=op.epsilon)
        return OrtPlan((norm,), (op.shapes[0], normalized, normalized), op.shapes[0])
    if has_simplified and op.affine and _is_layer_norm(op):
        normalized = op.shapes[0][op.axis :]
        attributes = {"axis": op.axis, "epsilon": op.epsilon}
        # ONNX Runtime's own node; ONNX has it from opset 23 on, as RMSNormalization.
        norm = node("SimplifiedLayerNormalization", ("x0", "x1"), "scaled", **attributes)
        sum_ = node("Add", ("scaled", "x2"))
        return OrtPlan((norm, sum_), (op.shapes[0], normalized, normalized), op.shapes[0])
    nodes, constants = _instance_norm(op) if op.center else _root_mean_square(op)
    shapes = (op.shapes[0], *(op.shapes[1] for _ in op.shapes[1:]))
    if op.affine:
        nodes += [node("Mul", ("normal", "x1"), "scaled"), node("Add", ("scaled", "x2"))]
    else:
        nodes.append(node("Identity", ("normal",)))
    return OrtPlan(tuple(nodes), shapes, op.shapes[0], constants)


def _is_layer_norm(op: Norm) -> bool:
    """Whether scale and bias have an element for every one of a run."""
    first, last = op.shapes[1][: op.axis], op.shapes[1][op.axis :]
    return op.groups == 1 and set(first) <= {1} and last == op.shapes[0][op.axis :]


def _instance_norm(op: Norm) -> tuple[list[Node], NamedArrays]:
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


@_ort("softmax")
def _softmax(op: Softmax) -> OrtPlan:
    outer, size, inner = op.rows
    seen = (outer, size) if inner == 1 else (outer, size, inner)
    softmax = node("LogSoftmax" if op.log else "Softmax", axis=1)
    return OrtPlan((softmax,), (seen,), seen)


_REDUCTIONS: Mapping[str, str] = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "l1": "ReduceL1",
    "l2": "ReduceL2",
    "sum_square": "ReduceSumSquare",
    "log_sum": "ReduceLogSum",
    "log_sum_exp": "ReduceLogSumExp",
}


@_ort("reduce")
def _reduce(op: Reduce) -> OrtPlan:
    """The axis is kept: OpenVINO exchanges a transpose beside the node with one that is not."""
    reduce = node(_REDUCTIONS[op.mode], ("x0", "axis"), keepdims=1)
    outer, _, inner = op.rows
    return OrtPlan((reduce,), (tuple(op.rows),), (outer, 1, inner), {"axis": ints(1)})


def _inputs(count: int) -> list[str]:
    return [f"x{index}" for index in range(count)]


@_ort("concat")
def _concat(op: Concat) -> OrtPlan:
    return OrtPlan((node("Concat", _inputs(len(op.inputs)), axis=1),), op.inputs, op.output)


@_ort("concat_nd")
def _concat_nd(op: ConcatNd) -> OrtPlan:
    return nd_plan(op, [node("Concat", _inputs(len(op.shapes)), axis=op.axis)])


@_ort("gather")
def _gather(op: Gather) -> OrtPlan:
    """Indices are floats outside; those out of range take the first or the last slice."""
    size = op.shapes[0][op.axis]
    nodes = [
        node("Cast", ("x1",), "whole", to=TYPES["int64"]),
        node("Clip", ("whole", "first", "last"), "inside"),
        node("Gather", ("x0", "inside"), axis=op.axis),
    ]
    ends = {"first": np.array(-size, np.int64), "last": np.array(size - 1, np.int64)}
    return nd_plan(op, nodes, ends)


#: An end of a slice that is beyond any first element.
BEFORE_ALL = -(1 << 31)


@_ort("transpose")
def _transpose(op: Transpose) -> OrtPlan:
    transpose = node("Transpose", perm=list(op.perm))
    out = tuple(op.seen[axis] for axis in op.perm)
    return OrtPlan((transpose,), (op.seen,), out)


@_ort("slice")
def _slice(op: SliceNd) -> OrtPlan:
    ends = [
        start + step * count if start + step * count >= 0 else BEFORE_ALL
        for start, step, count in zip(op.starts, op.steps, op.to, strict=True)
    ]
    constants = {
        "starts": ints(*op.starts),
        "ends": ints(*ends),
        "axes": ints(*range(len(op.to))),
        "steps": ints(*op.steps),
    }
    return nd_plan(op, [node("Slice", ("x0", *constants))], constants)


@_ort("tile")
def _tile(op: TileNd) -> OrtPlan:
    return nd_plan(op, [node("Tile", ("x0", "repeats"))], {"repeats": ints(*op.repeats)})


@_ort("pad")
def _pad(op: PadNd) -> OrtPlan:
    """What is cut off goes first: ONNX Runtime mirrors and repeats what is then left."""
    sizes, nodes, source = op.shapes[0], [], "x0"
    constants: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}
    if min(*op.before, *op.after) < 0:
        sides = zip(sizes, op.before, op.after, strict=True)
        constants["starts"] = ints(*(max(-before, 0) for before in op.before))
        constants["ends"] = ints(*(size - max(-after, 0) for size, _, after in sides))
        nodes.append(node("Slice", ("x0", "starts", "ends"), "kept"))
        source = "kept"
    constants["pads"] = ints(*(max(pad, 0) for pad in (*op.before, *op.after)))
    inputs = [source, "pads"]
    if op.mode == "constant":
        constants["value"] = number(op.value)
        inputs.append("value")
    nodes.append(node("Pad", inputs, mode=op.mode))
    return nd_plan(op, nodes, constants)


@_ort("windows")
def _windows(op: Windows) -> OrtPlan:
    """Rows gathered for every window and tap."""
    n, c, _, inner = op.shapes[0]
    first = np.arange(op.count) * op.stride
    rows = first[:, None] + np.arange(op.kernel) * op.dilation
    nodes: list[Node] = [
        node("Gather", ("x0", "rows"), "taken", axis=2),
        node("Transpose", ("taken",), perm=[0, 2, 1, 3, 4]),
    ]
    constants: NamedArrays = {"rows": rows.astype(np.int64)}
    return OrtPlan(tuple(nodes), op.shapes, (n, op.count, c, op.kernel, inner), constants)


@_ort("reshape")
def _reshape(op: Reshape) -> OrtPlan:
    to = ints(*op.to)
    return OrtPlan((node("Reshape", ("x0", "to")),), op.shapes, op.to, {"to": to})


@_ort("resize")
def _resize(op: Resize) -> OrtPlan:
    """Along each axis a sum of rows that are gathered: a product would spread a NaN over them all.

    Columns are gathered as the rows of a transposed image, which takes a third of the time.
    """
    nodes: list[Node] = []
    constants: dict[str, np.ndarray[Any, Any]] = {}
    wide = "x0"
    if not op.columns.copies(op.input.w):
        nodes.append(node("Transpose", output="turned", perm=[0, 1, 3, 2]))
        summed = _gathered(op.columns, op.input.w, "turned", "column", nodes, constants)
        nodes.append(node("Transpose", (summed,), "wide", perm=[0, 1, 3, 2]))
        wide = "wide"
    tall = _gathered(op.rows, op.input.h, wide, "row", nodes, constants)
    if op.beside.any():
        constants |= {"beside": op.beside, "outside": number(op.outside)}
        nodes.append(node("Where", ("beside", "outside", tall)))
    else:
        nodes.append(node("Identity", (tall,)))
    return OrtPlan(tuple(nodes), op.inputs, op.output, constants)


def _gathered(
    table: AxisTable,
    size: int,
    source: str,
    name: str,
    nodes: list[Node],
    constants: dict[str, Any],
) -> str:
    """Writes nodes that resize the `size` rows of an image by a table; what holds the result."""
    if table.copies(size):
        return source
    total = ""
    for tap, (at, weight) in enumerate(table.taken):
        term = f"{name}{tap}"
        constants[f"{term}_at"] = np.ascontiguousarray(at)
        nodes.append(node("Gather", (source, f"{term}_at"), f"{term}_taken", axis=2))
        if len(table.taken) == 1:
            return f"{term}_taken"
        constants[f"{term}_weight"] = np.ascontiguousarray(weight[:, None])
        nodes.append(node("Mul", (f"{term}_taken", f"{term}_weight"), term))
        if total:
            nodes.append(node("Add", (total, term), f"{term}_sum"))
        total = f"{term}_sum" if total else term
    return total


@_ort("onnx")
def _onnx(op: OnnxModel) -> OrtPlan:
    if not op.model:  # predicted from its text, which has no model
        raise UnsupportedError(f"The ONNX model {op.digest} ({op.nodes}) is not here to be run.")
    return OrtPlan((), op.shapes, op.to, model=op.model)


def _count_matmul(ops: MatMulColumns, soc: Soc) -> FeatureColumns:
    """Tiles of whole vectors of columns; a computed b is packed for each product.

    A bias takes a step of its own where there are more axes than two.
    """
    rows = ops.products * ops.m
    turned = ops.trans_a * ops.a_matrices * ops.m + ops.trans_b * ops.b_matrices * ops.n
    added = ops.is_constant * (ops.rank > 2)
    in_panels = columns.round_up(ops.n, soc.cpu.simd_floats)
    return {
        "padded_macs": rows * in_panels * ops.k,
        "rows": rows,
        "ragged": rows * columns.rest(ops.n, soc.cpu.simd_floats),
        "products": ops.products,
        "turned_bytes": 4.0 * turned * (1 - ops.is_constant) * ops.k,
        "packed_bytes": 4.0 * ops.products * (1 - ops.is_constant) * ops.n * ops.k,
        "added": added,
        "added_bytes": 4.0 * added * ops.output_elements,
        "input_bytes": 4.0 * ops.input_elements,
        "output_bytes": 4.0 * ops.output_elements,
        **by_level("weight", 4.0 * ops.weight_elements, soc.cpu.l2_cache_bytes),
    }


def _matmul(op: MatMul) -> OrtPlan:
    """A constant matrix is transposed and scaled once, when it is packed."""
    nodes: list[Node] = []
    a = _upright(nodes, "x0", op.shapes[0]) if op.trans_a else "x0"
    if op.matrix:
        nodes += [node("MatMul", (a, "weight"), "product"), node("Add", ("product", "bias"))]
        return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, pack=partial(_packed, op))
    b = _upright(nodes, "x1", op.shapes[1]) if op.trans_b else "x1"
    if op.alpha == 1:
        nodes.append(node("MatMul", (a, b)))
        return OrtPlan(tuple(nodes), op.shapes, op.out_sizes)
    nodes += [node("MatMul", (a, b), "product"), node("Mul", ("product", "alpha"))]
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, {"alpha": number(op.alpha)})


def _upright(nodes: list[Node], name: str, sizes: Sizes) -> str:
    """A matrix with its last two axes exchanged."""
    rank = len(sizes)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    nodes.append(node("Transpose", (name,), f"{name}_upright", perm=perm))
    return f"{name}_upright"


def _packed(op: MatMul, weights: Weights) -> NamedArrays:
    matrix = weights["weight"].T if op.trans_b else weights["weight"]
    scaled = matrix if op.alpha == 1 else np.float32(op.alpha) * matrix
    return {"weight": np.ascontiguousarray(scaled), "bias": weights["bias"]}


#: The version of ONNX's operators that has attention.
ATTENTION_OPSET = 23


def _count_attention(ops: AttentionColumns, soc: Soc) -> FeatureColumns:
    """Two products for each head, with all scores between them in memory, and those of a mask too.

    A causal mask saves nothing: it is added to the scores like any other.
    """
    rows, lanes = ops.heads * ops.queries, soc.cpu.simd_floats
    keys = columns.round_up(ops.keys, lanes)
    values = columns.round_up(ops.value_features, lanes)
    is_masked = np.maximum(ops.causal, ops.bias_elements > 0)
    scores = 4.0 * rows * ops.keys
    return {
        "padded_macs": rows * (keys * ops.features + ops.keys * values),
        "powers": rows * keys,
        "masked": rows * ops.keys * is_masked,
        "rows": rows,
        "ragged": rows * columns.rest(ops.keys, lanes),
        "products": ops.heads,
        "packed_bytes": 4.0 * ops.heads * ops.keys * (ops.features + ops.value_features),
        "output_bytes": 4.0 * ops.output_elements,
        "score_beyond": beyond(scores, soc.cpu.l2_cache_bytes),
        "score_far": beyond(scores, THIRD_LEVEL * soc.cpu.l2_cache_bytes),
    }


def _attention(op: Attention) -> OrtPlan:
    """A causal mask of later queries is a bias: the node counts queries from the first key.

    The node gives zeros where a query sees no key, so that NaN takes their place where that is
    meant: where the largest of a row of the bias is below what finite numbers become. OpenVINO's
    maximum of infinities is the lowest number.
    """
    nodes: list[Node] = []
    constants: dict[str, NDArray[Any]] = {}
    mask = _bias(op, nodes, constants) if op.has_bias else ""
    has_nan = op.has_bias and not op.zeros
    is_later = op.causal and (op.first > 0 or has_nan)
    if is_later:
        distance = np.arange(op.keys) - np.arange(op.queries)[:, None] - op.first
        constants["seen"] = np.where(distance > 0, np.float32(-np.inf), np.float32(0))
        if mask:
            nodes.append(node("Add", (mask, "seen"), "masked"))
        mask = "masked" if mask else "seen"
    inputs = ("x0", "x1", "x2", *([mask] if mask else []))
    is_causal = int(op.causal and not is_later)
    output = "attended" if has_nan else "y"
    nodes.append(node("Attention", inputs, output, scale=op.scale, is_causal=is_causal))
    if has_nan:
        constants |= {"keys": ints(3), "little": number(1e-37), "far": number(-1e3)}
        constants["nan"] = number(np.nan)
        nodes += [
            node("Mul", (mask, "little"), "shrunk"),
            node("ReduceMax", ("shrunk", "keys"), "best", keepdims=1),
            node("Less", ("best", "far"), "blind"),
            node("Where", ("blind", "nan", output)),
        ]
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, constants, opset=ATTENTION_OPSET)


def _bias(op: Attention, nodes: list[Node], constants: dict[str, NDArray[Any]]) -> str:
    """The node stretches a bias over images and heads, and not over queries."""
    if op.shapes[3][TOKENS] == op.queries:
        return "x3"
    constants["sizes"] = ints(*op.shapes[3][:TOKENS], op.queries, op.keys)
    nodes.append(node("Expand", ("x3", "sizes"), "bias"))
    return "bias"


register(
    CpuOrt("matmul", _matmul, _count_matmul, MatMulColumns),
    CpuOrt("attention", _attention, _count_attention, AttentionColumns),
)
