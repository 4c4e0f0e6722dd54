"""Activations of GPU kernels: the macros behind `ACTIVATE` in `common.cl`, and their operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import ACTIVATIONS, Activation, Op

CODES = {kind: code for code, kind in enumerate(ACTIVATIONS)}
#: Functions that are no few comparisons and products, and about how long they take in exponentials.
EXPONENTIALS: Mapping[str, float] = {
    "sigmoid": 1.0,
    "silu": 1.0,
    "gelu_tanh": 1.0,
    "tanh": 2.0,
    "elu": 2.0,
    "erf": 2.0,
    "gelu": 2.5,
}
_KIND = attrgetter("activation.kind")


def exponentials(ops: Sequence[Op]) -> NDArray[np.float64]:
    """What the activations of ops compute in all, in exponentials, shaped (ops)."""
    each = np.array([EXPONENTIALS.get(kind, 0.0) for kind in map(_KIND, ops)])
    for at in np.flatnonzero(each).tolist():
        each[at] *= ops[at].output.elements
    return each


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
