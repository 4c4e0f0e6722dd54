"""Ops of any rank as models have them, and parts of those that processors may get."""

from __future__ import annotations

from hypothesis import strategies as st

from codl.ir import Op, Region, Span, parse
from codl.ir.ops.base import AXES

#: By the op, the dimensions that cut it.
DIMS = {
    # Products by tokens, features, batch and head; each operand stored either way.
    "matmul in=37x24 matrix=24x21": "N OC",
    "matmul in=24x37 matrix=21x24 trans_a=1 trans_b=1 act=gelu": "N OC",
    "matmul in=1x37x24 matrix=24x21": "OC H",
    "matmul in=2x37x24 matrix=21x24 trans_b=1": "N OC H",
    "matmul in=1x24x37 matrix=24x21 trans_a=1": "OC H",
    "matmul in=37x24,24x21": "N OC",
    "matmul in=37x24,21x24 trans_b=1 alpha=0.5": "N OC",
    "matmul in=2x37x24,24x21": "N OC H",
    "matmul in=1x6x37x8,1x6x8x29": "OC H",
    "matmul in=3x6x37x8,6x29x8 trans_b=1": "N OC H",
    "matmul in=3x1x37x8,1x6x8x29": "N OC H",
    "matmul in=1x6x8x37,1x6x8x29 trans_a=1": "OC",
    # Attention by batch, head and query, also where heads share keys, or queries see a part.
    "attention in=1x6x17x8,1x6x29x8,1x6x29x5 scale=0.4": "OC H",
    "attention in=2x3x17x8,2x1x29x8,2x1x29x5,1x3x1x29": "N OC H",
    "attention in=2x3x17x8,2x3x29x8,2x3x29x5 causal=1 first=12": "N OC H",
    # What does not mix some axes.
    "softmax in=1x6x37x29 axes=3": "OC H",
    "softmax in=2x6x37 axes=1 log=1": "N H",
    "norm in=1x37x24,1x1x24,1x1x24 axis=2": "OC",
    "norm in=37x24,1x24,1x24 axis=1 center=0": "N",
    "norm in=2x5x9x24,1x1x1x24,1x1x1x24 axis=3": "N OC H",
    "reduce in=2x9x24 mode=mean axes=2": "N OC",
    "reduce in=2x9x5x24 mode=max axes=1": "N OC",
    "reduce in=2x9x24 mode=sum axes=1 keepdims=1": "N H",
    "gather in=30x24,1x17 axis=0": "OC H",
    "gather in=6x30x5,4 axis=1": "N OC H",
    "concat_nd in=4x7x5x2,4x7x6x2 axis=2": "N OC",
    "tile in=3x1x5 repeats=1x8x2": "N OC",
    "pad in=5x9x7 before=0x1x0 after=0x0x2": "N",
    # What carries a split to other axes, where it stays a box.
    "reshape in=37x24 to=1x37x24": "OC H",
    "reshape in=1x37x24 to=37x24": "N OC",
    "reshape in=1x37x24 to=1x37x6x4": "OC H",
    "reshape in=1x37x6x4 to=1x37x24": "OC",
    "reshape in=4x9x6 to=36x6": "OC",
    "reshape in=36x6 to=4x9x6": "N H",
    "reshape in=8x9 to=6x12": "",
    "transpose in=1x37x6x4 perm=0x2x1x3": "OC H",
    "transpose in=1x37x6x4 perm=0x2x3x1": "OC",
    "transpose in=37x24 perm=1x0": "N OC",
    "transpose in=1x37x24 axes=1x37x6x4 perm=0x2x1x3": "OC H",
    "transpose in=1x6x37x4 perm=0x2x1x3 to=1x37x24": "OC",
    "transpose in=1x37x72 axes=1x37x3x6x4 perm=2x0x3x1x4": "N",
    "slice in=1x37x24 starts=0x3x0 steps=1x2x1 to=1x15x24": "OC H",
    "slice in=9x8x7 starts=8x0x6 steps=-2x3x-1 to=4x3x5": "N OC H",
}
OPS = [parse(text) for text in DIMS]
CUT = [op for op in OPS if op.dims]


@st.composite
def parts(draw: st.DrawFn, op: Op) -> Region:
    """A box anywhere in the output, cut along some of the op's dimensions."""
    part = Region.whole(op.output)
    for dim in op.dims:
        axis = AXES[dim]
        size = getattr(part, axis).size
        first = draw(st.integers(0, size - 1))
        part = part._replace(**{axis: Span(first, draw(st.integers(first + 1, size)))})
    return part
