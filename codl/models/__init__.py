"""The built-in models, and any other ONNX file: a name or a path in, an ONNX model out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from codl.errors import InvalidFileError, UnknownNameError
from codl.models import (
    alexnet,
    bert,
    fast_style_transfer,
    matmul,
    mobilenet_v1,
    mobilenet_v2,
    op_chain,
    posenet,
    resnet50,
    resnet50_v2,
    retinaface,
    vgg16,
    yolov2,
)
from codl.models.batch import set_batch
from codl.models.builder import ModelBuilder

#: What describes each built-in model, layer by layer. The first five are the paper's.
BUILT_IN: Mapping[str, Callable[[ModelBuilder], None]] = {
    "retinaface": retinaface.describe,
    "yolov2": yolov2.describe,
    "vgg16": vgg16.describe,
    "posenet": posenet.describe,
    "fast_style_transfer": fast_style_transfer.describe,
    "alexnet": alexnet.describe,
    "mobilenet_v1": mobilenet_v1.describe,
    "mobilenet_v2": mobilenet_v2.describe,
    "resnet50": resnet50.describe,
    "resnet50_v2": resnet50_v2.describe,
    "bert": bert.describe,
    "matmul": matmul.describe,
    "op_chain": op_chain.describe,
}
#: Those whose ops are measured and tuned where none are named: the paper's, and two whose
#: convolutions the paper's have few of.
MEASURED = (*list(BUILT_IN)[:5], "mobilenet_v2", "resnet50")


@dataclass(frozen=True)
class ModelSource:
    """An ONNX model and the name that plans and reports give it."""

    name: str
    proto: onnx.ModelProto


def described(name: str, *, weights: bool = True) -> ModelBuilder:
    """The builder of a built-in model; see `ModelBuilder` for one without weights."""
    builder = ModelBuilder(name, weights=weights)
    BUILT_IN[name](builder)
    return builder


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
        return ModelSource(name, described(name).build())
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
