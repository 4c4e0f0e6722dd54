"""Where ONNX's types meet codl's one type: everything is float32 in between.

Floats are rounded, to float32 on the way in and to their own type on the way out. Integers and
booleans are exact up to 2^24, and refused beyond it. On the way out an integer's fraction is cut
off, which is how ONNX divides integers, and its value wraps around at the ends of its type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from codl.errors import UnsupportedError
from codl.ir import Array
from codl.ir.numbers import as_float32, check_exact

#: A quotient that is so near to an integer, relatively, is that integer, whatever the division's
#: last bits are: OpenCL lets a division be off by 2.5 units in the last place.
NEAR = 2.0**-22
FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
CONVERTED = (*FLOATS, *INTEGERS, "BOOL")


def checked_type(info: onnx.ValueInfoProto) -> np.dtype[Any]:
    """The NumPy type of a tensor; raises `UnsupportedError` where codl has no way to hold it."""
    kind = info.type.WhichOneof("value") or "untyped"
    if kind != "tensor_type":
        what = kind.removesuffix("_type").replace("_", " ")
        raise UnsupportedError(f"{info.name!r} is a value of kind {what}; codl knows tensors only.")
    element = info.type.tensor_type.elem_type
    name = TensorProto.DataType.Name(element)
    if name not in CONVERTED:
        raise UnsupportedError(
            f"{info.name!r} is of type {name.lower()}; codl converts "
            f"{', '.join(known.lower() for known in CONVERTED)}."
        )
    dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(element)
    return dtype


def to_float32(name: str, value: NDArray[Any]) -> Array:
    """An input as codl takes it."""
    if not value.size:
        raise UnsupportedError(f"{name!r} is empty ({value.shape}); codl has no empty tensors.")
    return as_float32(name, value)


def from_float32(name: str, value: Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An output as the model declares it."""
    if dtype.kind == "b":
        return np.not_equal(value, 0)
    if dtype.kind not in "iu":
        return value.astype(dtype)
    check_exact(name, value)
    nearest = np.rint(value)
    whole = np.where(np.abs(value - nearest) <= NEAR * np.abs(value), nearest, np.trunc(value))
    return whole.astype(np.int64).astype(dtype)
