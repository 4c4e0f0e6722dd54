"""All passes, in an order in which each finds what the others leave."""

from __future__ import annotations

from codl.frontend.graph.attention_patterns import fuse_attention
from codl.frontend.graph.folding import fold_affines
from codl.frontend.graph.graph import Graph
from codl.frontend.graph.group_norms import fuse_group_norms
from codl.frontend.graph.norm_patterns import fuse_norms
from codl.frontend.graph.passes import drop_aliases, drop_reshapes, merge_reshapes, widen_products
from codl.frontend.graph.patterns import fuse_activations
from codl.frontend.graph.rotary_patterns import fuse_rotaries
from codl.frontend.graph.shared_heads import share_heads


def simplify(graph: Graph) -> Graph:
    """Drop what computes nothing, and copies that a transpose can do with; fuse and fold."""
    plain = drop_aliases(graph)
    fused = fuse_group_norms(fuse_rotaries(fuse_norms(fuse_activations(plain))))
    folded = share_heads(fuse_attention(fold_affines(widen_products(fused))))
    return merge_reshapes(drop_reshapes(folded))
