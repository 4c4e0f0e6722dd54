"""Reading of ONNX files, and extraction of a part between named tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper, shape_inference, utils
from onnx.external_data_helper import ExternalDataInfo

from codl.errors import CodlError, InvalidFileError, UnknownNameError
from codl.frontend.graph.shapes import Sizes, data_inputs, fix_shapes, sizes_of, text_of
from codl.frontend.graph.weights import all_graphs, make_plain, tensors_of, with_fields


def cut_out(
    proto: onnx.ModelProto, inputs: Mapping[str, Sizes], outputs: Mapping[str, Sizes], place: str
) -> onnx.ModelProto:
    """The part of a model between tensors of these shapes.

    Raises `InvalidFileError` for the `place` of an unknown tensor, a missing input, or a shape that
    contradicts the model.
    """
    graph = proto.graph
    entries = [info.name for info in data_inputs(proto)]
    ends = [info.name for info in graph.output]
    made = {name for node in graph.node for name in node.output if name}
    for names, allowed in ((inputs, {*entries, *made}), (outputs, made)):
        for name in names:
            if name not in allowed:
                # Only the model's inputs and outputs: it may have hundreds of other tensors.
                raise InvalidFileError(place, str(UnknownNameError("tensor", name, entries + ends)))
    missing = _needed(graph, inputs, outputs) & set(entries)
    if missing:
        problem = f"{', '.join(outputs)} cannot be computed without {', '.join(sorted(missing))}."
        raise InvalidFileError(place, problem)
    if set(inputs) != set(entries) or list(outputs) != ends:
        # The extractor needs a type for each end; unknown ones get float32.
        typed = shape_inference.infer_shapes(proto)
        infos = (*typed.graph.input, *typed.graph.value_info, *typed.graph.output)
        for name in {*inputs, *outputs} - {info.name for info in infos}:
            info = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            typed.graph.value_info.append(info)
        proto = utils.Extractor(typed).extract_model(list(inputs), list(outputs))
    try:
        fixed = with_fields(fix_shapes(proto, inputs), value_info=[])
    except CodlError as error:
        raise InvalidFileError(place, str(error)) from error
    for info in fixed.graph.output:
        info.type.tensor_type.ClearField("shape")
    for info in shape_inference.infer_shapes(fixed, data_prop=True).graph.output:
        known, wanted = sizes_of(info), outputs.get(info.name, ())
        has_shape = info.type.tensor_type.HasField("shape")
        is_equal = all(a in (0, b) for a, b in zip(known, wanted, strict=False))
        if has_shape and not (len(known) == len(wanted) and is_equal):
            got = "x".join(map(str, wanted))
            problem = f"{info.name!r} has the shape {text_of(info)} in the model, got {got}."
            raise InvalidFileError(place, problem)
    for info in fixed.graph.output:
        for size in outputs.get(info.name, ()):
            info.type.tensor_type.shape.dim.add().dim_value = size
    return fixed


def _needed(graph: onnx.GraphProto, have: Iterable[str], outputs: Iterable[str]) -> set[str]:
    """Tensors that `outputs` need, neither computed nor in `have`."""
    maker = {name: node for node in graph.node for name in node.output}
    left, seen, needed = list(outputs), {"", *have}, set()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in maker:
            left += maker[name].input
        else:
            needed.add(name)
    return needed


def load_onnx(path: Path) -> onnx.ModelProto:
    """The model of an ONNX file; raises `InvalidFileError` for any other file."""
    try:
        proto = onnx.load(path, load_external_data=False)
        _check_texts(proto)
    except Exception as error:  # protobuf raises many unrelated types
        reason = str(error).strip().splitlines() or ["it cannot be parsed."]
        raise InvalidFileError(path, f"not an ONNX model: {reason[0]}") from error
    if not proto.graph.node:
        raise InvalidFileError(path, "not an ONNX model: its graph has no nodes.")
    return _with_weights(proto, path)


def _with_weights(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model in its normal form, with weights read from files beside it."""
    for tensor in tensors_of(all_graphs(proto.graph)):
        if tensor.data_location == TensorProto.EXTERNAL:
            locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
            try:
                file = _file_of_weights(path, "".join(locations[-1:]))
                tensor.raw_data = _elements(tensor, file)
            except (OSError, ValueError) as error:
                raise InvalidFileError(path, f"its weights cannot be read: {error}.") from error
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
    make_plain(proto)
    return proto


def _file_of_weights(path: Path, name: str) -> Path:
    """The file `name` beside a model, or beside the target of the model's link.

    Links may lead to these two folders only, so a model cannot read other files. In Hugging Face's
    cache, a model and its weights are links into one folder.
    """
    folders = [path.parent.resolve(), path.resolve().parent]
    found = [folder / name for folder in folders if (folder / name).is_file()]
    if not found:
        problem = f"its weights lie in {name}, which is not beside it."
        raise InvalidFileError(path, problem, fix="Copy that file there; it keeps its name.")
    real = found[0].resolve()
    if any(real.is_relative_to(folder) for folder in folders):
        return real
    problem = f"its weights lie in {name}, which is {real}, outside of its folder."
    if found[0].is_symlink() and ".." not in Path(name).parts:
        fix = f"Put the file itself there: cp --remove-destination {real} {found[0]}"
    else:
        fix = "Save the model again with its weights beside it, as onnx.save_model does."
    raise InvalidFileError(path, problem, fix=fix)


def _elements(tensor: onnx.TensorProto, file: Path) -> bytes:
    """Bytes of a tensor in a file; raises `ValueError` if the file is too short."""
    place = ExternalDataInfo(tensor)
    first, size = place.offset or 0, file.stat().st_size
    length = max(size - first, 0) if place.length is None else place.length
    if first + length > size:
        raise ValueError(
            f"{tensor.name!r} ends at byte {first + length} of {file.name}, which has {size}"
        )
    with file.open("rb") as content:
        content.seek(first)
        return content.read(length)


def _check_texts(message: Any) -> None:
    """Raise `UnicodeDecodeError` for invalid UTF-8, which protobuf leaves as bytes.

    Of tensors only the name is read, as reading copies data.
    """
    if message.DESCRIPTOR.full_name == "onnx.TensorProto":
        _check_text(message.name)
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in [value] if hasattr(value, "ListFields") else value:
                _check_texts(item)
        elif field.type == field.TYPE_STRING:
            for item in [value] if isinstance(value, str | bytes) else value:
                _check_text(item)


def _check_text(text: str | bytes) -> None:
    if isinstance(text, bytes):
        text.decode()
