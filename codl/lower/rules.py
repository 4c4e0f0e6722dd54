"""Fusion rules of neighbouring layers, such as residual adds: lowering's, and counted by plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from codl.ir import Layer, Op
from codl.ir.ops.base import Activation
from codl.ir.ops.eltwise import Eltwise
from codl.ir.types import Direction
from codl.kernels.base import LIBRARIES
from codl.records.soc import Soc

#: By kind of op what its kernels may compute of what follows it: sums and products of elements.
MODES = {"conv2d": ("add",), "matmul": ("add", "mul")}


def residual_adds(layers: Sequence[Layer], outputs: Collection[str]) -> dict[str, Layer]:
    """The residual add that each convolution among layers could compute, by the convolution's name.

    And that, or the product of elements, which each product with a constant matrix could. `outputs`
    are the tensors that are read by others than these layers.
    """
    places = {layer.output: place for place, layer in enumerate(layers)}
    reads = Counter(name for layer in layers for name in layer.inputs)
    adds = {}
    for add in layers:
        op = add.op
        if not (isinstance(op, Eltwise) and len(op.inputs) == 2 and set(op.inputs) == {op.output}):
            continue
        # Of the two that are added the one that is computed later has the other at hand.
        later = max(add.inputs, key=lambda name: places.get(name, -1))
        if later in places and later not in outputs and reads[later] == 1:
            conv = layers[places[later]]
            # A kernel can add to what it computes before an activation, and multiply behind one.
            active = conv.op if op.mode == "add" else op
            if op.mode in MODES.get(conv.op.kind, ()) and active.activation == Activation():
                adds[conv.name] = add
    return adds


def active(product: Op, add: Op) -> Op:
    """A product as its kernels compute it with an add: they have the add's activation, the last.

    Where its elements are multiplied it keeps its own, which comes before.
    """
    return product.with_activation(add.activation) if mode_of(add) == "add" else product


def mode_of(add: Op) -> str:
    """What is done with the other input of what is fused."""
    assert isinstance(add, Eltwise)
    return add.mode


def fuses(convolution: Any, add: Any, soc: Soc) -> bool:
    """Whether two GPU variants become one kernel on a SoC: they may, and that is the faster way."""
    adds_on: frozenset[str] = convolution.adds_on
    return bool(convolution.storage == add.storage) and soc.gpu.type in adds_on


def net_level(least: Any, is_read: Any, *, is_model: bool, library: Any) -> Any:
    """The level of the CPU's net that a layer is in: nets run from the highest level to the lowest.

    Levels are of `LIBRARIES` in turn, and each layer has the lowest of its own `library` from
    `least` on, which its readers allow: they have the same or a lower one. A model of its own is
    alone in a net of a higher level than its readers, if any, and a lower one than what it reads.
    So libraries change seldom, and which net a layer is in is known from the layers behind it in
    its chain. All are numbers, or arrays of one for each of some chains.
    """
    level = least + (is_read if is_model else 0)
    return level + (library - level) % len(LIBRARIES)


#: Kinds of op that every library computes in blocks of channels; and those that it computes so of
#: images, where what convolves is before them.
IN_BLOCKS = frozenset({"conv2d", "pooling"})
BLOCKS_KEPT = frozenset({"concat", "conv_transpose2d", "eltwise", "resize"})


def packs(op: Op, library: int) -> bool:
    """Whether a library packs what an op reads, and unpacks what it makes.

    ncnn does so of all tensors; the others do within nets that convolve or pool.
    """
    is_image = op.kind in BLOCKS_KEPT and op.output.w > 1
    return library == 0 or op.kind in IN_BLOCKS or is_image


def loading(library: str) -> Direction:
    """How what a library packs is called among the ways of data sharing."""
    return "load" if library == "ncnn" else f"load_{library}"  # type: ignore[return-value]


def storing(library: str) -> Direction:
    """And what it unpacks."""
    return "store" if library == "ncnn" else f"store_{library}"  # type: ignore[return-value]
