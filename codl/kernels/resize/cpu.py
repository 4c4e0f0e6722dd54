"""Resize on the CPU: ncnn's, where it reads the same rows and columns."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir.ops.resize import AxisTable, Resize
from codl.ir.ops.window import Size2
from codl.kernels.ncnn import NcnnLayer, round_up
from codl.kernels.variant import OnCpu
from codl.records.soc import Soc

#: ncnn's codes of Interp, and the coordinates that it has.
CODES = {"nearest": 1, "linear": 2}
COORDS = {"nearest": ("asymmetric",), "linear": ("half_pixel", "align_corners")}


class CpuDirect(OnCpu):
    """What a part of rows needs of the input is often not what ncnn would read of it."""

    name: ClassVar[str] = "cpu_direct"
    op_kind: ClassVar[str] = "resize"

    def refusal(self, op: Resize, soc: Soc) -> str | None:
        if op.mode not in CODES:
            return f"ncnn's cubic resize has other weights, got mode={op.mode}"
        if op.size == (op.input.h, op.input.w):
            return "ncnn hands out its input where sizes stay as they are"
        if op.mode == "linear" and min(op.input.h, op.input.w) < 2:
            return f"ncnn's linear resize needs 2 rows and columns, got {op.input}"
        if _coords(op) is None:
            return f"ncnn reads other rows or columns than coords={op.coords} of this size"
        return None

    def plan(self, op: Resize, soc: Soc) -> NcnnLayer:
        parameters = {
            0: CODES[op.mode],
            3: op.size.h,
            4: op.size.w,
            6: int(_coords(op) == "align_corners"),
        }
        return NcnnLayer("Interp", parameters, after=op.activation)

    def features(self, op: Resize, soc: Soc) -> dict[str, float]:
        lanes = soc.cpu.simd_floats
        blocks = round_up(op.output.c, lanes) // lanes
        return {
            "tap_blocks": float(op.size.h * op.size.w * blocks * op.taps**2),
            "rows": float(op.size.h * blocks),
            "input_bytes": float(op.input.bytes),
            "output_bytes": float(op.output.bytes),
        }


def _coords(op: Resize) -> str | None:
    """The coordinates by which ncnn computes the same, if there are any."""
    for coords in COORDS[op.mode]:
        own = Resize(inputs=op.inputs, size=Size2(*op.size), mode=op.mode, coords=coords,
                     rounding="floor")  # fmt: skip
        pairs = ((own.rows, op.rows, op.input.h), (own.columns, op.columns, op.input.w))
        if all(_are_alike(a, b, n) for a, b, n in pairs):
            return coords
    return None


def _are_alike(a: AxisTable, b: AxisTable, size: int) -> bool:
    """Whether two tables read the same of an input; most often they are equal to the digit."""
    if np.array_equal(a.indices, b.indices) and np.array_equal(a.weights, b.weights):
        return True
    return np.allclose(a.matrix(size), b.matrix(size), atol=1e-5)
