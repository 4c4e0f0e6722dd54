"""All passes, in an order in which each finds what the others leave."""

from __future__ import annotations

from codl.graph.folding import fold_affines
from codl.graph.graph import Graph
from codl.graph.passes import drop_aliases, drop_reshapes, merge_reshapes
from codl.graph.patterns import fuse_activations


def simplify(graph: Graph) -> Graph:
    """Drop what computes nothing, and copies that a transpose can do with; fuse and fold."""
    folded = fold_affines(fuse_activations(drop_aliases(graph)))
    return merge_reshapes(drop_reshapes(folded))
