"""Operators as one line of text, the same in files, errors and on the command line.

    conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=1 pad=1 groups=1 act=relu

Fields at their default are left out when written; `pad` takes one number, or top,left,bottom,right;
`kernel`, `stride` and `dilation` take one number or HxW; `act` takes its parameters after colons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache, lru_cache
from math import prod
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from codl.errors import CodlError, UnknownNameError
from codl.ir.ops.base import ACTIVATIONS, OP_TYPES, Activation, Op, Pad
from codl.ir.ops.nd import Numbers, Sizes
from codl.ir.ops.window import Size2
from codl.ir.region import Shape

#: Fields come in this order; others, by their names, before the activation.
ORDER = ("in", "oc", "mode", "kernel", "stride", "pad", "dilation", "groups", "count_pad")
#: Windows have at least one element, and go on by at least one.
STEPS = ("kernel", "stride", "dilation")
#: No size of an op is larger, nor has a tensor more elements: kernels count in 32 bits.
MOST = (1 << 31) - 1
SHORT = {"inputs": "in", "shapes": "in", "out_channels": "oc", "activation": "act"}


def to_text(op: Op) -> str:
    """The op as one line; equal ops give equal lines."""
    words = {
        key: _write(getattr(op, field.name))
        for key, field in _fields(type(op)).items()
        if getattr(op, field.name) != field.default
    }
    others = sorted(words.keys() - {*ORDER, "act"})
    order = [key for key in (*ORDER, *others, "act") if key in words]
    return " ".join([op.kind, *(f"{key}={words[key]}" for key in order)])


def _fields(cls: type[Op]) -> dict[str, Field[Any]]:
    """The fields that an op is made of, by their short names."""
    return {
        SHORT.get(field.name, field.name): field
        for field in fields(cls)
        if field.init and field.metadata.get("text", True)
    }


@cache
def _types(cls: Any) -> Mapping[str, Any]:
    """The types of an op's fields; finding them takes longer than reading a text."""
    return get_type_hints(cls)


def parse(text: str) -> Op:
    """Read what `to_text` or a person wrote; raises `CodlError` with the word that is wrong."""
    kind = text.split(maxsplit=1)[0] if text.strip() else ""
    cls: Any = OP_TYPES.find(kind)
    op: Op = _parse(cls, text)
    return op


@lru_cache(maxsize=65536)
def _parse(cls: Any, text: str) -> Op:
    fields_of = _fields(cls)
    values: dict[str, Any] = {}
    for word in text.split()[1:]:
        key, equals, value = word.partition("=")
        if key not in fields_of or not equals:
            raise UnknownNameError(f"field of {cls.kind}", word, fields_of)
        if fields_of[key].name in values:
            raise CodlError(f"The op {text!r} has {key} twice.")
        values[fields_of[key].name] = read = _read(cls, fields_of[key], value)
        if key in STEPS and min(read if isinstance(read, tuple) else (read,)) < 1:
            raise CodlError(f"{key} of the op {text!r} must be at least 1, got {value}.")
    missing = [key for key, f in fields_of.items() if _is_required(f) and f.name not in values]
    if missing:
        raise CodlError(f"The op {text!r} lacks {', '.join(missing)}.")
    op: Op = cls(**values)
    _check(op, text)
    return op


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _check(op: Op, text: str) -> None:
    """Refuse ops whose numbers do not fit together."""
    if any(size < 1 for shape in op.inputs for size in shape):
        raise CodlError(f"The op {text!r} has an empty input ({', '.join(map(str, op.inputs))}).")
    if op.problem is not None:
        raise CodlError(f"The op {text!r}: {op.problem}")
    if any(size < 1 for size in op.output):
        raise CodlError(f"The op {text!r} has an empty output ({op.output}).")
    if (most := max(prod(shape) for shape in (*op.inputs, op.output))) > MOST:
        raise CodlError(f"The op {text!r} has a tensor of {most} elements, at most {MOST} can be.")


def _write(value: Any) -> str:
    if isinstance(value, Activation):
        return ":".join([value.kind, *(f"{v:.9g}" for v in value.parameters)])
    if isinstance(value, Pad):
        return str(value.top) if len(set(value)) == 1 else ",".join(str(v) for v in value)
    if isinstance(value, Size2):
        return str(value)
    if isinstance(value, tuple):
        nested = any(isinstance(item, tuple) for item in value)
        return ",".join(_sizes(item) for item in value) if nested else _sizes(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _sizes(value: tuple[float, ...]) -> str:
    """Numbers joined by x; a tuple of none is a dash."""
    return "x".join(str(item) for item in value) or "-"


def _read_sizes(text: str) -> tuple[int, ...]:
    return () if text == "-" else tuple(int(size) for size in text.split("x"))


def _read(cls: Any, field: Field[Any], text: str) -> Any:
    """The value of a field from its text, by the field's type."""
    kind, key = _types(cls)[field.name], SHORT.get(field.name, field.name)
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise UnknownNameError(f"{key} of {cls.kind}", text, get_args(kind))
        return text
    if kind is str:
        return text
    reader = READERS.get(kind)
    if reader is None:
        raise TypeError(f"{cls.__name__}.{field.name} is a {kind}: op_text cannot read such.")
    try:
        return reader.read(text)
    except (ValueError, TypeError) as error:
        raise CodlError(
            f"Cannot read {key}={text!r} of a {cls.kind}: expected something like {reader.example}."
        ) from error


def _read_activation(text: str) -> Activation:
    name, *numbers = text.split(":")
    if name not in ACTIVATIONS:
        raise UnknownNameError("activation", name, ACTIVATIONS)
    return Activation(name, *(float(v) for v in numbers))


def _whole(text: str, least: int = 0) -> int:
    """A whole number of such a size; raises `ValueError` for another one."""
    number = int(text)
    if not least <= number <= MOST:
        raise ValueError(f"{number} is out of range")
    return number


def _read_pad(text: str) -> Pad:
    sides = [_whole(v) for v in text.split(",")]
    return Pad(*(sides * 4 if len(sides) == 1 else sides))


def _read_size2(text: str) -> Size2:
    sizes = [_whole(v) for v in text.split("x")]
    return Size2(*(sizes * 2 if len(sizes) == 1 else sizes))


def _read_shapes(text: str) -> tuple[Shape, ...]:
    return tuple(Shape(*(_whole(v) for v in shape.split("x"))) for shape in text.split(","))


def _read_numbers(text: str) -> tuple[float, ...]:
    return () if text == "-" else tuple(float(number) for number in text.split("x"))


class FieldReader(NamedTuple):
    """How fields of one type are read; `example` is a text that can be."""

    read: Callable[[str], Any]
    example: str


#: How a field's text is read, by the field's type; `Literal` and `str` are read as they are.
READERS: Mapping[Any, FieldReader] = {
    Activation: FieldReader(_read_activation, "relu or clip:0:6"),
    Pad: FieldReader(_read_pad, "1 or 1,1,0,1"),
    Size2: FieldReader(_read_size2, "3 or 3x3"),
    Shape: FieldReader(lambda text: _read_shapes(text)[0], "1x64x56x56"),
    tuple[Shape, ...]: FieldReader(_read_shapes, "1x64x56x56"),
    tuple[Sizes, ...]: FieldReader(
        lambda text: tuple(map(_read_sizes, text.split(","))), "1x64,64"
    ),
    Sizes: FieldReader(_read_sizes, "1x64"),
    Numbers: FieldReader(_read_numbers, "0.5x2"),
    bool: FieldReader(lambda text: bool(int(text)), "0 or 1"),
    int: FieldReader(lambda text: _whole(text, -MOST), "a number"),
    float: FieldReader(float, "a number"),
}
