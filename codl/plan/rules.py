"""What planning takes for granted and nobody measures: constants, limits and shortcuts.

Each is there while an ablation shows that it pays (docs/experiments); `codl.plan.switched_off` has
the value of each with which it does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """Of predictions the first, of the search the others."""

    #: Of what a residual add takes on the GPU, the part that is left where a convolution does it:
    #: it reads one tensor, instead of two, and writes none. 0.2 was measured (docs/experiments).
    added_inside: float = 1 / 3
    #: Light layers are ONNX Runtime's where it does most of their neighbours.
    joins_onnx: bool = True
    #: Neighbouring chains that may as well be one are also tried as one.
    merges: bool = True
    #: Ways to split the images of the whole network that are compared in full.
    image_splits: int = 3
    #: Products may run as partial sums.
    adds_terms: bool = True
    #: Networks of at most so many chains are searched a second time, with many labels at a point.
    few_chains: int = 200
    #: A plan that moves work between processors must be predicted to take less than this part of
    #: what one of them takes alone. What one takes is predicted within 10 % for most networks, and
    #: plans of many chains come out slower than predicted more often than faster
    #: (docs/experiments).
    worth: float = 0.9


RULES = Rules()
