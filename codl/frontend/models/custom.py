"""Models of one's own: a few lines of YAML, layer by layer, with weights made from a seed.

A layer reads the one before it, or those that `from` names. What layers are called, or their op and
its number, are the names by which others and the caller know their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import onnx

from codl.errors import UnknownNameError
from codl.frontend.models.builder import ModelBuilder, Pads
from codl.frontend.models.reading import (
    MOST,
    Section,
    flag,
    number,
    one_of,
    pair,
    sequence,
    sizes,
    text,
    whole,
)

Inputs: TypeAlias = tuple[str, ...]
LayerWindow: TypeAlias = tuple[tuple[int, int], tuple[int, int], Pads]


@dataclass(frozen=True)
class LayerKind:
    """What adds a layer, which keys of its own it has, and how many tensors it reads."""

    add: Callable[[ModelBuilder, Section, Inputs], str]
    keys: tuple[str, ...] = ()
    least: int = 1
    most: int | None = 1


def _conv(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    channels = _image(b, layer, inputs[0])[1]
    oc = layer.take("channels", whole(1))
    groups = layer.take("groups", whole(1), 1)
    for name, count in (("the input's", channels), ("the output's", oc)):
        if count % groups:
            layer.refuse(f"groups must divide {name} {count} channels, got {groups}.", "groups")
    return _convolved(b, layer, inputs[0], oc, groups)


def _depthwise(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    channels = _image(b, layer, inputs[0])[1]
    return _convolved(b, layer, inputs[0], channels, channels)


def _convolved(b: ModelBuilder, layer: Section, x: str, oc: int, groups: int) -> str:
    dilation = layer.take("dilation", pair(1), (1, 1))
    kernel, stride, pad = _window(b, layer, x, "same", dilation)
    norm = layer.take("batch_norm", flag, False)
    bias = layer.take("bias", flag, not norm)
    x = b.conv(x, oc, kernel, pad=pad, stride=stride, dilation=dilation, bias=bias, groups=groups)
    return b.batch_norm(x) if norm else x


def _conv_transpose(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    """`pad` is cut off; `same` leaves `stride` times the input's size."""
    x = inputs[0]
    _image(b, layer, x)
    kernel, stride = layer.take("kernel", pair(1)), layer.take("stride", pair(1), (1, 1))
    pad = layer.take("pad", _pads, "same")
    if pad == "same":
        totals = [max(k - s, 0) for k, s in zip(kernel, stride, strict=True)]
        pad = _shared(totals)
    bias = layer.take("bias", flag, True)
    return b.conv_transpose(
        x, layer.take("channels", whole(1)), kernel, stride=stride, pad=pad, bias=bias
    )


def _pool(mode: str) -> Callable[[ModelBuilder, Section, Inputs], str]:
    def add(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
        _image(b, layer, inputs[0])
        kernel, stride, pad = _window(b, layer, inputs[0], 0, (1, 1), layer.take("kernel", pair(1)))
        pool = b.max_pool if mode == "max" else b.average_pool
        return pool(inputs[0], kernel, stride, pad=pad)

    return add


def _global_average_pool(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    _image(b, layer, inputs[0])
    return b.global_average_pool(inputs[0])


def _fc(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    x = inputs[0]
    return b.fully_connected(
        x if len(b.shapes[x]) == 2 else b.flatten(x), layer.take("features", whole(1))
    )


def _linear(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    return b.linear(inputs[0], layer.take("features", whole(1)))


def _joined(kind: str) -> Callable[[ModelBuilder, Section, Inputs], str]:
    """A sum or a product of two tensors or more, of one shape or one that stretches to it."""

    def add(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
        x, *others = inputs
        for other in others:
            x = b.node(kind, [x, other])
        return x

    return add


def _concat(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    for x in inputs[1:]:
        first, own = b.shapes[inputs[0]], b.shapes[x]
        if len(first) != len(own) or (first[0], *first[2:]) != (own[0], *own[2:]):
            layer.refuse(
                f"concat joins channels, all else must be equal, got {_by(first)} and {_by(own)}.",
                "from",
            )
    return b.concat(inputs)


def _activation(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    """The key `activation` says which."""
    if "activation" not in layer.content:
        layer.refuse(f"the key 'activation' is missing: one of {', '.join(ACTIVATIONS)}.")
    return inputs[0]


def _plain(name: str) -> Callable[[ModelBuilder, Section, Inputs], str]:
    """A method of the builder that needs nothing but the tensor."""
    return lambda b, layer, inputs: str(getattr(b, name)(inputs[0]))


def _on_images(name: str) -> Callable[[ModelBuilder, Section, Inputs], str]:
    def add(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
        _image(b, layer, inputs[0])
        return str(getattr(b, name)(inputs[0]))

    return add


def _upsample(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    _image(b, layer, inputs[0])
    return b.upsample(inputs[0], layer.take("factor", pair(1)))


def _reshape(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    shape, before = layer.take("shape", sizes), b.shapes[inputs[0]]
    if prod(shape) != prod(before):
        layer.refuse(f"{_by(shape)} has other elements than {_by(before)} has.", "shape")
    return b.reshape(inputs[0], shape)


def _transpose(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    order, rank = layer.take("order", sequence(whole(0))), len(b.shapes[inputs[0]])
    if sorted(order) != list(range(rank)):
        layer.refuse(f"must hold each of 0 ... {rank - 1} once, got {list(order)}.", "order")
    return b.transpose(inputs[0], order)


def _matmul(b: ModelBuilder, layer: Section, inputs: Inputs) -> str:
    return b.matmul(*inputs)


WINDOW = ("kernel", "stride", "pad")
LAYERS: Mapping[str, LayerKind] = {
    "activation": LayerKind(_activation),
    "add": LayerKind(_joined("Add"), least=2, most=None),
    "average_pool": LayerKind(_pool("avg"), WINDOW),
    "batch_norm": LayerKind(_on_images("batch_norm")),
    "concat": LayerKind(_concat, least=2, most=None),
    "conv": LayerKind(_conv, (*WINDOW, "channels", "dilation", "groups", "bias", "batch_norm")),
    "conv_transpose": LayerKind(_conv_transpose, (*WINDOW, "channels", "bias")),
    "depthwise_conv": LayerKind(_depthwise, (*WINDOW, "dilation", "bias", "batch_norm")),
    "fc": LayerKind(_fc, ("features",)),
    "flatten": LayerKind(_plain("flatten")),
    "global_average_pool": LayerKind(_global_average_pool),
    "instance_norm": LayerKind(_on_images("instance_norm")),
    "layer_norm": LayerKind(_plain("layer_norm")),
    "linear": LayerKind(_linear, ("features",)),
    "matmul": LayerKind(_matmul, least=2, most=2),
    "max_pool": LayerKind(_pool("max"), WINDOW),
    "mul": LayerKind(_joined("Mul"), least=2, most=None),
    "reshape": LayerKind(_reshape, ("shape",)),
    "softmax": LayerKind(_plain("softmax")),
    "transpose": LayerKind(_transpose, ("order",)),
    "upsample": LayerKind(_upsample, ("factor",)),
}


def _named(kind: str) -> Callable[[ModelBuilder, Section, str], str]:
    return lambda b, layer, x: b.node(kind, [x])


ACTIVATIONS: Mapping[str, Callable[[ModelBuilder, Section, str], str]] = {
    "none": lambda b, layer, x: x,
    "elu": _named("Elu"),
    "gelu": lambda b, layer, x: b.gelu(x),
    "hard_sigmoid": _named("HardSigmoid"),
    "hard_swish": _named("HardSwish"),
    "leaky_relu": lambda b, layer, x: b.leaky_relu(x, layer.take("alpha", number, 0.1)),
    "relu": lambda b, layer, x: b.relu(x),
    "relu6": lambda b, layer, x: b.clip(x, 0.0, 6.0),
    "sigmoid": _named("Sigmoid"),
    "silu": lambda b, layer, x: b.mul(x, b.node("Sigmoid", [x])),
    "tanh": _named("Tanh"),
}


def _image(b: ModelBuilder, layer: Section, x: str) -> tuple[int, ...]:
    """The shape of an input that must have channels, rows and columns."""
    shape = b.shapes[x]
    if len(shape) != 4:
        layer.refuse(f"needs images (1, channels, rows, columns), its input is {_by(shape)}.")
    return shape


def _window(
    b: ModelBuilder,
    layer: Section,
    x: str,
    usual: Any,
    dilation: tuple[int, int],
    step: tuple[int, int] = (1, 1),
) -> LayerWindow:
    """Kernel, stride (`step` where it is not given) and padding (`usual`)."""
    kernel, stride = layer.take("kernel", pair(1)), layer.take("stride", pair(1), step)
    pad = layer.take("pad", _pads, usual)
    if pad != "same":
        _check_fit(layer, b.shapes[x], kernel, dilation, pad)
        return kernel, stride, pad
    axes = zip(b.shapes[x][2:], kernel, stride, dilation, strict=True)
    totals = [max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for n, k, s, d in axes]
    return kernel, stride, _shared(totals)


def _check_fit(
    layer: Section, shape: tuple[int, ...], kernel: tuple[int, int], dilation: tuple[int, int],
    pad: Pads
) -> None:  # fmt: skip
    """Refuse a window that is larger than the padded input."""
    top, left, bottom, right = (pad,) * 4 if isinstance(pad, int) else pad
    room = (shape[2] + top + bottom, shape[3] + left + right)
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    if reach[0] > room[0] or reach[1] > room[1]:
        layer.refuse(
            f"a window of {_by(reach)} does not fit the input of {_by(room)}, padding included.",
            "kernel",
        )


def _shared(totals: list[int]) -> Pads:
    """Rows and columns of padding on both sides, what is left over behind."""
    (top, left), (bottom, right) = ([t // 2 for t in totals], [t - t // 2 for t in totals])
    return top, left, bottom, right


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


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


KEYS = ("name", "inputs", "layers", "outputs", "seed")
COMMON = ("op", "name", "from", "activation", "alpha")
INPUT = "input"


def build(top: Section) -> onnx.ModelProto:
    """The ONNX model that a YAML file describes; raises `InvalidFileError` with line and key."""
    top.check_keys(KEYS)
    name = top.take("name", text, top.path.stem)
    b = ModelBuilder(name, seed=top.take("seed", whole(0), 0))
    tensors = {key: b.input(key, shape) for key, shape in _inputs(top).items()}
    layers = list(top.sections("layers"))
    last = next(reversed(tensors))
    for layer, called in zip(layers, _names(layers, tensors), strict=True):
        b.scope = called
        last = tensors[called] = _layer(b, layer, tensors, last)
    b.scope = ""
    for called in top.take("outputs", sequence(text), (next(reversed(tensors)),)):
        if called not in tensors:
            top.refuse(str(UnknownNameError("layer", called, tensors)), "outputs")
        if called in _inputs(top):
            top.refuse(f"the input {called!r} cannot be an output too.", "outputs")
        b.output(b.node("Identity", [tensors[called]], name=called))
    return b.build()


def _inputs(top: Section) -> Mapping[str, tuple[int, ...]]:
    """One shape, or several by name."""
    given = top.take("inputs", lambda value: value)
    if not isinstance(given, Mapping):
        return {INPUT: top.take("inputs", sizes)}
    section = top.section("inputs")
    if not given:
        section.refuse("expected at least one input.")
    return {name: section.take(name, sizes) for name in given}


def _names(layers: list[Section], taken: Mapping[str, str]) -> list[str]:
    """What each layer is called: as it says, or its op and the next free number."""
    given = [layer.take("name", text, "") for layer in layers]
    used = set(taken)
    for layer, name in zip(layers, given, strict=True):
        if name and name in used:
            layer.refuse(f"the name {name!r} is taken, give another.", "name")
        used.add(name)
    names = []
    for layer, name in zip(layers, given, strict=True):
        op, number = layer.take("op", text), 1
        while not name or (name in used and name not in given):
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
    inputs = _read(b, layer, tensors, last)
    wanted = "two or more" if kind.most is None else str(kind.most)
    if not kind.least <= len(inputs) <= (kind.most or len(inputs)):
        layer.refuse(f"{op} reads {wanted}, got {len(inputs)} (name them under `from`).", "from")
    try:
        made = kind.add(b, layer, inputs)
        activation = layer.take("activation", text, "none")
        if activation not in ACTIVATIONS:
            layer.refuse(str(UnknownNameError("activation", activation, ACTIVATIONS)), "activation")
        made = ACTIVATIONS[activation](b, layer, made)
        if prod(b.shapes[made]) > MOST:
            layer.refuse(f"{op} makes more than {MOST} numbers.")
    except onnx.shape_inference.InferenceError as error:
        reason = str(error).strip().splitlines()[-1]
        shapes = ", ".join("x".join(map(str, b.shapes[x])) for x in inputs)
        layer.refuse(f"{op} cannot be done on {shapes}: {reason}")
    return made


def _read(b: ModelBuilder, layer: Section, tensors: Mapping[str, str], last: str) -> Inputs:
    given = layer.take("from", lambda value: value, None)
    if given is None:
        return (last,)
    names = (given,) if isinstance(given, str) else layer.take("from", sequence(text))
    for name in names:
        if name not in tensors:
            layer.refuse(str(UnknownNameError("layer before this one", name, tensors)), "from")
    return tuple(tensors[name] for name in names)
