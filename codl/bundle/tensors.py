"""The weights of a bundle: a safetensors file, read in place.

The library writes the file. To read, it would copy every tensor out of a file of its own, so the
header (its length and JSON, as the format has it) is read here, and arrays are laid over the
mapping.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bytes in front of the header that say how long it is.
LENGTH = 8
#: The format's names of the types that weights have.
TYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
}


class Tensors:
    """Arrays to be written, each content once."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def add(self, name: str, array: NDArray[Any]) -> str:
        """Keep an array; returns the name under which its content is stored."""
        dense = np.ascontiguousarray(array)
        # A dimension of its own for a scalar is ascontiguousarray's, not the weight's.
        dense = dense.reshape(array.shape)
        key = (dense.dtype.str, dense.shape, sha256(dense.data).digest())
        if key not in self._names:
            self._names[key] = name
            self._arrays[name] = dense
        return self._names[key]

    def add_all(self, prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
        """The stored names by the arrays' own."""
        return {key: self.add(f"{prefix}/{key}", value) for key, value in arrays.items()}

    def save(self, path: Path) -> str:
        """Write the file; returns the digest of its header, which `read` wants."""
        from safetensors.numpy import save_file

        save_file(self._arrays, path)
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
    header, body = json.loads(bytes(data[LENGTH:end])), data[end:]
    return {name: _array(body, own) for name, own in header.items() if name != "__metadata__"}


def _array(body: memoryview, own: Mapping[str, Any]) -> NDArray[Any]:
    begin, end = own["data_offsets"]
    flat: NDArray[Any] = np.frombuffer(body[begin:end], TYPES[own["dtype"]])
    array: NDArray[Any] = flat.reshape(own["shape"])
    return array
