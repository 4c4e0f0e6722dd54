"""What each ONNX node means: one module a family, each with its `LOWERINGS` by node type.

`PARAMETERS` has the positions of the inputs that a lowering wants as constants: not data, but
weights, axes, sizes.
"""

from __future__ import annotations

from codl.frontend.converters import (
    elementwise,
    matmul,
    movement,
    norms,
    reductions,
    resize,
    windows,
)
from codl.frontend.converters.base import Lowering

LOWERINGS: dict[str, Lowering] = {
    **windows.LOWERINGS,
    **elementwise.LOWERINGS,
    **movement.LOWERINGS,
    **resize.LOWERINGS,
    **matmul.LOWERINGS,
    **reductions.LOWERINGS,
    **norms.LOWERINGS,
}

PARAMETERS: dict[str, tuple[int, ...]] = {
    **windows.PARAMETERS,
    **elementwise.PARAMETERS,
    **movement.PARAMETERS,
    **matmul.PARAMETERS,
    **reductions.PARAMETERS,
    **norms.PARAMETERS,
    **resize.PARAMETERS,
}
