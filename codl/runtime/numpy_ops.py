"""What a GPU's step or a CPU's net computes, by the references of its ops, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir.executable import Access, Executable, GpuOp, Net, NetLayer
from codl.ir.op_text import parse
from codl.ir.ops.base import Op, Weights
from codl.ir.ops.onnx_model import INPUT, OUTPUT, OnnxModel
from codl.ir.region import Region, Span
from codl.lower.onnx import MODEL

Values = NDArray[np.float64]
#: By tensor, a region of it and what it holds.
Known = dict[str, tuple[Region, Values]]
#: Of a tensor that is not there.
NOTHING, EMPTY = Region(Span(0, 0), Span(0, 0), Span(0, 0)), np.empty((0, 0, 0, 0))


class References:
    """Computes parts of one executable from values that were read."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable

    def step(self, step: GpuOp, inputs: Sequence[Values]) -> Values:
        """What a step writes; an op behind the first one gets its result, and the inputs left."""
        first, *others = (parse(text) for text in step.ops)
        count = len(first.inputs)
        result = self._compute(first, step.label, inputs[:count], step.constants)
        for op in others:
            result = self._compute(op, step.label, [result, *inputs[count:]], None)
        return result

    def states(self, step: GpuOp, inputs: Sequence[Values]) -> list[tuple[Access, Values]]:
        """What a step leaves in those of its inputs that it writes in place."""
        op = parse(step.ops[0])
        new = op.updated(
            [value.reshape(own) for value, own in zip(inputs, op.inputs, strict=False)]
        )
        return [(step.reads[index], value) for index, value in zip(op.states, new, strict=True)]

    def net(self, net: Net, known: Known) -> Known:
        """All that is known when a net has run on what was `known` before."""
        known = dict(known)
        for layer in net.layers:
            inputs = [self._part(layer, known, *pair) for pair in layer.inputs]
            op = self._with_model(parse(layer.op), layer.constants)
            value = self._compute(op, layer.name, inputs, layer.constants)
            shaped = [own.reshape(shape) for own, shape in zip(inputs, op.inputs, strict=True)]
            for index, new in zip(op.states, op.updated(shaped), strict=True):
                known[layer.inputs[index][0]] = layer.inputs[index][1], new
            known[layer.output] = layer.region, value
        return known

    def _part(self, layer: NetLayer, known: Known, tensor: str, region: Region) -> Values:
        held, values = known.get(tensor, (NOTHING, EMPTY))
        if not held.covers(region):
            raise CodlError(
                f"The layer {layer.name!r} of a net reads {tensor} ({region}); there is {held}."
            )
        return values[region.within(held).slices]

    def _compute(
        self, op: Op, label: str, inputs: Sequence[Values], constants: int | None
    ) -> Values:
        if len(inputs) != len(op.inputs):
            raise CodlError(f"{label!r} reads {len(inputs)} regions, its op {len(op.inputs)}.")
        shaped = [value.reshape(shape) for value, shape in zip(inputs, op.inputs, strict=True)]
        if isinstance(op, OnnxModel):
            return _by_onnx_runtime(op, shaped)
        return op.reference(shaped, self._weights(op, label, constants))

    def _weights(self, op: Op, label: str, constants: int | None) -> Weights:
        if not op.weight_shapes:
            return {}
        weights = None if constants is None else self._executable.constants[constants].weights
        if weights is None:
            raise CodlError(
                f"The weights of {label!r} are only there as kernels and libraries take them, as "
                "in every executable that was read from a file. Interpret one that `codl.lower` "
                "makes of the network and its plan."
            )
        sizes = {name: value.shape for name, value in weights.items()}
        if sizes != op.weight_shapes:
            raise CodlError(f"The weights of {label!r} must be {op.weight_shapes}, got {sizes}.")
        return weights

    def _with_model(self, op: Op, constants: int | None) -> Op:
        if not isinstance(op, OnnxModel) or constants is None:
            return op
        model: Mapping[str, NDArray[np.uint8]] = self._executable.constants[constants].arrays()
        return replace(op, model=model[MODEL].tobytes())


def _by_onnx_runtime(op: OnnxModel, inputs: Sequence[Values]) -> Values:
    """Nodes that codl has no op for, as they stand; ONNX's own reference lacks some of them."""
    # Interpreting an executable without such nodes needs no library.
    import onnx

    from codl.frontend.graph.integer_products import reference_session
    from codl.frontend.graph.weights import Model

    given = {
        f"{INPUT}{index}": np.asarray(value.reshape(sizes), np.float32)
        for index, (value, sizes) in enumerate(zip(inputs, op.shapes, strict=True))
    }
    session = reference_session(Model(onnx.load_from_string(op.model), {}))
    (made,) = session.run([OUTPUT], given)
    return np.asarray(made, np.float64).reshape(op.output)
