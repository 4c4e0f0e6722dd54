"""What each ONNX node means: one module a family, each with its `LOWERINGS` by node type."""

from __future__ import annotations

from codl.ops.lowerings import (
    elementwise,
    matmul,
    movement,
    norms,
    reductions,
    resize,
    windows,
)
from codl.ops.lowerings.base import Lowering

LOWERINGS: dict[str, Lowering] = {
    **windows.LOWERINGS,
    **elementwise.LOWERINGS,
    **movement.LOWERINGS,
    **resize.LOWERINGS,
    **matmul.LOWERINGS,
    **reductions.LOWERINGS,
    **norms.LOWERINGS,
}
