"""Inputs for measuring and comparing: made from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir import Array, Network

SEED = 7


def random_inputs(network: Network, seed: int = SEED) -> dict[str, NDArray[Any]]:
    """Uniform in 0 ... 1, as images are, from a seed; integers are 0 or 1."""
    random = np.random.default_rng(seed)
    inputs = {n: random.random(tuple(s), np.float32) for n, s in network.inputs.items()}
    return {name: _typed(value, network.types.get(name)) for name, value in inputs.items()}


def _typed(value: Array, kind: str | None) -> NDArray[Any]:
    """Floats as another type; what is no float is rounded."""
    if kind is None:
        return value
    dtype = np.dtype(kind)
    return (value if dtype.kind == "f" else np.rint(value)).astype(dtype)
