"""An activation as macros of an OpenCL source: what `ACTIVATE` in `common.cl` expands to."""

from __future__ import annotations

from math import isinf

from codl.ops.base import ACTIVATIONS, Activation

CODES = {kind: code for code, kind in enumerate(ACTIVATIONS)}


def activation_defines(activation: Activation) -> dict[str, int | float | str]:
    """The macros that fuse `activation` into a kernel's last step."""
    parameters = zip(("ACT_ALPHA", "ACT_BETA"), activation.parameters, strict=False)
    values = {name: float_literal(value) for name, value in parameters}
    return {"ACTIVATION": CODES[activation.kind], **values}


def float_literal(value: float) -> str:
    """A float32 literal of OpenCL C; without the suffix it would be a double."""
    if isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"({value!r}f)"
