"""Which layers the GPU computes among planar tensors: those that may, where their neighbours do.

So element-wise ops of transformers need no copies, and those among convolutions stay in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from codl.ir import Layer, Network
from codl.ir.fallbacks import those_of
from codl.plan.candidate_chain import Flags
from codl.plan.cost_model import CostModel


class Planned(NamedTuple):
    """A layer: whether the planned variant's tensors are planar, or may as well be."""

    layer: Layer
    is_planar: bool
    goes_planar: bool


def planar_layers(network: Network, cost: CostModel) -> Flags:
    """By layer whether the GPU computes it on planar tensors, in a variant for such."""
    layers, planned = network.layers, []
    cost.prefetch([layer.op for layer in layers], "gpu")
    for layer in layers:
        fastest = next(iter(cost.fastest_by_storage(layer.op, "gpu").items()), None)
        if fastest is None:
            continue
        storage, own = fastest
        wrong = {one.variant for one in those_of(cost.soc.fallbacks, layer.op, "gpu")}
        is_planar = storage is not None and storage.layout == "planar"
        planned.append(Planned(layer, is_planar, own.among_planar not in (None, *wrong)))
    found = computed_planar(planned)
    return np.array([layer.name in found for layer in layers], np.bool_)


def computed_planar(planned: Sequence[Planned]) -> set[str]:
    """The layers, by name, that may go planar, and of whose tensors more are planar than not.

    That is as the layers make them that have no choice, or want them; `planned` are in order.
    """
    wanted: dict[str, bool] = {}
    for layer, is_planar, goes_planar in reversed(planned):
        want = wanted.get(layer.output) if goes_planar else is_planar
        if want is not None:
            wanted |= dict.fromkeys((*layer.inputs, layer.output), want)
    found: set[str] = set()
    for layer, _, goes_planar in planned:
        if goes_planar:
            known = [wanted[name] for name in (*layer.inputs, layer.output) if name in wanted]
            is_planar = 2 * sum(known) > len(known)
            wanted[layer.output] = is_planar
            if is_planar:
                found.add(layer.name)
    return found
