"""Reductions, softmax and norms, of any axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from codl.frontend.converters.base import (
    Convert,
    ConvertedOp,
    attribute,
    converts,
    parameter_ints,
    unsupported,
)
from codl.frontend.converters.operands import Operand, combine, function
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.nd import Sizes
from codl.ir.ops.pooling import Pool2d
from codl.ir.ops.reductions import Reduce, Softmax
from codl.ir.ops.window import Size2
from codl.ir.region import as_nchw

#: Reductions and their modes.
MODES: Mapping[str, str] = {
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
    "ReduceSumSquare": "sum_square",
}
#: The mode of the first of several reductions, and of all others but the last, where it is another.
FIRST = {"log_sum": "sum"}
LATER = {"sum_square": "sum", "log_sum": "sum"}
LAST = {"sum_square": "sum"}
#: Reductions of whole images are poolings, which every processor has kernels for.
POOLINGS: Mapping[str, Literal["max", "avg"]] = {"mean": "avg", "max": "max"}


def reduced(
    name: str, sizes: Sizes, mode: str, axes: Sizes, output: str, *, keepdims: bool
) -> list[ConvertedOp]:
    """Steps that reduce a tensor along any axes: one for each run of adjacent ones, last first.

    Along no axis, there remains what the mode does with a single element.
    """
    if not axes:
        sizes, axes, keepdims = (*sizes, 1), (len(sizes),), False
    steps = []
    runs = list(_runs(sizes, axes))
    for index, run in enumerate(reversed(runs)):
        first, last = index == 0, index == len(runs) - 1
        table = {} if first and last else FIRST if first else LAST if last else LATER
        op = Reduce(shapes=(sizes,), mode=table.get(mode, mode), axes=run, keepdims=keepdims)
        target = output if last else f"{output}.{index}"
        steps.append(ConvertedOp(op, (name,), target))
        name, sizes = target, op.out_sizes
    return steps


def _runs(sizes: Sizes, axes: Sizes) -> Iterator[Sizes]:
    """Runs of adjacent axes, in order."""
    run: list[int] = []
    for axis in sorted({axis % len(sizes) for axis in axes}):
        if run and axis != run[-1] + 1:
            yield tuple(run)
            run = []
        run.append(axis)
    yield tuple(run)


def _reduce(mode: str) -> Convert:
    def convert(graph: Graph, node: Node) -> list[ConvertedOp]:
        sizes = tuple(graph.shapes[node.inputs[0]])
        axes = parameter_ints(graph, node, "axes", 1)
        if not axes:
            axes = () if attribute(node, "noop_with_empty_axes", 0) else tuple(range(len(sizes)))
        keepdims = bool(attribute(node, "keepdims", 1))
        whole = len(sizes) == 4 and {axis % 4 for axis in axes} == {2, 3}
        if whole and mode in POOLINGS:
            op = Pool2d(inputs=(as_nchw(sizes),), mode=POOLINGS[mode], kernel=Size2(*sizes[2:]))
            return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]
        return reduced(node.inputs[0], sizes, mode, axes, node.outputs[0], keepdims=keepdims)

    return convert


def _softmax(*, log: bool) -> Convert:
    """Along one axis; up to opset 12, along all axes from one on."""

    def convert(graph: Graph, node: Node) -> list[ConvertedOp]:
        sizes = tuple(graph.shapes[node.inputs[0]]) or (1,)
        flat = graph.opset < 13
        axis = int(attribute(node, "axis", 1 if flat else -1)) % len(sizes)
        axes = tuple(range(axis, len(sizes))) if flat else (axis,)
        op = Softmax(shapes=(sizes,), axes=axes, log=log)
        return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]

    return convert


def _norm_mode(node: Node) -> str:
    power = int(attribute(node, "p", 2))
    if power not in (1, 2):
        raise unsupported(node, f"p must be 1 or 2, got {power}.")
    return f"l{power}"


@converts("GlobalLpPool")
def _global_lp_pool(graph: Graph, node: Node) -> list[ConvertedOp]:
    sizes = tuple(graph.shapes[node.inputs[0]])
    axes = tuple(range(2, len(sizes)))
    return reduced(node.inputs[0], sizes, _norm_mode(node), axes, node.outputs[0], keepdims=True)


@converts("LpNormalization")
def _lp_normalization(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Divided by its norm; where that is 0, by 1.

    No least norm stands in for the 0: float16 has none that float32 would not call large.
    """
    sizes, output = tuple(graph.shapes[node.inputs[0]]), node.outputs[0]
    axis = int(attribute(node, "axis", -1)) % len(sizes)
    steps = reduced(
        node.inputs[0], sizes, _norm_mode(node), (axis,), f"{output}.norm", keepdims=True
    )
    norm = tuple(1 if i == axis else size for i, size in enumerate(sizes))
    found, sign, none, divisor = (
        Operand(f"{output}.{word}", norm) for word in ("norm", "sign", "none", "divisor")
    )
    return [
        *steps,
        function("sign", found, sign.name),
        combine(node, "sub", (Operand.number(1.0), sign), none.name),
        combine(node, "add", (found, none), divisor.name),
        combine(node, "div", (Operand.of(graph, node.inputs[0]), divisor), output),
    ]


converts("Softmax")(_softmax(log=False))
converts("LogSoftmax")(_softmax(log=True))
for _node_type, _mode in MODES.items():
    converts(_node_type, parameters=(1,))(_reduce(_mode))
