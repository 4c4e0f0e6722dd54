"""What goes between engines inside the CPU's shard of a chain: ncnn's nets and ONNX Runtime's.

Ops are measured as nets of their own whose tensors stay packed. Where ONNX Runtime reads what ncnn
computes, that is unpacked to memory of both; what ncnn reads of ONNX Runtime's is packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from codl.ir import Shape
from codl.kernels.ort import CpuOrt
from codl.lower.partition import Part

#: A tensor that goes from one engine to the other, as the data sharing that it is like.
Crossing = tuple[Literal["load", "store"], Shape]


def crossings(parts: Sequence[Part], variants: Sequence[str]) -> list[Crossing]:
    """What goes from one engine to another in a shard, each tensor once.

    `variants` are the names of the parts'.
    """
    in_ort = [name == CpuOrt.name for name in variants]
    if len(set(in_ort)) < 2:
        return []
    made = {part.layer.output: (part, own) for part, own in zip(parts, in_ort, strict=True)}
    found: dict[str, Crossing] = {}
    for part, own in zip(parts, in_ort, strict=True):
        for tensor in part.layer.inputs:
            maker, other = made.get(tensor, (part, own))
            if other != own:
                shape = maker.region.shape(maker.layer.op.output)
                # As one image with the channels of all: packed, it is not computed with.
                joined = shape._replace(n=1, c=shape.n * shape.c)
                found[tensor] = ("load" if other else "store", joined)
    return list(found.values())
