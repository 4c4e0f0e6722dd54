"""Rules shared by lowering and the planner: fused adds, nets of libraries, packed tensors."""

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

#: By kind of op, the element-wise op that its kernels may compute as well.
MODES = {"conv2d": ("add",), "matmul": ("add", "mul")}


def residual_adds(layers: Sequence[Layer], outputs: Collection[str]) -> dict[str, Layer]:
    """The element-wise op that the kernels of a layer could compute as well, by the layer's name.

    A convolution may compute a residual add. A product with a constant matrix may compute an add or
    a product of elements. `outputs` are the tensors that other layers than these read.
    """
    places = {layer.output: place for place, layer in enumerate(layers)}
    reads = Counter(name for layer in layers for name in layer.inputs)
    adds = {}
    for add in layers:
        op = add.op
        if not (isinstance(op, Eltwise) and len(op.inputs) == 2 and set(op.inputs) == {op.output}):
            continue
        # The input that is computed later: by then the other input exists.
        later = max(add.inputs, key=lambda name: places.get(name, -1))
        if later in places and later not in outputs and reads[later] == 1:
            conv = layers[places[later]]
            # Kernels add before the activation, and multiply after it.
            active = conv.op if op.mode == "add" else op
            if op.mode in MODES.get(conv.op.kind, ()) and active.activation == Activation():
                adds[conv.name] = add
    return adds


def active(product: Op, add: Op) -> Op:
    """A product with the activation that its kernels apply when they compute `add` as well.

    That is the activation of an add, which comes last; before a multiplication the product keeps
    its own.
    """
    return product.with_activation(add.activation) if mode_of(add) == "add" else product


def mode_of(add: Op) -> str:
    """The mode of a fused element-wise op: `add` or `mul`."""
    assert isinstance(add, Eltwise)
    return add.mode


def fuses(convolution: Any, add: Any, soc: Soc) -> bool:
    """True where a SoC computes a convolution and an add in one kernel of these variants."""
    adds_on: frozenset[str] = convolution.adds_on
    return bool(convolution.storage == add.storage) and soc.gpu.type in adds_on


def net_level(least: Any, is_read: Any, *, is_model: bool, library: Any) -> Any:
    """The level of the net of a layer; nets run from the highest level to the lowest.

    Levels belong to the libraries in turn (level modulo the number of `LIBRARIES`). A layer gets
    the lowest level of its own `library` that is at least `least`, the highest level of its
    readers. An ONNX subgraph (`is_model`) has a net of its own, above the level of its readers if
    it `is_read`. So libraries change rarely, and the readers of a layer alone decide its net.
    Arguments are integers, or arrays with one element for each of several chains.
    """
    level = least + (is_read if is_model else 0)
    return level + (library - level) % len(LIBRARIES)


#: Kinds of op that every library computes in blocks of channels, and kinds that keep such blocks
#: if their inputs are images.
IN_BLOCKS = frozenset({"conv2d", "pooling"})
BLOCKS_KEPT = frozenset({"concat", "conv_transpose2d", "eltwise", "resize"})


def packs(op: Op, library: int) -> bool:
    """True where a library packs the inputs of an op, and unpacks its output.

    ncnn (library 0) packs all tensors; other libraries pack for convolutions and poolings.
    """
    is_image = op.kind in BLOCKS_KEPT and op.output.w > 1
    return library == 0 or op.kind in IN_BLOCKS or is_image


def loading(library: str) -> Direction:
    """The name of the data-sharing cost of packing a library's input."""
    return "load" if library == "ncnn" else f"load_{library}"  # type: ignore[return-value]


def storing(library: str) -> Direction:
    """The name of the data-sharing cost of unpacking a library's output."""
    return "store" if library == "ncnn" else f"store_{library}"  # type: ignore[return-value]
