"""Any model for another number of images at a time."""

from __future__ import annotations

import onnx

from codl.errors import CodlError
from codl.yaml_file import MOST


def set_batch(proto: onnx.ModelProto, images: int) -> None:
    """Let a model take `batch` images at a time; what was known of shapes behind the inputs goes.

    Raises `CodlError` for less than one image, for more than any device takes, and where an input
    has no axes.
    """
    if not 1 <= images <= MOST:
        raise CodlError(f"A batch must be of 1 to {MOST} images, got {images}.")
    constants = {item.name for item in proto.graph.initializer}
    for info in proto.graph.input:
        if info.name in constants:
            continue
        sizes = info.type.tensor_type.shape.dim
        if not sizes:
            raise CodlError(f"The input {info.name!r} is a single number: it has no batch.")
        sizes[0].dim_value = images
    for info in [*proto.graph.output, *proto.graph.value_info]:
        info.type.tensor_type.ClearField("shape")
