"""Models of one's own: a few lines of YAML, layer by layer, with weights made from a seed.

A layer reads the one before it, or those that `from` names. What layers are called, or their op and
its number, are the names by which others and the caller know their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, TypeAlias

import onnx

from codl.errors import UnknownNameError
from codl.files import printable
from codl.frontend.models.builder import ModelBuilder, Pads
from codl.frontend.models.reading import (
    MOST,
    Key,
    Section,
    anything,
    flag,
    number,
    one_of,
    pair,
    sequence,
    sizes,
    text,
    whole,
)

Pair: TypeAlias = tuple[int, int]
INPUT = "input"


class LayerError(ValueError):
    """What is wrong with a layer, and with which of its keys."""

    def __init__(self, problem: str, key: str = "") -> None:
        super().__init__(problem)
        self.key = key


@dataclass(frozen=True)
class LayerKind:
    """What adds a layer to a builder, of tensors by name and the values of its own `keys`.

    It reads `least` to `most` tensors (None: any number), which must be `images` for some.
    """

    add: Callable[..., str]
    keys: Mapping[str, Key] = field(default_factory=dict)
    images: bool = False
    least: int = 1
    most: int | None = 1


def _conv(b: ModelBuilder, x: str, *, channels: int | None = None, groups: int | None = None,
          **window: Any) -> str:  # fmt: skip
    """Each channel alone where no number of them is given."""
    ic = b.shapes[x][1]
    oc, groups = channels or ic, groups or ic
    for name, count in (("the input's", ic), ("the output's", oc)):
        if count % groups:
            problem = f"groups must divide {name} {count} channels, got {groups}."
            raise LayerError(problem, "groups")
    norm, bias = window.pop("batch_norm"), window.pop("bias")
    window["pad"] = _padding(b.shapes[x], **window)
    x = b.conv(x, oc, groups=groups, bias=not norm if bias is None else bias, **window)
    return b.batch_norm(x) if norm else x


def _conv_transpose(b: ModelBuilder, x: str, *, channels: int, kernel: Pair, stride: Pair, pad: Any,
                    bias: bool) -> str:  # fmt: skip
    """`pad` is cut off; `same` leaves `stride` times the input's size."""
    if pad == "same":
        pad = _halved([max(k - s, 0) for k, s in zip(kernel, stride, strict=True)])
    return b.conv_transpose(x, channels, kernel, stride=stride, pad=pad, bias=bias)


def _pool(mode: str, b: ModelBuilder, x: str, *, kernel: Pair, stride: Pair | None,
          pad: Any) -> str:  # fmt: skip
    stride = stride or kernel
    pad = _padding(b.shapes[x], kernel, stride, pad)
    pool = b.max_pool if mode == "max" else b.average_pool
    return pool(x, kernel, stride, pad=pad)


def _fc(b: ModelBuilder, x: str, *, features: int) -> str:
    return b.fully_connected(x if len(b.shapes[x]) == 2 else b.flatten(x), features)


def _joined(kind: str, b: ModelBuilder, x: str, *others: str) -> str:
    """A sum or a product of two tensors or more, of one shape or one that stretches to it."""
    for other in others:
        x = b.node(kind, [x, other])
    return x


def _concat(b: ModelBuilder, *inputs: str) -> str:
    first, *others = (b.shapes[x] for x in inputs)
    for other in others:
        if len(first) != len(other) or (first[0], *first[2:]) != (other[0], *other[2:]):
            shapes = f"{_by(first)} and {_by(other)}"
            problem = f"concat joins channels, all else must be equal, got {shapes}."
            raise LayerError(problem, "from")
    return b.concat(inputs)


def _reshape(b: ModelBuilder, x: str, *, shape: tuple[int, ...]) -> str:
    if prod(shape) != prod(b.shapes[x]):
        problem = f"{_by(shape)} has other elements than {_by(b.shapes[x])} has."
        raise LayerError(problem, "shape")
    return b.reshape(x, shape)


def _transpose(b: ModelBuilder, x: str, *, order: tuple[int, ...]) -> str:
    rank = len(b.shapes[x])
    if sorted(order) != list(range(rank)):
        problem = f"must hold each of 0 ... {rank - 1} once, got {list(order)}."
        raise LayerError(problem, "order")
    return b.transpose(x, order)


def _pads(value: Any) -> Any:
    try:
        if isinstance(value, list):
            top, left, bottom, right = sequence(whole(0))(value)
            return top, left, bottom, right
        return value if type(value) is int and value >= 0 else one_of("same")(value)
    except ValueError as error:
        message = (
            "expected same, rows and columns on every side, or those above, left, below, right"
        )
        raise ValueError(message) from error


WINDOW = {"kernel": Key(pair(1)), "stride": Key(pair(1), (1, 1)), "pad": Key(_pads, "same")}
POOL = {**WINDOW, "stride": Key(pair(1), None), "pad": Key(_pads, 0)}
DEPTHWISE = {
    **WINDOW,
    "dilation": Key(pair(1), (1, 1)),
    "bias": Key(flag, None),
    "batch_norm": Key(flag, False),
}
CHANNELS, FEATURES = {"channels": Key(whole(1))}, {"features": Key(whole(1))}
LAYERS: Mapping[str, LayerKind] = {
    "activation": LayerKind(lambda b, x: x),
    "add": LayerKind(partial(_joined, "Add"), least=2, most=None),
    "average_pool": LayerKind(partial(_pool, "avg"), POOL, images=True),
    "batch_norm": LayerKind(ModelBuilder.batch_norm, images=True),
    "concat": LayerKind(_concat, least=2, most=None),
    "conv": LayerKind(_conv, {**CHANNELS, **DEPTHWISE, "groups": Key(whole(1), 1)}, images=True),
    "conv_transpose": LayerKind(
        _conv_transpose, {**CHANNELS, **WINDOW, "bias": Key(flag, True)}, images=True
    ),
    "depthwise_conv": LayerKind(_conv, DEPTHWISE, images=True),
    "fc": LayerKind(_fc, FEATURES),
    "flatten": LayerKind(ModelBuilder.flatten),
    "global_average_pool": LayerKind(ModelBuilder.global_average_pool, images=True),
    "instance_norm": LayerKind(ModelBuilder.instance_norm, images=True),
    "layer_norm": LayerKind(ModelBuilder.layer_norm),
    "linear": LayerKind(ModelBuilder.linear, FEATURES),
    "matmul": LayerKind(ModelBuilder.matmul, least=2, most=2),
    "max_pool": LayerKind(partial(_pool, "max"), POOL, images=True),
    "mul": LayerKind(partial(_joined, "Mul"), least=2, most=None),
    "reshape": LayerKind(_reshape, {"shape": Key(sizes)}),
    "softmax": LayerKind(ModelBuilder.softmax),
    "transpose": LayerKind(_transpose, {"order": Key(sequence(whole(0)))}),
    "upsample": LayerKind(ModelBuilder.upsample, {"factor": Key(pair(1))}, images=True),
}
#: By name, of a builder, a tensor and the key `alpha`.
ACTIVATIONS: Mapping[str, Callable[[ModelBuilder, str, float], str]] = {
    "none": lambda b, x, alpha: x,
    "elu": lambda b, x, alpha: b.node("Elu", [x]),
    "gelu": lambda b, x, alpha: b.gelu(x),
    "hard_sigmoid": lambda b, x, alpha: b.node("HardSigmoid", [x]),
    "hard_swish": lambda b, x, alpha: b.node("HardSwish", [x]),
    "leaky_relu": lambda b, x, alpha: b.leaky_relu(x, alpha),
    "relu": lambda b, x, alpha: b.relu(x),
    "relu6": lambda b, x, alpha: b.clip(x, 0.0, 6.0),
    "sigmoid": lambda b, x, alpha: b.node("Sigmoid", [x]),
    "silu": lambda b, x, alpha: b.silu(x),
    "tanh": lambda b, x, alpha: b.node("Tanh", [x]),
}
#: Keys that every layer may have.
COMMON = {
    "op": Key(text),
    "name": Key(text, ""),
    "from": Key(anything, None),
    "activation": Key(text, "none"),
    "alpha": Key(number, 0.1),
}


def _padding(shape: tuple[int, ...], kernel: Pair, stride: Pair, pad: Any,
             dilation: Pair = (1, 1)) -> Pads:  # fmt: skip
    """Padding as it is given, or that of `same`; no window is larger than the padded input."""
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    if pad == "same":
        axes = zip(shape[2:], reach, stride, strict=True)
        return _halved([max((-(-n // s) - 1) * s + r - n, 0) for n, r, s in axes])
    top, left, bottom, right = (pad,) * 4 if isinstance(pad, int) else pad
    room = (shape[2] + top + bottom, shape[3] + left + right)
    if reach[0] > room[0] or reach[1] > room[1]:
        windows = f"a window of {_by(reach)} does not fit the input of {_by(room)}"
        raise LayerError(f"{windows}, padding included.", "kernel")
    padding: Pads = pad
    return padding


def _halved(totals: list[int]) -> Pads:
    """Rows and columns of padding on both sides, what is left over behind."""
    (top, left), (bottom, right) = ([t // 2 for t in totals], [t - t // 2 for t in totals])
    return top, left, bottom, right


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def build(top: Section) -> onnx.ModelProto:
    """The ONNX model that a YAML file describes; raises `InvalidFileError` with line and key."""
    top.check_keys(("name", "inputs", "layers", "outputs", "seed"))
    name = top.take("name", text, printable(top.path.stem))
    b = ModelBuilder(name, seed=top.take("seed", whole(0), 0))
    inputs = _inputs(top)
    tensors = {key: b.input(key, shape) for key, shape in inputs.items()}
    layers = list(top.sections("layers"))
    last = next(reversed(tensors))
    for layer, called in zip(layers, _names(layers, tensors), strict=True):
        b.scope = called
        last = tensors[called] = _layer(b, layer, tensors, last)
    b.scope = ""
    for called in top.take("outputs", sequence(text), (next(reversed(tensors)),)):
        if called not in tensors:
            top.refuse(str(UnknownNameError("layer", called, tensors)), "outputs")
        if called in inputs:
            top.refuse(f"the input {called!r} cannot be an output too.", "outputs")
        b.output(b.node("Identity", [tensors[called]], name=called))
    return b.build()


def _inputs(top: Section) -> Mapping[str, tuple[int, ...]]:
    """One shape, or several by name."""
    shapes = top.take("inputs", anything)
    if not isinstance(shapes, Mapping):
        return {INPUT: top.take("inputs", sizes)}
    section = top.section("inputs")
    if not shapes:
        section.refuse("expected at least one input.")
    return {name: section.take(name, sizes) for name in shapes}


def _names(layers: list[Section], taken: Mapping[str, str]) -> list[str]:
    """What each layer is called: as it says, or its op and the next free number."""
    names_given = [layer.take("name", text, "") for layer in layers]
    used = set(taken)
    for layer, name in zip(layers, names_given, strict=True):
        if name and name in used:
            layer.refuse(f"the name {name!r} is taken, give another.", "name")
        used.add(name)
    names = []
    for layer, name in zip(layers, names_given, strict=True):
        op, number = layer.take("op", text), 1
        while not name or (name in used and name not in names_given):
            name, number = f"{op}{number}", number + 1
        used.add(name)
        names.append(name)
    return names


def _layer(b: ModelBuilder, layer: Section, tensors: Mapping[str, str], last: str) -> str:
    """Add a layer, and the activation that it ends with; the tensor it makes."""
    op = layer.take("op", text)
    if op not in LAYERS:
        layer.refuse(str(UnknownNameError("op", op, LAYERS)), "op")
    kind = LAYERS[op]
    layer.check_keys((*COMMON, *kind.keys))
    inputs = _read(layer, tensors, last)
    shapes = [_by(b.shapes[x]) for x in inputs]
    if not kind.least <= len(inputs) <= (kind.most or len(inputs)):
        wanted = "two or more" if kind.most is None else str(kind.most)
        layer.refuse(f"{op} reads {wanted}, got {len(inputs)} (name them under `from`).", "from")
    if kind.images and len(b.shapes[inputs[0]]) != 4:
        layer.refuse(f"needs images (1, channels, rows, columns), its input is {shapes[0]}.")
    if op == "activation" and "activation" not in layer.content:
        layer.refuse(f"the key 'activation' is missing: one of {', '.join(ACTIVATIONS)}.")
    values, common = layer.values(kind.keys), layer.values(COMMON)
    activation = common["activation"]
    if activation not in ACTIVATIONS:
        layer.refuse(str(UnknownNameError("activation", activation, ACTIVATIONS)), "activation")
    try:
        made = ACTIVATIONS[activation](b, kind.add(b, *inputs, **values), common["alpha"])
    except LayerError as error:
        layer.refuse(str(error), error.key)
    except onnx.shape_inference.InferenceError as error:
        reason = str(error).strip().splitlines()[-1]
        layer.refuse(f"{op} cannot be done on {', '.join(shapes)}: {reason}")
    if prod(b.shapes[made]) > MOST:
        layer.refuse(f"{op} makes more than {MOST} numbers.")
    return made


def _read(layer: Section, tensors: Mapping[str, str], last: str) -> tuple[str, ...]:
    sources = layer.take("from", anything, None)
    if sources is None:
        return (last,)
    names = (sources,) if isinstance(sources, str) else layer.take("from", sequence(text))
    for name in names:
        if name not in tensors:
            layer.refuse(str(UnknownNameError("layer before this one", name, tensors)), "from")
    return tuple(tensors[name] for name in names)
