"""Resize on the GPU, with tables of source rows and columns for each output pixel."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from codl.ir.columns import ceil_div
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.resize import AxisTable, Resize
from codl.ir.ops.window import Size2
from codl.ir.records.soc import Soc
from codl.kernels.base import ENDS, Choice, ConstantArg, KernelPlan
from codl.kernels.cpu import CpuKernel, NcnnLayer, OrtPlan, node, of_onnx
from codl.kernels.kernel import BLOCKS, Grid, Kernel, of_every_storage
from codl.kernels.strided import as_ints

#: The most taps of a work-item on a CPU: a few us.
LONGEST_STRIP = 4096
TABLES = ("rows", "row_weights", "columns", "column_weights")


class GpuDirect(Kernel):
    op_kind = "resize"
    source = "resize/gpu_direct.cl"
    storages = BLOCKS

    def counts(self, op: Resize, soc: Soc, choice: Choice) -> dict[str, float]:
        blocks, pixels = soc.gpu.blocks(op.input.c), op.size.h * op.size.w
        channels = self.stored(blocks * soc.gpu.vector_width)
        return {
            "tap_blocks": pixels * blocks * op.taps**2,
            "output_blocks": pixels * blocks,
            **_grid(op, soc).features,
            "input_bytes": channels * op.input.h * op.input.w,
            "output_bytes": channels * pixels,
        }

    def build(self, op: Resize, soc: Soc, choice: Choice) -> KernelPlan:
        sizes = {"in_w": op.input.w, "out_w": op.size.w, "pixels": op.size.h * op.size.w}
        tables = map(ConstantArg, TABLES)
        resize = _grid(op, soc).launch("resize_direct", *ENDS, *tables, **sizes)

        def pack(weights: Weights) -> dict[str, Array]:
            axes = ((as_ints(axis.indices), axis.weights) for axis in (op.rows, op.columns))
            return dict(zip(TABLES, chain(*axes), strict=True))

        plan = self.assemble(op, soc, resize, macros={"TAPS": op.taps})
        return replace(plan, pack=pack)  # tables stay float32 in float16 storage


def _grid(op: Resize, soc: Soc) -> Grid:
    most = max(1, LONGEST_STRIP // op.taps**2)
    return Grid.of(op.size.h * op.size.w, soc.gpu.blocks(op.input.c), most, soc)


# The CPU.


#: ncnn's codes of Interp, and its coordinate modes.
INTERP = {"nearest": 1, "linear": 2}
COORDS = {"nearest": ("asymmetric",), "linear": ("half_pixel", "align_corners")}


def _refuse_ncnn(op: Resize) -> str | None:
    if op.size == (op.input.h, op.input.w):
        return "ncnn hands out its input where sizes stay as they are"
    if op.mode == "linear" and min(op.input.h, op.input.w) < 2:
        return f"ncnn's linear resize needs 2 rows and columns, got {op.input}"
    if _coords(op) is None:
        return f"ncnn reads other rows or columns than coords={op.coords} of this size"
    return None


def _ncnn(op: Resize) -> NcnnLayer:
    corners = int(_coords(op) == "align_corners")
    parameters = {0: INTERP[op.mode], 3: op.size.h, 4: op.size.w, 6: corners}
    return NcnnLayer("Interp", parameters, after=op.activation)


def _coords(op: Resize) -> str | None:
    """ncnn's coordinate mode with equal results, if any."""
    for coords in COORDS[op.mode]:
        ncnns = Resize(
            inputs=op.inputs, size=Size2(*op.size), mode=op.mode, coords=coords, rounding="floor"
        )
        pairs = ((ncnns.rows, op.rows), (ncnns.columns, op.columns))
        if all(a.is_close(b, 1e-5) for a, b in pairs):
            return coords
    return None


def _count_ncnn(op: Resize, soc: Soc) -> dict[str, float]:
    blocks = ceil_div(op.output.c, soc.cpu.simd_floats)
    return {
        "tap_blocks": op.size.h * op.size.w * blocks * op.taps**2,
        "rows": op.size.h * blocks,
        "input_bytes": op.input.bytes,
        "output_bytes": op.output.bytes,
    }


def _onnx(op: Resize) -> OrtPlan:
    """The op as ONNX nodes: along each axis a weighted sum of gathered rows.

    A matrix product would spread NaN over all rows. Columns are gathered as rows of the transposed
    image, in a third of the time.
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
    """Add nodes that resize the `size` rows of an image by a table; returns the result's name."""
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


VARIANTS = (
    CpuKernel("resize", _ncnn, _count_ncnn, refuse=_refuse_ncnn),
    *of_every_storage(GpuDirect),
    *of_onnx("resize", _onnx),
)
