"""The built-in models, and any other ONNX file: a name or a path in, an ONNX model out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from codl.errors import InvalidFileError, UnknownNameError
from codl.models import mobilenet_v2, resnet50, vgg16, yolov2
from codl.models.batch import set_batch

BUILT_IN: dict[str, Callable[[], onnx.ModelProto]] = {
    "mobilenet_v2": mobilenet_v2.build,
    "resnet50": resnet50.build,
    "vgg16": vgg16.build,
    "yolov2": yolov2.build,
}


@dataclass(frozen=True)
class ModelSource:
    """An ONNX model and the name that plans and reports give it."""

    name: str
    proto: onnx.ModelProto


def load(model: str | Path, batch: int | None = None) -> ModelSource:
    """Load a built-in model by name, or an `.onnx` file by path; for so many images at a time.

    Raises `UnknownNameError` where it is neither, `InvalidFileError` where the file is not ONNX.
    """
    source = _load(model)
    if batch is not None:
        set_batch(source.proto, batch)
    return source


def _load(model: str | Path) -> ModelSource:
    name = str(model)
    if name in BUILT_IN:
        return ModelSource(name, BUILT_IN[name]())
    path = Path(model)
    if not path.is_file():
        fix = "An ONNX file is given by its path."
        raise UnknownNameError("model", name, BUILT_IN, fix=fix)
    try:
        proto = onnx.load(path)
    except Exception as error:  # protobuf raises many unrelated types
        reason = str(error).strip().splitlines() or ["it cannot be parsed."]
        raise InvalidFileError(path, f"not an ONNX model: {reason[0]}") from error
    if not proto.graph.node:
        raise InvalidFileError(path, "not an ONNX model: its graph has no nodes.")
    return ModelSource(path.stem, proto)
