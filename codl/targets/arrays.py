"""Arrays on the wire: type, shape and name in JSON, elements in a blob each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.runtime.connection import Blob

T = TypeVar("T")
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
#: Types that elements may have: what holds pointers is none.
TYPES = frozenset({"bool", "float16", "float32", "float64", "uint8", "uint16", "uint32", "uint64",
                   "int8", "int16", "int32", "int64"})  # fmt: skip


class ArrayRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array: its name, or its digest where it is addressed by that."""

    name: str
    type: str
    shape: tuple[int, ...]


def to_wire(arrays: Arrays) -> tuple[tuple[ArrayRecord, ...], list[memoryview]]:
    """The records and the blobs of arrays."""
    records, blobs = [], []
    for name, array in arrays.items():
        dense = np.ascontiguousarray(array)
        records.append(ArrayRecord(name, array.dtype.name, array.shape))
        blobs.append(dense.reshape(-1).view(np.uint8).data)
    return tuple(records), blobs


def from_wire(records: Sequence[ArrayRecord], blobs: Sequence[Blob]) -> dict[str, NDArray[Any]]:
    """The arrays, over the blobs' own memory; raises `CodlError` for sizes that do not fit."""
    _check_pairs(records, blobs, "arrays")
    return {own.name: _array(own, blob) for own, blob in zip(records, blobs, strict=True)}


def one_each(things: Sequence[T], blobs: Sequence[Blob], what: str) -> list[tuple[T, bytes]]:
    """Each of some things with its blob; raises `CodlError` where there are more or fewer."""
    _check_pairs(things, blobs, what)
    return list(zip(things, map(bytes, blobs), strict=True))


def _check_pairs(things: Sequence[T], blobs: Sequence[Blob], what: str) -> None:
    if len(things) != len(blobs):
        raise CodlError(f"{len(things)} {what} came with {len(blobs)} blobs; one each is right.")


def headed(blobs: Sequence[Blob]) -> tuple[bytes, Sequence[Blob]]:
    """The first blob, which is a model or an executable, and the others; raises `CodlError`."""
    if not blobs:
        raise CodlError("No blob came, where the first one is a model.")
    return bytes(blobs[0]), blobs[1:]


def _array(record: ArrayRecord, blob: Blob) -> NDArray[Any]:
    if record.type not in TYPES:
        raise CodlError(f"The array {record.name!r} is of {record.type!r}, which is not sent.")
    if any(size < 0 for size in record.shape):
        raise CodlError(f"The array {record.name!r} cannot be shaped {record.shape}.")
    kind = np.dtype(record.type)
    size = kind.itemsize * prod(record.shape)
    if size != len(blob):
        raise CodlError(
            f"The array {record.name!r} is {record.type} {record.shape}, {size} bytes; "
            f"{len(blob)} came."
        )
    return np.frombuffer(blob, kind).reshape(record.shape)
