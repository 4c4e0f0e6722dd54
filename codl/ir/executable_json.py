"""An executable as JSON, and the arrays of its constants beside it, each by its SHA-256."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from numpy.typing import NDArray

from codl.errors import CodlError, MismatchError
from codl.ir.constants import Constants
from codl.ir.executable import VERSIONS, Executable, Record
from codl.ir.executable_check import check

#: Keeps an array somewhere, and gives it back; by the digest of `constants.array_digest`.
Put = Callable[[NDArray[Any]], str]
Get = Callable[[str], NDArray[Any]]


class StoredConstants(Record, frozen=True):
    """Constants in JSON: what they are made of, and the digest of each packed array by name."""

    how: str
    recipe: str
    arrays: dict[str, str]


class _Head(msgspec.Struct):
    """What is looked at before all else."""

    version: int


def encode(executable: Executable, put: Put) -> bytes:
    """The JSON of an executable; its packed arrays are handed to `put`."""

    def hook(value: Any) -> StoredConstants:
        if not isinstance(value, Constants):
            raise NotImplementedError(f"{type(value).__name__} is not part of an executable")
        arrays = {name: put(array) for name, array in value.arrays().items()}
        return StoredConstants(value.how, value.recipe, arrays)

    return msgspec.json.Encoder(enc_hook=hook).encode(executable)


def decode(content: bytes, get: Get) -> Executable:
    """Read and check what `encode` wrote; arrays are asked for when they are used.

    Raises `MismatchError` for another version, and `CodlError` with the place for anything that is
    no executable, or that would reach outside its memory.
    """

    def hook(kind: type, value: Any) -> Any:
        stored = msgspec.convert(value, StoredConstants)
        arrays = stored.arrays

        def pack() -> dict[str, NDArray[Any]]:
            return {name: get(digest) for name, digest in arrays.items()}

        return Constants(stored.how, None, pack, names=tuple(arrays), recipe=stored.recipe)

    try:
        version = msgspec.json.decode(content, type=_Head).version
        if version not in VERSIONS:
            raise MismatchError(
                f"The executable is of version {version}; this codl reads version {VERSIONS[0]} "
                "and earlier ones."
            )
        executable = msgspec.json.Decoder(Executable, dec_hook=hook).decode(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CodlError(f"This is no executable: {error}.") from error
    check(executable)
    return executable
