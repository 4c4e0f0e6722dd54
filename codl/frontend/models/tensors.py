"""The part of a model between named tensors, with given shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper, shape_inference, utils

from codl.errors import InvalidFileError, UnknownNameError


@dataclass(frozen=True)
class FilePlace:
    """Where a file names tensors and shapes."""

    path: Path
    keys: str

    def error(self, key: str, problem: str) -> InvalidFileError:
        return InvalidFileError(self.path, problem, where=f"{self.keys}.{key}")


def cut_out(
    proto: onnx.ModelProto, inputs: tuple[str, ...], outputs: tuple[str, ...], place: FilePlace
) -> onnx.ModelProto:
    """The part of a model between `inputs` and `outputs`; the model itself where that is all.

    Raises `InvalidFileError` for a tensor that it does not have, or an input that is left out.
    """
    graph = proto.graph
    fixed = {item.name for item in graph.initializer}
    entries = [info.name for info in graph.input if info.name not in fixed]
    made = {name for node in graph.node for name in node.output if name}
    for key, names, allowed in (
        ("input_tensors", inputs, {*entries, *made}),
        ("output_tensors", outputs, made),
    ):
        for name in names:
            if name not in allowed:
                # The model's own inputs and outputs: it may have hundreds of other tensors.
                ends = [*entries, *(info.name for info in graph.output)]
                reason = str(UnknownNameError("tensor", name, ends))
                raise place.error(key, reason)
    if set(inputs) == set(entries) and list(outputs) == [info.name for info in graph.output]:
        return proto
    missing = _needed(graph, set(inputs) | fixed, outputs) & set(entries)
    if missing:
        raise place.error(
            "input_tensors",
            f"{', '.join(outputs)} cannot be computed without {', '.join(sorted(missing))}.",
        )
    # What the extractor hands on must have a type; whatever is known is better than nothing.
    typed = shape_inference.infer_shapes(proto)
    known_types = {
        i.name for i in (*typed.graph.input, *typed.graph.value_info, *typed.graph.output)
    }
    for name in {*inputs, *outputs} - known_types:
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        typed.graph.value_info.append(info)
    return utils.Extractor(typed).extract_model(list(inputs), list(outputs))


def _needed(graph: onnx.GraphProto, have: set[str], outputs: Iterable[str]) -> set[str]:
    """What has to be there for `outputs`, and is not among what there is."""
    maker = {name: node for node in graph.node for name in node.output}
    left, seen, needed = list(outputs), set(have), set()
    while left:
        name = left.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        if name in maker:
            left += maker[name].input
        else:
            needed.add(name)
    return needed


def fix_inputs(
    proto: onnx.ModelProto,
    inputs: Mapping[str, tuple[int, ...]],
    outputs: Mapping[str, tuple[int, ...]],
    place: FilePlace,
) -> None:
    """Give inputs their shapes, where the model leaves sizes open, and check those of outputs.

    Raises `InvalidFileError` where the model has others.
    """
    for info in proto.graph.input:
        if info.name not in inputs:
            continue
        shape = info.type.tensor_type.shape
        declared = inputs[info.name]
        _agree(info, declared, place, "input_shapes")
        del shape.dim[:]
        for size in declared:
            shape.dim.add().dim_value = size
    del proto.graph.value_info[:]
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    inferred = shape_inference.infer_shapes(proto, data_prop=True).graph.output
    for info in inferred:
        if info.name in outputs:
            _agree(info, outputs[info.name], place, "output_shapes")
    for info in proto.graph.output:
        if info.name in outputs:
            for size in outputs[info.name]:
                info.type.tensor_type.shape.dim.add().dim_value = size


def _agree(
    info: onnx.ValueInfoProto, declared: tuple[int, ...], place: FilePlace, key: str
) -> None:
    """Refuse a declared shape that differs where the model's own is known."""
    if not info.type.tensor_type.HasField("shape"):
        return
    dims = info.type.tensor_type.shape.dim
    equal = len(dims) == len(declared) and all(
        dim.dim_value in (0, size) for dim, size in zip(dims, declared, strict=True)
    )
    if not equal:
        modelled = ",".join(str(dim.dim_value or dim.dim_param or "?") for dim in dims)
        wanted = ",".join(map(str, declared))
        hint = ""
        if len(dims) == 4 == len(declared) and (
            declared[0], declared[3], declared[1], declared[2]
        ) == tuple(dim.dim_value for dim in dims):  # fmt: skip
            hint = " Shapes of an ONNX model are nchw."
        raise place.error(key, f"{info.name!r} is {modelled} in the model, got {wanted}.{hint}")
