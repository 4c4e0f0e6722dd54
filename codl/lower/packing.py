"""What nets of the CPU pack of what they read, and unpack of what others read of them."""

from __future__ import annotations

from codl.ir import Shape
from codl.ir.executable import Access, Executable, NcnnNet, Net, OpenVinoNet
from codl.ir.op_text import parse
from codl.ir.types import Direction
from codl.kernels.base import Backend
from codl.lower.rules import loading, packs, storing


def library_of(net: Net) -> Backend:
    """Which library runs a net."""
    if isinstance(net, NcnnNet):
        return "ncnn"
    return "openvino" if isinstance(net, OpenVinoNet) else "ort"


def packed(executable: Executable, net: Net) -> list[tuple[Direction, Shape]]:
    """Every packing (as `loading` calls it) and unpacking in a run of a net, with the shape.

    ncnn packs what enters a net, and unpacks what leaves. In the others' nets ops that go in blocks
    of channels pack what no such op of the net has made, and what those make is unpacked.
    """

    def shape(access: Access) -> Shape:
        return access.region.shape(executable.tensors[access.tensor].shape)

    def name(access: Access) -> str:
        return executable.tensors[access.tensor].name

    if isinstance(net, NcnnNet):
        loads = [shape(access) for _, access in net.inputs]
        stores = [shape(access) for _, access in net.outputs]
    else:
        ops = {layer.output: parse(layer.op) for layer in net.layers}
        in_blocks = [layer for layer in net.layers if packs(ops[layer.output], -1)]
        made = {layer.output for layer in in_blocks}
        read = dict.fromkeys(n for x in in_blocks for n, _ in x.inputs if n not in made)
        outer = {name(end.access): shape(end.access) for end in net.inputs}
        loads = [outer[n] if n in outer else ops[n].output for n in read]
        stores = [shape(end.access) for end in net.outputs if name(end.access) in made]
    library = library_of(net)
    moves = [(loading(library), each) for each in loads]
    return [*moves, *((storing(library), each) for each in stores)]
