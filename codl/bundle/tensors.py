"""The arrays of a bundle by their SHA-256: a safetensors file, read in place.

The library writes the file. To read, it would copy every tensor out of a file of its own, so the
header (its length and JSON, as the format has it) is read here, and arrays are laid over the
mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from codl.errors import UnwritableFileError
from codl.ir.constants import array_digest
from codl.yaml_file import NotNegative

#: Bytes in front of the header that say how long it is.
LENGTH = 8
#: The format's names of the types that arrays have.
TYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "U32": np.dtype(np.uint32),
}


class Arrays:
    """Arrays to be written, each content once."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def put(self, array: NDArray[Any]) -> str:
        """Keep an array; returns its digest, by which it is stored."""
        digest = array_digest(array)
        if digest not in self._arrays:
            # A dimension of its own for a scalar is ascontiguousarray's, not the array's.
            self._arrays[digest] = np.ascontiguousarray(array).reshape(array.shape)
        return digest

    def save(self, path: Path) -> str:
        """Write the file; returns the digest of its header, which `read` wants."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        try:
            save_file(self._arrays, path)
        except SafetensorError as error:  # arrays are sound: it is the disk
            raise UnwritableFileError(path, OSError(str(error))) from error
        with path.open("rb") as file:
            length = file.read(LENGTH)
            return sha256(length + file.read(int.from_bytes(length, "little"))).hexdigest()


def read(data: memoryview, digest: str) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, over its own memory and never to be written.

    Only the header is looked at here: a kernel may read beyond an array that is too short. Raises
    `ValueError` for a header that has not the `digest`.
    """
    end = LENGTH + int.from_bytes(data[:LENGTH], "little")
    if sha256(data[:end]).hexdigest() != digest:
        raise ValueError("the header of the weights is damaged")
    header, body = msgspec.json.decode(data[LENGTH:end], type=dict[str, msgspec.Raw]), data[end:]
    return {
        name: _array(body, msgspec.json.decode(own, type=_Place))
        for name, own in header.items()
        if name != "__metadata__"
    }


class _Place(msgspec.Struct, frozen=True):
    """What the header says of an array."""

    dtype: str
    shape: tuple[NotNegative, ...]
    data_offsets: tuple[NotNegative, NotNegative]


def _array(body: memoryview, own: _Place) -> NDArray[Any]:
    begin, end = own.data_offsets
    flat: NDArray[Any] = np.frombuffer(body[begin:end], TYPES[own.dtype])
    array: NDArray[Any] = flat.reshape(own.shape)
    return array
