"""Which layers only give their input other sizes: inside of a chain that is the same memory."""

from __future__ import annotations

import numpy as np

from codl.ir import Network
from codl.plan.region_array import Numbers


def viewed_layers(network: Network) -> Numbers:
    """By layer whose output has its input's elements in their order, the layer that makes that.

    -1 of all others.
    """
    makers = {layer.output: at for at, layer in enumerate(network.layers)}
    viewed = [
        makers.get(layer.inputs[0], -1) if layer.op.keeps_order else -1 for layer in network.layers
    ]
    return np.array(viewed, np.int64)
