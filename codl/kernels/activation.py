"""An activation as macros of an OpenCL source: what `ACTIVATE` in `common.cl` expands to."""

from __future__ import annotations

from math import isinf

from codl.ops.base import Activation

CODES = {"none": 0, "relu": 1, "leaky_relu": 2, "clip": 3}


def activation_defines(activation: Activation) -> dict[str, int | float | str]:
    """The macros that fuse `activation` into a kernel's last step."""
    defines: dict[str, int | float | str] = {"ACTIVATION": CODES[activation.kind]}
    if activation.kind in ("leaky_relu", "clip"):
        defines["ACT_ALPHA"] = float_literal(activation.alpha)
    if activation.kind == "clip":
        defines["ACT_BETA"] = float_literal(activation.beta)
    return defines


def float_literal(value: float) -> str:
    """A float32 literal of OpenCL C; without the suffix it would be a double."""
    if isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"({value!r}f)"
