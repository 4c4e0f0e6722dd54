"""Operators as one line of text, the same in files, errors and on the command line.

    conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=1 pad=1 groups=1 act=relu

Fields at their default are left out when written; `pad` takes one number, or top,left,bottom,right;
`kernel`, `stride` and `dilation` take one number or HxW; `act` takes its parameters after colons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache, lru_cache
from typing import Any, get_type_hints

from codl.errors import CodlError, UnknownNameError
from codl.ir.ops.base import ACTIVATIONS, Activation, Op, Pad
from codl.ir.ops.concat import Concat
from codl.ir.ops.concat_gather import ConcatNd, Gather
from codl.ir.ops.conv2d import Conv2d
from codl.ir.ops.conv_transpose2d import ConvTranspose2d
from codl.ir.ops.eltwise import UNARY, Eltwise
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.max_indices import MaxIndices
from codl.ir.ops.movement import PadNd, Slice, Tile, Transpose, Windows
from codl.ir.ops.nd import Numbers, Sizes
from codl.ir.ops.norm import Norm
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.ops.pool2d import Pool2d
from codl.ir.ops.reduce import Reduce
from codl.ir.ops.reshape import Reshape
from codl.ir.ops.resize import Resize
from codl.ir.ops.softmax import Softmax
from codl.ir.ops.window import Size2
from codl.ir.region import Shape

OP_TYPES: dict[str, type[Op]] = {
    cls.kind: cls
    for cls in (
        Conv2d,
        ConvTranspose2d,
        Pool2d,
        FullyConnected,
        Concat,
        Eltwise,
        Reshape,
        MatMul,
        Softmax,
        Norm,
        Reduce,
        Transpose,
        Slice,
        Tile,
        PadNd,
        Windows,
        ConcatNd,
        Gather,
        Resize,
        MaxIndices,
        OnnxModel,
    )
}
#: Fields come in this order; others, by their names, before the activation.
ORDER = ("in", "oc", "mode", "kernel", "stride", "pad", "dilation", "groups", "count_pad")
SHORT = {"inputs": "in", "shapes": "in", "out_channels": "oc", "activation": "act"}


def to_text(op: Op) -> str:
    """The op as one line; equal ops give equal lines."""
    given = {
        key: _write(getattr(op, field.name))
        for key, field in _fields(type(op)).items()
        if getattr(op, field.name) != field.default
    }
    others = sorted(given.keys() - {*ORDER, "act"})
    order = [key for key in (*ORDER, *others, "act") if key in given]
    return " ".join([op.kind, *(f"{key}={given[key]}" for key in order)])


def _fields(cls: type[Op]) -> dict[str, Field[Any]]:
    """The fields that an op is made of, by their short names."""
    return {
        SHORT.get(field.name, field.name): field
        for field in fields(cls)
        if field.init and field.metadata.get("text", True)
    }


@cache
def _types(kind: str) -> Mapping[str, Any]:
    """The types of an op's fields; finding them takes longer than reading a text."""
    return get_type_hints(OP_TYPES[kind])


@lru_cache(maxsize=65536)
def parse(text: str) -> Op:
    """Read what `to_text` or a person wrote; raises `CodlError` with the word that is wrong."""
    kind, *words = text.split() or [""]
    if kind not in OP_TYPES:
        raise UnknownNameError("op", kind, OP_TYPES)
    cls = OP_TYPES[kind]
    known = _fields(cls)
    values: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key not in known or not equals:
            raise UnknownNameError(f"field of {kind}", word, known)
        values[known[key].name] = _read(cls, known[key], value)
    missing = [key for key, f in known.items() if f.default is MISSING and f.name not in values]
    if missing:
        raise CodlError(f"The op {text!r} lacks {', '.join(missing)}.")
    op = cls(**values)
    _check(op, text)
    return op


def _check(op: Op, text: str) -> None:
    """Refuse ops whose numbers do not fit together."""
    if any(size < 1 for shape in op.inputs for size in shape) or any(s < 1 for s in op.output):
        raise CodlError(f"The op {text!r} has an empty input or output ({op.output}).")
    if isinstance(op, Conv2d | ConvTranspose2d) and (
        op.input.c % op.groups or op.out_channels % op.groups
    ):
        raise CodlError(
            f"The op {text!r}: groups={op.groups} must divide the {op.input.c} input and "
            f"{op.out_channels} output channels."
        )
    if isinstance(op, Eltwise) and len(op.inputs) != (wanted := 1 if op.mode in UNARY else 2):
        raise CodlError(
            f"The op {text!r}: the mode {op.mode} takes {wanted} input(s), got {len(op.inputs)}."
        )


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


def _read(cls: type[Op], field: Field[Any], text: str) -> Any:
    kind = _types(cls.kind)[field.name]
    try:
        if kind is Activation:
            name, *numbers = text.split(":")
            if name not in ACTIVATIONS:
                raise UnknownNameError("activation", name, ACTIVATIONS)
            return Activation(name, *(float(v) for v in numbers))
        if kind is Pad:
            sides = [int(v) for v in text.split(",")]
            return Pad(*(sides * 4 if len(sides) == 1 else sides))
        if kind is Size2:
            sizes = [int(v) for v in text.split("x")]
            return Size2(*(sizes * 2 if len(sizes) == 1 else sizes))
        if field.name == "inputs":
            shapes = text.split(",")
            return tuple(Shape(*(int(v) for v in shape.split("x"))) for shape in shapes)
        if kind == tuple[Sizes, ...]:
            return tuple(_read_sizes(sizes) for sizes in text.split(","))
        if kind == Sizes:
            return _read_sizes(text)
        if kind == Numbers:
            return tuple(float(number) for number in text.split("x"))
        if kind is bool:
            return bool(int(text))
        return kind(text) if kind in (int, float) else text
    except (ValueError, TypeError) as error:
        example = {"inputs": "1x64x56x56", "pad": "1 or 1,1,0,1", "kernel": "3 or 3x3"}
        wanted = example.get(field.name, "a number")
        raise CodlError(
            f"Cannot read {SHORT.get(field.name, field.name)}={text!r} of a {cls.kind}: "
            f"expected something like {wanted}."
        ) from error
