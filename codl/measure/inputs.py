"""Inputs of networks for measurement and comparison, from a seed or from files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from codl.errors import InvalidFileError, UnknownNameError
from codl.ir import Array, Network
from codl.ir.region import Shape, as_nchw
from codl.measure import SEED as SEED


def random_inputs(network: Network, seed: int = SEED) -> dict[str, NDArray[Any]]:
    """Random inputs by name, uniform in 0 ... 1 like images; integers are 0 or 1."""
    random = np.random.default_rng(seed)
    inputs = {n: random.random(tuple(s), np.float32) for n, s in network.inputs.items()}
    return {name: _typed(value, network.types.get(name)) for name, value in inputs.items()}


def _typed(value: Array, kind: str | None) -> NDArray[Any]:
    """Floats cast to the type `kind` (None keeps them), rounded for non-float types."""
    if kind is None:
        return value
    dtype = np.dtype(kind)
    return (value if dtype.kind == "f" else np.rint(value)).astype(dtype)


def read_npz(path: Path, network: Network) -> dict[str, NDArray[Any]]:
    """The inputs of a network from an `.npz` file, by name.

    Raises `InvalidFileError` for another format, or wrong names or shapes.
    """
    wanted = network.inputs
    with _explained(path, "an .npz file of arrays by input name"):
        archive = np.load(path)
        if not isinstance(archive, NpzFile):
            raise ValueError("it is one array")
        with archive:
            if set(archive.files) != set(wanted):
                names = ", ".join(archive.files) or "none"
                problem = f"its arrays must be {', '.join(wanted)}, got {names}."
                raise InvalidFileError(path, problem)
            return {name: _checked(archive[name], name, wanted[name]) for name in wanted}


def read_file(path: Path, name: str, network: Network) -> NDArray[Any]:
    """One input of a network, from an `.npy` file or raw float32 in nchw order.

    Raises `UnknownNameError` for an unknown input, `InvalidFileError` for an invalid file.
    """
    if name not in network.inputs:
        raise UnknownNameError(f"input of {network.name}", name, network.inputs)
    shape = network.inputs[name]
    with _explained(path, "an .npy file"):
        if path.suffix == ".npy":
            return _checked(np.load(path), name, shape)
        numbers = np.fromfile(path, np.float32)
    if numbers.size != shape.elements:
        problem = f"the input {name!r} is {shape}, {shape.elements} numbers, got {numbers.size}."
        raise InvalidFileError(path, problem)
    return numbers.reshape(tuple(shape))


@contextmanager
def _explained(path: Path, expected: str) -> Iterator[None]:
    """Convert any error in reading a file to `InvalidFileError`."""
    try:
        yield
    except InvalidFileError:
        raise
    except FileNotFoundError as error:
        raise InvalidFileError(path, "there is no such file.") from error
    except Exception as error:  # of many unrelated types
        raise InvalidFileError(path, f"expected {expected}: {error}.") from error


def _checked(array: Any, name: str, wanted: Shape) -> NDArray[Any]:
    """The array; raises `ValueError` unless it holds numbers in the wanted shape."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise ValueError(f"{name!r} holds {getattr(array, 'dtype', 'no array')}, no numbers")
    if 0 in array.shape or as_nchw(array.shape) != wanted:
        raise ValueError(f"{name!r} must be {wanted}, got {array.shape}")
    return array
