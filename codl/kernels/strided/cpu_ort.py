"""What only moves elements, in ONNX Runtime."""

from __future__ import annotations

import numpy as np

from codl.ir.onnx_node import Node
from codl.ir.ops.movement import PadNd, SliceNd, TileNd, Transpose, Windows
from codl.kernels.ort import CpuOrt, NamedArrays, OrtPlan, ints, nd_plan, node, number

#: An end of a slice that is beyond any first element.
BEFORE_ALL = -(1 << 31)


def _transpose(op: Transpose) -> OrtPlan:
    transpose = node("Transpose", perm=list(op.perm))
    out = tuple(op.seen[axis] for axis in op.perm)
    return OrtPlan((transpose,), (op.seen,), out)


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


def _tile(op: TileNd) -> OrtPlan:
    return nd_plan(op, [node("Tile", ("x0", "repeats"))], {"repeats": ints(*op.repeats)})


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


VARIANTS = (
    CpuOrt("transpose", _transpose),
    CpuOrt("slice", _slice),
    CpuOrt("tile", _tile),
    CpuOrt("pad", _pad),
    CpuOrt("windows", _windows),
)
