"""A stand-in for msgspec in pure Python: what codl uses of it, for agents where it is not.

It reads and writes the same JSON, of this codl on the other side: what is written there is of the
types that it should be, and is not looked at again. It is tens of times slower. A field `Raw` is
written anew where msgspec would keep its text.
"""

from __future__ import annotations

import json as _json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .reading import Hook, read
from .records import (
    DecodeError,
    Meta,
    MsgspecError,
    Raw,
    Struct,
    ValidationError,
    defstruct,
    replace,
    text_of,
    to_builtins,
)

__all__ = [
    "DecodeError",
    "Meta",
    "MsgspecError",
    "Raw",
    "Struct",
    "ValidationError",
    "convert",
    "defstruct",
    "json",
    "replace",
    "to_builtins",
]


def convert(value: Any, type: Any, *, dec_hook: Hook | None = None) -> Any:
    """A value of a type, of mappings, lists and scalars."""
    return read(value, type, dec_hook)


def _refused(text: str) -> Any:
    raise ValueError(f"invalid number {text}")


def decode(content: Any, *, type: Any = Any, dec_hook: Hook | None = None) -> Any:
    """What a JSON text says, of a type; raises `DecodeError` for what is no JSON."""
    text = content if isinstance(content, str) else bytes(content).decode()
    try:
        value = _json.loads(text, parse_constant=_refused)
    except ValueError as error:
        raise DecodeError(f"JSON is malformed: {error}") from error
    return read(value, type, dec_hook)


def encode(value: Any, *, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """The JSON of a value; `enc_hook` makes what JSON has of other types."""
    return text_of(value, enc_hook).encode()


class Encoder:
    """Writes several values in one way; with an `order` the keys of mappings are sorted."""

    def __init__(
        self, *, enc_hook: Callable[[Any], Any] | None = None, order: str | None = None
    ) -> None:
        self._hook, self._is_sorted = enc_hook, order is not None

    def encode(self, value: Any) -> bytes:
        return text_of(value, self._hook, is_sorted=self._is_sorted).encode()


class Decoder:
    """Reads several texts as one type."""

    def __init__(self, type: Any = Any, *, dec_hook: Hook | None = None) -> None:
        self._type, self._hook = type, dec_hook

    def decode(self, content: Any) -> Any:
        return decode(content, type=self._type, dec_hook=self._hook)


json = SimpleNamespace(encode=encode, decode=decode, Encoder=Encoder, Decoder=Decoder)
