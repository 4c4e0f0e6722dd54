"""Which layers the GPU computes among planar tensors: those that may, where their neighbours do.

So element-wise ops of transformers need no copies, and those among convolutions stay in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from codl.ir import Layer


class Planned(NamedTuple):
    """A layer: whether the planned variant's tensors are planar, or may as well be."""

    layer: Layer
    is_planar: bool
    goes_planar: bool


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
