"""Which tensors of an executable last from run to run, as its ops say: caches that they write."""

from __future__ import annotations

from collections.abc import Iterator

from codl.ir.executable import Executable, GpuOp, NcnnNet
from codl.ir.op_text import parse
from codl.ir.types import Processor


def state_tensors(executable: Executable) -> dict[tuple[str, Processor], int]:
    """The numbers of tensors by the name of the state and the processor that keeps it."""
    return {
        (executable.tensors[number].name, processor): number
        for processor, number in (*_of_steps(executable), *_of_nets(executable))
    }


def _of_steps(executable: Executable) -> Iterator[tuple[Processor, int]]:
    for step in executable.steps:
        if isinstance(step, GpuOp):
            yield from (("gpu", step.reads[index].tensor) for index in parse(step.ops[0]).states)


def _of_nets(executable: Executable) -> Iterator[tuple[Processor, int]]:
    for net in executable.nets:
        if isinstance(net, NcnnNet):
            continue
        places = [binding.access.tensor for binding in net.inputs]
        by_name = {executable.tensors[number].name: number for number in places}
        for layer in net.layers:
            for index in parse(layer.op).states:
                yield "cpu", by_name[layer.inputs[index][0]]
