"""Fusion rules of neighbouring layers, such as residual adds: lowering's, and counted by plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from codl.ir import Layer
from codl.ir.ops.base import Activation
from codl.ir.ops.eltwise import Eltwise
from codl.kernels.base import LIBRARIES
from codl.records.soc import Soc


def residual_adds(layers: Sequence[Layer], outputs: Collection[str]) -> dict[str, Layer]:
    """The residual add that each convolution among layers could compute, by the convolution's name.

    `outputs` are the tensors that are read by others than these layers.
    """
    places = {layer.output: place for place, layer in enumerate(layers)}
    reads = Counter(name for layer in layers for name in layer.inputs)
    adds = {}
    for add in layers:
        op = add.op
        if not (isinstance(op, Eltwise) and op.mode == "add" and set(op.inputs) == {op.output}):
            continue
        # Of the two that are added the one that is computed later has the other at hand.
        later = max(add.inputs, key=lambda name: places.get(name, -1))
        if later in places and later not in outputs and reads[later] == 1:
            conv = layers[places[later]]
            # A kernel can add to what it computes before an activation, not behind one.
            if (conv.op.kind, conv.op.activation) == ("conv2d", Activation()):
                adds[conv.name] = add
    return adds


def fuses(convolution: Any, add: Any, soc: Soc) -> bool:
    """Whether two GPU variants become one kernel on a SoC: they may, and that is the faster way."""
    slow_on: frozenset[str] = convolution.adds_slowly_on
    return bool(convolution.storage == add.storage) and soc.gpu.type not in slow_on


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


#: Kinds of op whose tensors lie in blocks of channels in every library.
IN_BLOCKS = frozenset({"conv2d", "pooling"})


def packs(kind: str, library: int) -> bool:
    """Whether a library packs what an op of a kind reads, and unpacks what it makes.

    ncnn does so of all tensors; the others do within nets that convolve or pool.
    """
    return library == 0 or kind in IN_BLOCKS
