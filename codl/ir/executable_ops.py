"""What an executable says of its ops: texts that can be read, of the sizes that they get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from codl.errors import CodlError
from codl.ir.executable import NetLayer
from codl.ir.op_text import parse
from codl.ir.ops.base import Op
from codl.ir.region import Region, Shape
from codl.ir.tensor import Tensor

#: An op's tensors have fewer elements, the padding of a window included.
MOST_ELEMENTS = 1 << 40


class UnfitError(Exception):
    """Of an op: what does not fit, and its value."""


def check_step(texts: Sequence[str], reads: Sequence[Shape], writes: Shape) -> None:
    """A GPU's step: one op, or one and another that reads its result before the inputs left."""
    if not 1 <= len(texts) <= 2:
        raise UnfitError(f"{len(texts)} ops in one step")
    first, *others = (_parsed(text) for text in texts)
    count = len(first.inputs)
    _check_inputs(first, reads[:count])
    result = first.output
    for op in others:
        _check_inputs(op, [result, *reads[count:]])
        result = op.output
    if not others and count != len(reads):
        raise UnfitError(f"{len(reads)} regions are read by {texts[0]!r}")
    if result.elements != writes.elements:
        raise UnfitError(f"{writes} is written by {texts[-1]!r}")


def check_pieces(texts: Sequence[str], held: Iterable[tuple[Tensor, Region]]) -> None:
    """What kernels read and write of planar tensors, which they see as arrays, is in one piece."""
    for tensor, region in held:
        if not tensor.serves(region):
            raise UnfitError(f"{tensor.name} ({region}) lies in several pieces for {texts[0]!r}")


def check_weight(text: str, name: str, packed: int) -> None:
    """An array of so many elements, packed for the kernels of an op, under the name of a weight.

    Kernels read all of a weight; packing adds elements to it and leaves out none.
    """
    wanted = prod(_parsed(text).weight_shapes.get(name, (0,)))
    if packed < wanted:
        raise UnfitError(f"{packed} elements of the {name} of {text!r}, which has {wanted}")


def check_layers(
    layers: Sequence[NetLayer], inputs: Mapping[str, tuple[Region, Shape]]
) -> dict[str, tuple[Region, Shape]]:
    """The layers of a net in order, of what enters; returns the regions of all that is there.

    Regions come with the shapes of their tensors, of which the width alone counts.
    """
    known = dict(inputs)
    for layer in layers:
        op, shapes = _parsed(layer.op), []
        for name, region in layer.inputs:
            if name not in known or not known[name][0].covers(region) or region.is_empty:
                raise UnfitError(f"{layer.name!r} reads {name} ({region}), which is not there")
            shapes.append(region.shape(known[name][1]))
        _check_inputs(op, shapes)
        if layer.region.shape(op.output) != op.output:
            raise UnfitError(f"{layer.region} is written by {layer.op!r}")
        known[layer.output] = layer.region, op.output
    return known


def _parsed(text: str) -> Op:
    """An op that can be computed: whatever its text does to arithmetic is told as a problem."""
    try:
        op = parse(text)
        sizes = [prod(shape) for shape in (*op.inputs, op.output, *op.weight_shapes.values())]
        pad = getattr(op, "pad", ())
        padded = [(shape.h + sum(pad)) * (shape.w + sum(pad)) for shape in op.inputs]
    except CodlError as error:
        raise UnfitError(str(error)) from error
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnfitError(f"the op {text!r} cannot be computed ({error!r})") from error
    if max(*sizes, *padded) >= MOST_ELEMENTS or min(pad, default=0) < 0:
        raise UnfitError(f"the sizes of {text!r}")
    return op


def _check_inputs(op: Op, given: Sequence[Shape]) -> None:
    sizes = [shape.elements for shape in given], [shape.elements for shape in op.inputs]
    if sizes[0] != sizes[1]:
        raise UnfitError(f"{sizes[0]} elements are read by an op {op.kind} of {sizes[1]}")
