"""Constants of an ONNX model whose elements lie beside it: in memory, or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

#: What is called the place of such elements, where they lie in no file.
FILE = "weights"


def stand_in(item: Any, name: str, kind: int, sizes: Sequence[int]) -> None:
    """Make an initializer, a `TensorProto`, one of ONNX's type `kind` whose data lies elsewhere."""
    from onnx import TensorProto, helper

    item.name, item.data_type, item.data_location = name, kind, TensorProto.EXTERNAL
    item.dims.extend(sizes)
    length = prod(sizes) * helper.tensor_dtype_to_np_dtype(kind).itemsize
    for key, value in {"location": FILE, "offset": 0, "length": length}.items():
        item.external_data.add(key=key, value=str(value))
