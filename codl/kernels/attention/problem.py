"""What both kernels of attention have in common: their tensors, and the steps of a bias."""

from __future__ import annotations

from typing import Any

from codl.ir.ops.attention import HEADS, TOKENS, Attention
from codl.ir.ops.nd import AxisBlock, Sizes
from codl.ir.types import Storage
from codl.kernels.base import ENDS, TensorArg
from codl.records.soc import Soc

#: Local memory that a work-group takes at most, whatever the device has: several fit on a unit.
LOCAL_BYTES = 48 * 1024


def tensors(op: Attention) -> tuple[TensorArg, ...]:
    """The inputs and the output."""
    return (*(TensorArg("input", index) for index in range(len(op.shapes))), ENDS[1])


def bias_steps(op: Attention) -> tuple[int, int, int]:
    """Elements of the bias from an image, a head and a query to the next; 0 where it stretches."""
    if not op.has_bias:
        return 0, 0, 0
    sizes: Sizes = op.shapes[3]
    image, head, row = (
        AxisBlock.around(sizes, (axis,)).inner if sizes[axis] > 1 else 0
        for axis in (0, HEADS, TOKENS)
    )
    return image, head, row


def defines(op: Attention) -> dict[str, int]:
    given = {"CAUSAL": op.causal, "BIAS": op.has_bias}
    return {name: 1 for name, on in given.items() if on}


def planar(op: Attention, storage: Storage) -> dict[str, Any]:
    """What all plans have."""
    return {"storages": dict.fromkeys(tensors(op), storage), "whole_batch": True}


def local_bytes(soc: Soc) -> int:
    return min(LOCAL_BYTES, soc.gpu.local_mem_bytes)
