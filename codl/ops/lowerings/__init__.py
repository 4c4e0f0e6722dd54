"""What each ONNX node means: one module a family, each with its `LOWERINGS` by node type."""

from __future__ import annotations

from codl.ops.lowerings import elementwise, movement, resize, vision, windows
from codl.ops.lowerings.base import Lowering

LOWERINGS: dict[str, Lowering] = {
    **vision.LOWERINGS,
    **windows.LOWERINGS,
    **elementwise.LOWERINGS,
    **movement.LOWERINGS,
    **resize.LOWERINGS,
}
