"""Inputs for measuring and comparing: made from a seed, or read from files."""

from __future__ import annotations

import zlib
from math import prod
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from codl.errors import InvalidFileError, UnknownNameError
from codl.ir import Array, Network
from codl.ir.region import Shape, as_nchw

SEED = 7
NPZ, NPY = "expected an .npz file of arrays by input name", "expected an .npy file"
#: What Python's zip archives and NumPy raise for files that are damaged, or of another format.
BROKEN = (
    ValueError,
    OSError,
    EOFError,
    BadZipFile,
    NotImplementedError,
    RuntimeError,  # an encrypted one; also what is nested too deep
    MemoryError,
    zlib.error,
)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def random_inputs(network: Network, seed: int = SEED) -> dict[str, NDArray[Any]]:
    """Uniform in 0 ... 1, as images are, from a seed; integers are 0 or 1."""
    random = np.random.default_rng(seed)
    inputs = {n: random.random(tuple(s), np.float32) for n, s in network.inputs.items()}
    return {name: _typed(value, network.types.get(name)) for name, value in inputs.items()}


def _typed(value: Array, kind: str | None) -> NDArray[Any]:
    """Floats as another type; what is no float is rounded."""
    if kind is None:
        return value
    dtype = np.dtype(kind)
    return (value if dtype.kind == "f" else np.rint(value)).astype(dtype)


def read_npz(path: Path, network: Network) -> dict[str, NDArray[Any]]:
    """The inputs of a network from an `.npz` file; raises `InvalidFileError` for anything else.

    Names and shapes are looked at before any number is read.
    """
    wanted, arrays = network.inputs, {}
    try:
        with ZipFile(path) as archive:
            sizes = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            if set(sizes) != set(wanted):
                problem = (
                    f"its arrays must be {', '.join(wanted)}, got {', '.join(sizes) or 'none'}."
                )
                raise InvalidFileError(path, problem)
            for name, member in sizes.items():
                with archive.open(member) as stream:
                    arrays[name] = _array(stream, member.file_size, name, wanted[name])
    except FileNotFoundError as error:
        raise InvalidFileError(path, "there is no such file.") from error
    except BROKEN as error:
        raise InvalidFileError(path, f"{NPZ}: {error}.") from error
    return arrays


def read_file(path: Path, name: str, network: Network) -> NDArray[Any]:
    """One input of a network: an `.npy` file, or plain float32 in nchw order."""
    if name not in network.inputs:
        raise UnknownNameError(f"input of {network.name}", name, network.inputs)
    shape = network.inputs[name]
    if not path.is_file():
        raise InvalidFileError(path, "there is no such file.")
    size = path.stat().st_size
    if path.suffix != ".npy":
        if size != 4 * shape.elements:
            problem = f"the input {name!r} is {shape}, {shape.elements} numbers, got {size // 4}."
            raise InvalidFileError(path, problem)
        return np.fromfile(path, np.float32).reshape(tuple(shape))
    try:
        with path.open("rb") as stream:
            return _array(stream, size, name, shape)
    except BROKEN as error:
        raise InvalidFileError(path, f"{NPY}: {error}.") from error


def _array(stream: IO[bytes], size: int, name: str, wanted: Shape) -> NDArray[Any]:
    """An array in NumPy's format, `size` bytes with its header; raises `ValueError`."""
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"{name!r} is of version {version} of the format")
    try:
        shape, is_fortran, dtype = _HEADERS[version](stream)
    except Exception as error:  # NumPy parses Python's syntax, and raises whatever that does
        raise ValueError(f"{name!r} has no header that can be read") from error
    if dtype.kind not in "biuf":
        raise ValueError(f"{name!r} holds {dtype}, and should hold numbers")
    if min(shape, default=0) < 0 or as_nchw(shape) != wanted:
        raise ValueError(f"{name!r} must be {wanted}, got {shape}")
    if prod(shape) * dtype.itemsize != size - stream.tell():
        raise ValueError(f"{name!r} is cut short, or longer than {shape}")
    flat: NDArray[Any] = np.frombuffer(stream.read(), dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C")
