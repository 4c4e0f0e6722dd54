"""Parts of a bundle: a network's structure as JSON, and arrays in a safetensors file.

A network's layers are lines of text, without weights. Arrays go by their SHA-256 and are read in
place: the library writes their file, but to read it would copy every tensor out of one of its own.
So the header (its length and JSON, as the format has it) is read here, and arrays are laid over the
mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from codl import yaml_file
from codl.errors import UnwritableFileError
from codl.ir.constants import array_digest
from codl.ir.network import Layer, Network
from codl.ir.op_text import parse, to_text
from codl.ir.region import Shape
from codl.yaml_file import NotNegative, Positive

#: Axes of an array in NumPy, at most.
MOST_AXES = 32
_Shape: TypeAlias = tuple[Positive, Positive, Positive, Positive]


class _Layer(msgspec.Struct, frozen=True):
    name: str
    op: str
    inputs: tuple[str, ...]
    output: str


class _Output(msgspec.Struct, frozen=True):
    tensor: str
    shape: tuple[NotNegative, ...]


class _Network(msgspec.Struct, frozen=True, kw_only=True):
    """`network.json`."""

    name: str
    inputs: Mapping[str, _Shape]
    outputs: Mapping[str, _Output]
    constants: Mapping[str, Annotated[tuple[Positive, ...], msgspec.Meta(max_length=MOST_AXES)]]
    types: Mapping[str, str]
    layers: tuple[_Layer, ...]


def network_to_json(network: Network) -> Any:
    """All but the weights, and of constants the shapes."""
    content = _Network(
        name=network.name,
        inputs=network.inputs,
        outputs={name: _Output(tensor, shape) for name, (tensor, shape) in network.outputs.items()},
        constants={name: value.shape for name, value in network.constants.items()},
        types=network.types,
        layers=tuple(
            _Layer(layer.name, to_text(layer.op), layer.inputs, layer.output)
            for layer in network.layers
        ),
    )
    return msgspec.to_builtins(content)


def network_from_json(content: Any, path: Path) -> Network:
    """The network without weights: what can be shown and asked of, but not lowered.

    Raises `InvalidFileError` with the `path` for what is no such network.
    """
    read, zero = yaml_file.convert(content, _Network, path), np.zeros((), np.float32)
    return Network(
        name=read.name,
        layers=tuple(Layer(x.name, parse(x.op), x.inputs, x.output, {}) for x in read.layers),
        inputs={name: Shape(*shape) for name, shape in read.inputs.items()},
        outputs={name: (output.tensor, output.shape) for name, output in read.outputs.items()},
        constants={name: np.broadcast_to(zero, shape) for name, shape in read.constants.items()},
        types=read.types,
    )


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


class ArrayStore:
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
        """Write the file; returns the digest of its header, which `read_arrays` wants."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        try:
            save_file(self._arrays, path)
        except SafetensorError as error:  # arrays are sound: it is the disk
            raise UnwritableFileError(path, OSError(str(error))) from error
        with path.open("rb") as file:
            length = file.read(LENGTH)
            return sha256(length + file.read(int.from_bytes(length, "little"))).hexdigest()


def read_arrays(data: memoryview, digest: str) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, over its own memory and never to be written.

    Only the header is looked at here: a kernel may read beyond an array that is too short. Raises
    `ValueError` for a header that has not the `digest`.
    """
    end = LENGTH + int.from_bytes(data[:LENGTH], "little")
    if sha256(data[:end]).hexdigest() != digest:
        raise ValueError("the header of the weights is damaged")
    header, body = msgspec.json.decode(data[LENGTH:end], type=dict[str, msgspec.Raw]), data[end:]
    return {
        name: _array(body, msgspec.json.decode(place, type=_Place))
        for name, place in header.items()
        if name != "__metadata__"
    }


class _Place(msgspec.Struct, frozen=True):
    """What the header says of an array."""

    dtype: str
    shape: tuple[NotNegative, ...]
    data_offsets: tuple[NotNegative, NotNegative]


def _array(body: memoryview, place: _Place) -> NDArray[Any]:
    begin, end = place.data_offsets
    flat: NDArray[Any] = np.frombuffer(body[begin:end], TYPES[place.dtype])
    array: NDArray[Any] = flat.reshape(place.shape)
    return array
