"""Operators as one line of text, in files, errors and commands.

    conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=1 pad=1 groups=1 act=relu

Fields at their defaults are left out. `pad` takes one number, or top,left,bottom,right. `kernel`,
`stride` and `dilation` take one number or HxW; `act` takes parameters after colons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache, lru_cache
from math import prod
from typing import Any, Literal, get_args, get_origin, get_type_hints

from codl.errors import CodlError, UnknownNameError
from codl.ir.ops.base import ACTIVATIONS, OP_TYPES, Activation, Op, Pad
from codl.ir.ops.nd import Numbers, Sizes
from codl.ir.ops.window import Size2
from codl.ir.region import Shape

#: The order of fields; all others come by name, before the activation.
ORDER = ("in", "oc", "mode", "kernel", "stride", "pad", "dilation", "groups", "count_pad")
#: Fields of windows that must be at least 1.
STEPS = ("kernel", "stride", "dilation")
#: The largest size, and the most elements of a tensor: kernels count in 32 bits.
MOST = (1 << 31) - 1
#: The types of an op's fields; cached, as finding them takes longer than parsing.
_types = cache(get_type_hints)
SHORT = {"inputs": "in", "shapes": "in", "out_channels": "oc", "activation": "act"}


def to_text(op: Op) -> str:
    """An op as one line; equal ops give equal lines."""
    words = {
        key: _write(getattr(op, field.name))
        for key, field in _fields(type(op)).items()
        if getattr(op, field.name) != field.default
    }
    others = sorted(words.keys() - {*ORDER, "act"})
    order = [key for key in (*ORDER, *others, "act") if key in words]
    return " ".join([op.kind, *(f"{key}={words[key]}" for key in order)])


def _fields(cls: type[Op]) -> dict[str, Field[Any]]:
    """The fields of an op that its text has, by short name."""
    return {
        SHORT.get(field.name, field.name): field
        for field in fields(cls)
        if field.init and field.metadata.get("text", True)
    }


def parse(text: str) -> Op:
    """The op of a line of text; raises `CodlError` with the wrong word."""
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
    required = [key for key, field in fields_of.items() if field.default is MISSING]
    if missing := [key for key in required if fields_of[key].name not in values]:
        raise CodlError(f"The op {text!r} lacks {', '.join(missing)}.")
    op: Op = cls(**values)
    _check(op, text)
    return op


def _check(op: Op, text: str) -> None:
    """Raise `CodlError` for an op whose numbers do not fit together."""
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
    """Numbers joined by x; a dash for an empty tuple."""
    return "x".join(str(item) for item in value) or "-"


def _read(cls: Any, field: Field[Any], text: str) -> Any:
    """The value of a field from its text, by the field's type."""
    kind, key = _types(cls)[field.name], SHORT.get(field.name, field.name)
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise UnknownNameError(f"{key} of {cls.kind}", text, get_args(kind))
        return text
    if kind not in READERS:
        raise TypeError(f"{cls.__name__}.{field.name} is a {kind}: op_text cannot read such.")
    read, example = READERS[kind]
    try:
        return read(text)
    except (ValueError, TypeError) as error:
        raise CodlError(
            f"Cannot read {key}={text!r} of a {cls.kind}: expected something like {example}."
        ) from error


def _read_activation(text: str) -> Activation:
    name, *numbers = text.split(":")
    if name not in ACTIVATIONS:
        raise UnknownNameError("activation", name, ACTIVATIONS)
    return Activation(name, *(float(v) for v in numbers))


def _whole(text: str, least: int = 0) -> int:
    """An integer from `least` to `MOST`; raises `ValueError` for any other text."""
    number = int(text)
    if not least <= number <= MOST:
        raise ValueError(f"{number} is out of range")
    return number


def _list(text: str, read: Callable[[str], Any] = _whole, *, by: str = "x") -> list[Any]:
    return [] if text == "-" else [read(item) for item in text.split(by)]


def _sides(sides: list[int], count: int) -> list[int]:
    """Sizes of all sides; a single one is that of each."""
    return sides * count if len(sides) == 1 else sides


#: Readers by type of field, each with an example; `Literal` needs none.
READERS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    Activation: (_read_activation, "relu or clip:0:6"),
    Pad: (lambda text: Pad(*_sides(_list(text, by=","), 4)), "1 or 1,1,0,1"),
    Size2: (lambda text: Size2(*_sides(_list(text), 2)), "3 or 3x3"),
    Shape: (lambda text: Shape(*_list(text)), "1x64x56x56"),
    tuple[Shape, ...]: (
        lambda text: tuple(Shape(*_list(shape)) for shape in text.split(",")), "1x64x56x56"
    ),
    tuple[Sizes, ...]: (
        lambda text: tuple(tuple(_list(sizes, int)) for sizes in text.split(",")), "1x64,64"
    ),
    Sizes: (lambda text: tuple(_list(text, int)), "1x64"),
    Numbers: (lambda text: tuple(_list(text, float)), "0.5x2"),
    str: (str, "a name"),
    bool: (lambda text: bool(int(text)), "0 or 1"),
    int: (lambda text: _whole(text, -MOST), "a number"),
    float: (float, "a number"),
}  # fmt: skip
