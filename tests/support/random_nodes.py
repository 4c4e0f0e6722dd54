"""Random nodes of ONNX graphs: every operator that a converter knows, with all that it reads.

Others run whole in ONNX Runtime; groups of nodes are as exporters write them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import prod
from random import Random
from typing import TypeAlias

import numpy as np
from onnx import helper

from support.random_forms import FORMS, drawn_forms, in_form
from support.random_forms import OPSETS as EVERY_OPSET
from support.random_graphs import MICROSOFT, OPSETS, Drawing, Dropped, RandomGraph

Step: TypeAlias = Callable[[Drawing], object]

#: Functions of every element, and what comes before some of them.
PLAIN = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf"),
    *("Exp", "Floor", "Gelu", "HardSwish", "Identity", "Log", "Mish", "Neg", "Reciprocal", "Relu"),
    *("Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan"),
    *("Tanh", "Swish"),
)
GUARDS = {
    "Acos": "Tanh", "Asin": "Tanh", "Atanh": "Softsign", "Acosh": "Cosh", "Log": "Exp",
    "Sqrt": "Abs", "Reciprocal": "Exp", "Tan": "Sigmoid", "Exp": "Tanh", "Cosh": "Tanh",
}  # fmt: skip
BINARY = ("Add", "Add", "Sub", "Mul", "Mul", "Div", "Min", "Max", "Pow", "PRelu", "Mod")
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
EINSUMS = ("ij,jk->ik", "bij,bjk->bik", "bhid,bhjd->bhij", "ij->ji", "bij->bi", "i,j->ij",
           "ij,ij->i", "bij,jk->bik", "...i->...", "bchw,cd->bdhw", "ii->i", "ij->")  # fmt: skip


#: What steps raise that do not fit the tensors that are there.
UNFIT = (Dropped, ArithmeticError, LookupError, ValueError)


def draw_graph(seed: int, index: int, forms: Collection[str] = tuple(FORMS)) -> RandomGraph:
    """Graph `index` of a seed, written in some of the forms.

    It is the same wherever ONNX Runtime takes the same nodes.
    """
    drawn = drawn_forms(seed, index, forms)
    for attempt in range(20):
        dice = Random(f"graph {seed} {index} {attempt}")
        try:
            graph = _drawn(dice, drawn)
            return in_form(graph, drawn, Random(f"form {seed} {index} {attempt}"))
        except Dropped:
            continue
    raise AssertionError(f"graph {index} of seed {seed} has no nodes")


def _drawn(dice: Random, forms: Collection[str]) -> RandomGraph:
    profile = dice.choices(("common", "values", "symbolic", "empty", "types"), (70, 10, 10, 3, 7))[
        0
    ]
    dtype = np.float32
    if profile == "types":
        dtype = dice.choice((np.float16, np.float16, np.float64))
    opset = dice.choice(OPSETS)
    if "opset" in forms:
        opset = dice.choice(EVERY_OPSET)
    profile = "values" if "strays" in forms else profile
    g = Drawing(dice, opset, dtype, profile)
    if "strays" in forms:
        _stray(g)
    focus = dice.choice([*GROUPS, *GROUPS, "mixed"])
    g.graph.profile = f"{profile} {focus}"
    wanted = dice.choice((1, 2, 2, 3, 3, 4, 5, 6, 8, 12))
    done = tried = 0
    while done < wanted and tried < 4 * wanted + 8:
        tried += 1
        group = focus if focus != "mixed" and g.chance(0.75) else dice.choice(list(GROUPS))
        try:
            g.one_of(GROUPS[group])(g)
            done += 1
        except UNFIT:
            continue
    return g.finish()


def _stray(g: Drawing) -> None:
    """Values that are no numbers, made by nodes of an input that has none."""
    x = g.input(g.numbers(1, 4, 6, 6))
    g.graph.feeds[x] = g.values[x] = np.abs(g.values[x]) - g.values[x].dtype.type(0.4)
    kind = g.one_of(("Log", "Sqrt", "Div", "Pow", "Acosh"))
    if kind == "Div":
        g.node("Div", x, g.node("Relu", x))
    elif kind == "Pow":
        g.node("Pow", x, g.constant(0.5))
    else:
        g.node(kind, g.node("Relu", x) if kind == "Log" and g.chance(0.5) else x)


def _plain(g: Drawing) -> None:
    kind, x = g.one_of(PLAIN), g.any()
    if kind in GUARDS and g.chance(0.7):
        x = g.node(GUARDS[kind], x)
    g.node(kind, x)


def _activation(g: Drawing) -> None:
    """With attributes."""
    kind, x = g.one_of(list(ACTIVATIONS)), g.any()
    values = {
        name: round(g.dice.uniform(*span), 3) if isinstance(span, tuple) else g.one_of(span)
        for name, span in ACTIVATIONS[kind].items()
    }
    domain, _, kind = kind.rpartition("/")
    inputs = [x]
    if kind == "FastGelu" and g.chance(0.4):
        inputs.append(g.weight(g.shape(x)[-1]))
    g.node(kind, *inputs, domain=domain, **g.some(**values))


ACTIVATIONS: Mapping[str, Mapping[str, tuple[float, float] | list[str]]] = {
    "Celu": {"alpha": (0.2, 3)},
    "Elu": {"alpha": (-1, 3)},
    "Gelu": {"approximate": ["none", "tanh"]},
    "HardSigmoid": {"alpha": (-0.5, 0.8), "beta": (-0.5, 1)},
    "LeakyRelu": {"alpha": (-0.5, 1.5)},
    "Selu": {"alpha": (0.5, 2), "gamma": (-1, 2)},
    "Shrink": {"bias": (-1, 1), "lambd": (0, 1)},
    "Swish": {"alpha": (-2, 2)},
    "ThresholdedRelu": {"alpha": (-1, 1)},
    f"{MICROSOFT}/FastGelu": {},
    f"{MICROSOFT}/Gelu": {},
    f"{MICROSOFT}/QuickGelu": {"alpha": (-2, 2)},
}


def _along(g: Drawing) -> None:
    """Along one axis."""
    x = g.any()
    kind = g.one_of(("Softmax", "Softmax", "LogSoftmax", "LpNormalization", "Hardmax", "CumSum"))
    axis = g.axis(g.rank(x))
    if kind == "CumSum":
        g.node(kind, x, g.constant(axis), **g.some(reverse=1, exclusive=1))
    else:
        more = g.some(p=g.one_of((1, 2))) if kind == "LpNormalization" else {}
        g.node(kind, x, **g.some(axis=axis), **more)


def _clip(g: Drawing) -> None:
    x = g.any()
    low = g.constant(g.dice.uniform(-1.5, 0.5)) if g.chance(0.7) else ""
    high = g.constant(g.dice.uniform(-0.5, 6)) if g.chance(0.7) else ""
    g.node("Clip", x, low, high)


def _partner(g: Drawing, x: str) -> str:
    """Another operand, of which some axes are stretched, or that stretches some."""
    shape = list(g.shape(x))
    form = g.one_of(("same", "same", "channel", "few", "few", "one", "wide", "scalar", "itself"))
    if form == "itself":
        return x
    if form == "same":
        return g.like(x)
    if form == "channel" and len(shape) > 1:
        shape = [shape[1], *[1] * (len(shape) - 2)]
    elif form == "few":
        shape = [1 if g.chance(0.5) else n for n in shape][g.one_of((0, 0, 1)) :]
    elif form == "wide":
        shape = [g.one_of((2, 3)) if n == 1 and g.chance(0.5) else n for n in shape]
        shape = [2, *shape] if len(shape) < 5 and g.chance(0.3) else shape
    elif form == "scalar":
        return g.constant(float(g.one_of((2.0, 0.5, -1.0, 3.0, 1.0, 0.0, g.dice.gauss(0, 1)))))
    else:
        shape = [1] * len(shape)
    value = g.numbers(*shape)
    return g.given(value, 0.7)


def _binary(g: Drawing) -> None:
    kind, x = g.one_of(BINARY), g.any()
    y = _partner(g, x)
    if kind == "PRelu" and np.broadcast_shapes(g.shape(x), g.shape(y)) != g.shape(x):
        raise Dropped("ONNX stretches the slope alone")
    if kind == "Div" and g.chance(0.7):
        y = g.node("Exp", y)
    if kind == "Pow":
        if g.chance(0.7):
            y = g.constant(float(g.one_of((2.0, 2.0, 3.0, 0.5, -1.0, 1.0, 0.0))))
        x = g.node("Abs", x) if g.chance(0.5) else x
    more = {"fmod": 1} if kind == "Mod" else {}
    if kind not in ("PRelu", "Pow") and g.chance(0.4):
        x, y = y, x
    g.node(kind, x, y, **more)


def _several(g: Drawing) -> None:
    x = g.any()
    kind = g.one_of(("Sum", "Mean", "Max", "Min"))
    g.node(kind, x, *(_partner(g, x) for _ in range(g.one_of((0, 1, 2, 3)))))


def _choice(g: Drawing) -> None:
    """A comparison, and what is done with it."""
    x = g.any()
    y = _partner(g, x)
    kind = g.one_of(("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal", "IsNaN", "IsInf"))
    found = g.node(kind, x) if kind.startswith("Is") else g.node(kind, x, y)
    if g.chance(0.3):
        found = g.node(g.one_of(("And", "Or", "Xor")), found, g.node("Not", found))
    if g.chance(0.5):
        g.node("Where", found, x, _partner(g, x))
    elif g.chance(0.7):
        g.cast(found, g.dtype)


def _casts(g: Drawing) -> None:
    """To another type and, mostly, back."""
    x = g.any()
    if g.chance(0.5):
        x = g.node("Mul", x, g.constant(float(g.one_of((3.0, 50.0)))))
    other = g.one_of((np.float16, np.float64, np.int32, np.int64, np.bool_, np.float32))
    y = g.cast(x, other)
    if other in (np.int32, np.int64) and g.chance(0.6):
        y = g.node(g.one_of(("Abs", "Neg", "Sign", "Identity")), y)
        if g.chance(0.5):
            number = np.array(g.one_of((2, -3, 7)), other)
            y = g.node(g.one_of(("Add", "Mul", "Mod", "Max", "Sub")), y, g.constant(number))
    if g.chance(0.8):
        g.cast(y, g.dtype)


def _integers(g: Drawing) -> None:
    """An input of integers, with some of which floats cannot be made exactly."""
    dtype = g.one_of((np.int64, np.int64, np.int32, np.uint8, np.int8, np.bool_))
    low, high = {np.uint8: (0, 256), np.int8: (-128, 128), np.bool_: (0, 2)}.get(dtype, (-50, 50))
    x = g.input(g.whole(low, high, *g.ints(SIZES_OF_INTS, g.one_of((1, 2, 4))), dtype=dtype))
    if g.chance(0.5):
        x = g.node(g.one_of(("Identity", "Neg", "Abs", "Flatten", "Add", "Not")), x)
    if g.chance(0.6):
        g.cast(x, g.dtype)


SIZES_OF_INTS = (1, 2, 3, 5, 8)


def _window(g: Drawing, sizes: tuple[int, ...], *, most: int = 5) -> dict[str, list[int]]:
    """Kernel, strides, dilations and pads of one window."""
    rank = len(sizes)

    def sizes_of(values: tuple[int, ...]) -> list[int]:
        return g.ints(values, rank) if g.chance(0.4) else [g.one_of(values)] * rank

    kernel = sizes_of((1, 2, 3, 3, most))
    return {
        "kernel_shape": kernel,
        "strides": sizes_of((1, 1, 2, 3)),
        "dilations": g.ints((1, 2, 3), rank) if g.chance(0.2) else [1] * rank,
        "pads": [g.dice.randint(0, k // 2) for k in (*kernel, *kernel)]
        if g.chance(0.4)
        else [k // 2 for k in (*kernel, *kernel)] if g.chance(0.6) else [0] * (2 * rank),
    }  # fmt: skip


def _placed(g: Drawing, window: dict[str, list[int]]) -> dict[str, object]:
    """The same, in some of the ways to write it."""
    kept: dict[str, object] = {**window}
    if g.chance(0.2):
        kept["auto_pad"] = g.one_of(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
        if kept["auto_pad"] != "NOTSET":
            del kept["pads"]
    for name, usual in (("strides", 1), ("dilations", 1), ("pads", 0)):
        if name in kept and set(window[name]) == {usual} and g.chance(0.5):
            del kept[name]
    return kept


def _groups(g: Drawing, channels: int) -> int:
    divisors = [n for n in range(1, channels + 1) if channels % n == 0]
    return int(g.one_of([1, 1, channels, *divisors]))


def _spatial(g: Drawing) -> str:
    return g.image(g.one_of((4, 4, 4, 4, 4, 4, 3, 5)))


def _conv(g: Drawing) -> str:
    x = _spatial(g)
    _, c, *sizes = g.shape(x)
    window = _window(g, tuple(sizes))
    groups = _groups(g, c)
    each = g.one_of((1, 2, 4)) if groups > 1 else g.one_of((1, 2, 3, 4, 8, 12, 17, 32))
    kernel = window["kernel_shape"]
    scale = (c // groups * prod(kernel)) ** -0.5
    weight = g.numbers(groups * each, c // groups, *kernel, scale=scale)
    inputs = [x, g.given(weight, 0.95)]
    if g.chance(0.6):
        inputs.append(g.weight(groups * each))
    kept = _placed(g, window)
    if g.chance(0.5):
        del kept["kernel_shape"]
    more = {"group": groups} if groups > 1 or g.chance(0.5) else {}
    y = g.node("Conv", *inputs, **more, **kept)
    return _after(g, y) if g.chance(0.4) else y


def _after(g: Drawing, y: str) -> str:
    """What stands behind a convolution or a product, and fuses with it."""
    kind = g.one_of(("Relu", "LeakyRelu", "Sigmoid", "HardSwish", "BatchNormalization", "Mul",
                     "Add", "residual", "Clip", "SiLU", "Gelu"))  # fmt: skip
    if kind == "BatchNormalization":
        return _batch_norm(g, y)
    if kind in ("Mul", "Add"):
        shape = (g.shape(y)[1], *[1] * (g.rank(y) - 2)) if g.rank(y) > 2 else g.shape(y)[-1:]
        return g.node(kind, y, g.weight(*shape))
    if kind == "residual":
        if g.chance(0.5):
            return g.node("Relu", g.node("Add", y, g.like(y)))
        return g.node("Add", g.like(y), y)
    if kind == "Clip":
        return g.node("Clip", y, g.constant(0.0), g.constant(float(g.one_of((1.0, 6.0)))))
    if kind == "SiLU":
        return g.node("Mul", y, g.node("Sigmoid", y))
    if kind == "Gelu":
        half = g.node("Erf", g.node("Div", y, g.constant(2.0**0.5)))
        y = g.node("Mul", y, g.node("Add", half, g.constant(1.0)))
        return g.node("Mul", y, g.constant(0.5))
    return g.node(kind, y)


def _conv_transpose(g: Drawing) -> None:
    x = g.image(g.one_of((4, 4, 4, 3, 5)))
    _, c, *sizes = g.shape(x)
    window = _window(g, tuple(sizes), most=4)
    groups, each = _groups(g, c), g.one_of((1, 2, 3, 4, 8))
    weight = g.numbers(c, each, *window["kernel_shape"], scale=(c // groups) ** -0.5)
    inputs = [x, g.constant(weight)]
    if g.chance(0.5):
        inputs.append(g.weight(groups * each))
    kept = _placed(g, window)
    strides = window["strides"]
    if g.chance(0.3) and kept.get("auto_pad", "NOTSET") == "NOTSET":
        kept["output_padding"] = [g.dice.randrange(s) for s in strides]
    elif g.chance(0.2):
        pairs = zip(sizes, strides, strict=True)
        kept["output_shape"] = [n * s + g.one_of((0, 0, 1)) for n, s in pairs]
        kept.pop("pads", None)
    g.node("ConvTranspose", *inputs, **({"group": groups} if groups > 1 else {}), **kept)


def _pool(g: Drawing) -> None:
    x = _spatial(g)
    kept = _placed(g, _window(g, g.shape(x)[2:], most=g.one_of((2, 4, 7))))
    if g.chance(0.4):
        kept["ceil_mode"] = 1
    kind = g.one_of(("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"))
    if kind != "MaxPool" and g.opset < 19:
        kept.pop("dilations", None)
    if kind == "LpPool" and g.opset < 18:
        kept = {n: v for n, v in kept.items() if n not in ("ceil_mode", "dilations")}
    if kept.get("auto_pad", "VALID") != "VALID" and "dilations" in kept:
        raise Dropped("ONNX Runtime pads for a window without dilation")
    if kind == "AveragePool" and g.chance(0.5):
        kept["count_include_pad"] = g.one_of((0, 1))
    if kind == "MaxPool" and g.chance(0.15):
        g.node(kind, x, outputs=2, **kept, **g.some(storage_order=g.one_of((0, 1))))
        return
    g.node(kind, x, **kept)


def _global_pool(g: Drawing) -> None:
    kind = g.one_of(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"))
    y = g.node(kind, _spatial(g), **(g.some(p=g.one_of((1, 2))) if kind == "GlobalLpPool" else {}))
    if g.chance(0.5):
        g.node("Flatten", y)


def _gate(g: Drawing) -> None:
    """Squeeze and excite."""
    x = g.image()
    c = g.shape(x)[1]
    pools = g.chance(0.5)
    y = (
        g.node("GlobalAveragePool", x)
        if pools
        else _reduced(g, "ReduceMean", x, [2, 3], keepdims=1)
    )
    y = g.node("Conv", y, g.weight(c, c, 1, 1, scale=c**-0.5))
    g.node("Mul", *g.dice.sample([x, g.node(g.one_of(("Sigmoid", "HardSigmoid")), y)], 2))


def _reduced(g: Drawing, kind: str, x: str, axes: list[int] | None, **attributes: object) -> str:
    """With axes where the opset has them."""
    new = g.opset >= (13 if kind == "ReduceSum" else 18)
    if axes is None:
        return g.node(kind, x, **attributes)
    if new:
        return g.node(kind, x, g.constant(axes), **attributes)
    return g.node(kind, x, axes=axes, **attributes)


def _reduce(g: Drawing) -> None:
    x, kind = g.any(), f"Reduce{g.one_of(REDUCTIONS)}"
    rank = g.rank(x)
    count = g.dice.randint(1, rank)
    axes = [a - rank * g.one_of((0, 1)) for a in g.dice.sample(range(rank), count)]
    if kind == "ReduceLogSum" and g.chance(0.8):
        x = g.node("Exp", x)
    more = g.some(keepdims=g.one_of((0, 1)))
    if g.opset >= 18 and g.chance(0.2):
        more["noop_with_empty_axes"] = g.one_of((0, 1))
    _reduced(g, kind, x, axes if g.chance(0.8) else None, **more)


def _largest(g: Drawing) -> None:
    x = g.any()
    axis = g.axis(g.rank(x))
    if g.chance(0.5):
        more = g.some(axis=axis, keepdims=g.one_of((0, 1)), select_last_index=g.one_of((0, 1)))
        y = g.node(g.one_of(("ArgMax", "ArgMin")), x, **more)
    else:
        k = g.dice.randint(1, max(1, g.shape(x)[axis]))
        count = g.constant([k])
        g.node("TopK", x, count, outputs=2, axis=axis, **g.some(largest=g.one_of((0, 1))))
        y = g.others[0]
    if g.chance(0.5):
        g.cast(y, g.dtype)


def _batch_norm(g: Drawing, x: str | None = None) -> str:
    x = x or g.any(2, 5)
    c = g.shape(x)[1]
    parts = [g.weight(c) for _ in range(3)]
    parts.append(g.constant(np.abs(g.numbers(c)) + np.asarray(0.1, g.dtype), plain=True))
    return g.node("BatchNormalization", x, *parts, **g.some(epsilon=g.one_of((1e-5, 1e-3))))


NORMS = ("batch", "instance", "layer", "layer", "group", "rms", "mean", "lrn", "skip", "simplified")
#: Norms over the axes from one on.
OF_AXES = {
    "layer": "LayerNormalization",
    "rms": "RMSNormalization",
    "simplified": "SimplifiedLayerNormalization",
}


def _norm(g: Drawing) -> None:
    kind = g.one_of(NORMS)
    epsilon = g.some(epsilon=g.one_of((1e-5, 1e-2)))
    if kind == "batch":
        _batch_norm(g)
    elif kind == "instance":
        x = g.any(3, 5)
        c = g.shape(x)[1]
        g.node("InstanceNormalization", x, g.weight(c), g.weight(c), **epsilon)
    elif kind in OF_AXES:
        x = g.any(1, 4)
        axis = g.axis(g.rank(x)) if g.chance(0.6) else -1
        sizes = g.shape(x)[axis % g.rank(x) :]
        bias = [g.weight(*sizes)] if kind == "layer" and g.chance(0.7) else []
        more = {} if axis == -1 and g.chance(0.5) else {"axis": axis}
        g.node(OF_AXES[kind], x, g.weight(*sizes), *bias, **more, **epsilon)
    elif kind == "group":
        x = g.any(3, 5)
        c = g.shape(x)[1]
        groups = _groups(g, c)
        count = c if g.opset >= 21 else groups
        scale = [g.weight(count) for _ in range(2)]
        g.node("GroupNormalization", x, *scale, num_groups=groups, **epsilon)
    elif kind == "mean":
        x = g.any(2, 4)
        axes = sorted(g.dice.sample(range(g.rank(x)), g.dice.randint(1, g.rank(x))))
        if prod(g.shape(x)[axis] for axis in axes) == 1:
            raise Dropped("the variance of one number is the rounding of two squares")
        g.node("MeanVarianceNormalization", x, axes=axes)
    elif kind == "lrn":
        g.node("LRN", g.image(), size=g.one_of((1, 3, 5)), **g.some(alpha=0.01, beta=0.6, bias=1.5))
    else:
        x = g.any(3, 3)
        width = g.shape(x)[-1]
        inputs = [x, g.like(x), *(g.weight(width) for _ in range(g.one_of((1, 2, 3))))]
        g.node("SkipLayerNormalization", *inputs, domain=MICROSOFT, **epsilon)


def _written_norm(g: Drawing) -> None:
    """A layer norm, or one by root mean squares, as several nodes."""
    x = g.any(2, 4)
    axes = [-1] if g.chance(0.8) else [-1, -2]
    d = x
    if g.chance(0.7):
        d = g.node("Sub", x, _reduced(g, "ReduceMean", x, axes, keepdims=1))
    square = g.node("Pow", d, g.constant(2.0)) if g.chance(0.6) else g.node("Mul", d, d)
    mean = _reduced(g, "ReduceMean", square, axes, keepdims=1)
    spread = g.node("Sqrt", g.node("Add", mean, g.constant(1e-3)))
    if g.chance(0.7):
        y = g.node("Div", d, spread)
    else:
        y = g.node("Mul", d, g.node("Reciprocal", spread))
    y = g.node("Mul", y, g.weight(g.shape(x)[-1]))
    if g.chance(0.7):
        g.node("Add", y, g.weight(g.shape(x)[-1]))


def _reshape(g: Drawing) -> None:
    x = g.any()
    shape = list(g.shape(x))
    kind = g.one_of(("split", "flat", "zero", "regroup", "data"))
    to = list(shape)
    if kind == "split":
        axis = g.dice.randrange(len(to))
        parts = [n for n in range(1, to[axis] + 1) if to[axis] % n == 0] or [1]
        part = g.one_of(parts)
        to[axis : axis + 1] = [part, to[axis] // part]
    elif kind == "flat":
        axis = g.dice.randrange(len(to))
        to[axis : axis + 2] = [prod(to[axis : axis + 2])]
    elif kind == "zero" and shape:
        to = [0, -1, *([shape[-1]] if len(shape) > 2 else [])]
    elif kind == "data" and len(shape) > 1:
        first = g.node("Gather", g.node("Shape", x), g.constant([0]))
        g.node("Reshape", x, g.node("Concat", first, g.constant([-1]), axis=0))
        return
    else:
        g.dice.shuffle(to)
    if -1 not in to and prod(to) and g.chance(0.4):
        to[g.dice.randrange(len(to))] = -1
    g.node("Reshape", x, g.constant(np.array(to, np.int64)))


REAXED = ("Flatten", "Squeeze", "Unsqueeze", "Transpose", "Transpose", "Identity", "Dropout")


def _reaxed(g: Drawing) -> None:
    kind = g.one_of(REAXED)
    x = g.any()
    rank = g.rank(x)
    if kind == "Flatten":
        g.node(kind, x, **g.some(axis=g.dice.randint(-rank, rank)))
    elif kind == "Squeeze":
        single = (i for i, n in enumerate(g.shape(x)) if n == 1 and g.chance(0.7))
        axes = [i - rank * g.one_of((0, 1)) for i in single]
        g.node(kind, x, *([g.constant(axes)] if axes else []))
    elif kind == "Unsqueeze":
        axes = g.dice.sample(range(rank + 1), 1) if g.chance(0.7) else [0, -1]
        g.node(kind, x, g.constant(axes))
    elif kind == "Transpose":
        g.node(kind, x, **g.some(perm=g.dice.sample(range(rank), rank)))
    else:
        g.node(kind, x)


def _slice(g: Drawing) -> None:
    x = g.any()
    shape = g.shape(x)
    axes = g.dice.sample(range(len(shape)), g.dice.randint(1, len(shape)))
    bounds = []
    for axis in axes:
        n, step = shape[axis], g.one_of((1, 1, 1, 2, 3, -1, -2))
        start = g.dice.randint(0, max(n - 1, 0)) if step > 0 else g.one_of((n - 1, -1, 2**31 - 1))
        stops = (n, 2**31 - 1, 2**63 - 1, -1, n // 2 + 1) if step > 0 else (-(2**31), -n - 1, 0)
        stop = g.one_of(stops)
        bounds.append((start, stop, step))
    columns = [g.constant(np.array(column, np.int64)) for column in zip(*bounds, strict=True)]
    signed = g.constant([a - len(shape) * g.one_of((0, 1)) for a in axes])
    steps = columns[2] if g.chance(0.8) or any(b[2] != 1 for b in bounds) else ""
    g.node("Slice", x, *columns[:2], signed, steps)


def _split(g: Drawing) -> None:
    x = g.any()
    axis = g.axis(g.rank(x))
    n = g.shape(x)[axis]
    count = g.dice.randint(1, min(n, 4)) if n else 1
    if g.chance(0.5):
        cuts = sorted(g.dice.sample(range(1, n), count - 1)) if n > 1 else []
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
        first = g.node("Split", x, g.constant(sizes), outputs=len(sizes), axis=axis)
    elif g.opset >= 18:
        first = g.node("Split", x, outputs=count, num_outputs=count, axis=axis)
    else:
        equal = max(k for k in range(1, count + 1) if n % k == 0)
        first = g.node("Split", x, outputs=equal, axis=axis)
    parts = [first, *g.others]
    if len(parts) > 1 and g.chance(0.4):
        g.node("Concat", *reversed(parts), axis=axis)


def _joins(value: np.ndarray, *, shape: list[int], axis: int) -> bool:
    """Whether a tensor fits one of a shape but for an axis."""
    sizes = list(value.shape)
    del sizes[axis : axis + 1]
    return value.ndim == len(shape) and sizes == shape[:axis] + shape[axis + 1 :]


def _concat(g: Drawing) -> None:
    x = g.any()
    axis = g.axis(g.rank(x))
    parts = [x]
    for _ in range(g.one_of((0, 1, 1, 2, 3))):
        shape = list(g.shape(x))
        other = g.pick(partial(_joins, shape=shape, axis=axis % len(shape)))
        if other and g.chance(0.7):
            parts.append(other)
        else:
            shape[axis] = g.one_of((1, 2, 3, 4))
            parts.append(g.weight(*shape))
    g.dice.shuffle(parts)
    g.node("Concat", *parts, axis=axis)


def _pad(g: Drawing) -> None:
    x = g.any()
    rank, shape = g.rank(x), g.shape(x)
    mode = g.one_of(("constant", "constant", "reflect", "edge", "wrap"))
    chosen = None
    if g.opset >= 18 and g.chance(0.3):
        chosen = g.dice.sample(range(rank), g.dice.randint(1, rank))
    axes = chosen or list(range(rank))
    most = [min(shape[a] - 1, 3) if mode != "constant" else 3 for a in axes]
    pads = [g.dice.randint(0, max(m, 0)) if g.chance(0.6) else 0 for m in (*most, *most)]
    if g.chance(0.15):
        pads = [-1 if g.chance(0.3) else p for p in pads]
    value = g.constant(g.dice.gauss(0, 1)) if g.chance(0.4) else ""
    which = g.constant([a - rank * g.one_of((0, 1)) for a in axes]) if chosen else ""
    sizes = g.constant(pads)
    more = g.some(mode=mode) if mode == "constant" else {"mode": mode}
    g.node("Pad", x, sizes, value, which, **more)


def _repeat(g: Drawing) -> None:
    x = g.any()
    if g.chance(0.5):
        g.node("Tile", x, g.constant(g.ints((1, 1, 2, 3), g.rank(x))))
    else:
        to = [g.one_of((1, n, 3)) if n == 1 else g.one_of((1, n)) for n in g.shape(x)]
        to = [2, *to] if g.chance(0.2) and len(to) < 5 else to
        g.node("Expand", x, g.constant(np.array(to, np.int64)))


def _gather(g: Drawing) -> None:
    x = g.any()
    axis = g.axis(g.rank(x))
    n = g.shape(x)[axis]
    kind = g.one_of(("Gather", "Gather", "Gather", "GatherElements", "GatherND", "ScatterND"))
    if kind == "Gather":
        sizes = g.one_of(((), (1,), (3,), (2, 2)))
        indices = g.whole(-n, max(n, 1), *sizes, dtype=g.one_of((np.int64, np.int32)))
        places = g.given(indices, 0.7)
        more = g.some(axis=axis) if axis in (0, -g.rank(x)) else {"axis": axis}
        g.node(kind, x, places, **more)
    elif kind == "GatherElements":
        g.node(kind, x, g.constant(g.whole(-n, max(n, 1), *g.shape(x))), axis=axis)
    else:
        rows = g.whole(0, max(g.shape(x)[0], 1), 2, 1)
        if kind == "GatherND":
            g.node(kind, x, g.constant(rows))
        else:
            rows = np.arange(min(2, g.shape(x)[0]))[:, None]
            g.node(kind, x, g.constant(rows), g.weight(len(rows), *g.shape(x)[1:]))


def _space(g: Drawing) -> None:
    x = g.image()
    if g.chance(0.5):
        g.node("SpaceToDepth", x, blocksize=g.one_of((1, 2, 3)))
    else:
        mode = g.some(mode=g.one_of(("DCR", "CRD")))
        g.node("DepthToSpace", x, blocksize=g.one_of((1, 2)), **mode)


def _resize(g: Drawing) -> None:
    x = g.image(g.one_of((4, 4, 4, 3)))
    shape, rank = g.shape(x), g.rank(x)
    factors = [g.one_of((0.5, 0.6, 1.0, 1.5, 2.0, 2.0, 3.0)) for _ in range(2)]
    scales = [1.0] * (rank - 2) + (factors if g.chance(0.4) else factors[:1] * 2)
    mode = g.one_of(("nearest", "nearest", "linear", "linear", "cubic"))
    coords = g.one_of(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
                       "tf_crop_and_resize", "half_pixel_symmetric"))  # fmt: skip
    more = {"mode": mode, "coordinate_transformation_mode": coords}
    if mode == "nearest":
        more |= g.some(
            nearest_mode=g.one_of(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
        )
    if mode == "cubic":
        more |= g.some(cubic_coeff_a=g.one_of((-0.5, -0.75)), exclude_outside=g.one_of((0, 1)))
    if g.opset >= 18 and g.chance(0.1):
        more["antialias"] = 1
    roi, starts, ends = "", (), ()
    if coords == "tf_crop_and_resize":
        # ONNX Runtime does not look at the bounds of an axis whose size stays.
        axes = zip(shape, scales, strict=True)
        bounds = [(0.1, 0.8) if int(n * s) != n else (0.0, 1.0) for n, s in axes]
        starts, ends = zip(*bounds, strict=True)
        roi = g.constant(np.array([*starts, *ends], np.float32))
        more |= g.some(extrapolation_value=2.0)
    if g.chance(0.5):
        g.node("Resize", x, roi, g.constant(np.array(scales, np.float32), plain=True), **more)
        return
    to = [max(1, int(n * s)) for n, s in zip(shape, scales, strict=True)]
    if g.opset >= 18 and g.chance(0.3):
        more["axes"] = [rank - 2, rank - 1]
        more |= g.some(keep_aspect_ratio_policy=g.one_of(("stretch", "not_larger", "not_smaller")))
        to = to[-2:]
        roi = g.constant(np.array([*starts[-2:], *ends[-2:]], np.float32)) if roi else ""
    g.node("Resize", x, roi, "", g.constant(np.array(to, np.int64)), **more)


def _matmul(g: Drawing) -> str:
    x = g.any(1, 4)
    k = g.shape(x)[-1]
    n = g.one_of((1, 2, 3, 5, 8, 16, 17))
    batch = g.one_of(((), (), (), g.shape(x)[:-2]))
    weight = g.numbers(*batch, k, n, scale=max(k, 1) ** -0.5)
    if g.chance(0.1):
        weight = weight[..., 0]
    y = g.node("MatMul", x, g.given(weight, 0.7))
    if g.chance(0.5):
        y = g.node("Add", *g.dice.sample([y, g.weight(n)], 2))
    return y


def _matmul_self(g: Drawing) -> None:
    x = g.any(2, 4)
    rank = g.rank(x)
    turned = g.node("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])
    g.node("MatMul", *g.dice.sample([x, turned], 2))


def _gemm(g: Drawing) -> None:
    x = g.any(2, 2) if g.chance(0.7) else g.node("Flatten", g.any(3, 4))
    turned = int(g.chance(0.3))
    m, k = g.shape(x)[::-1] if turned else g.shape(x)
    n = g.one_of((1, 3, 4, 8, 10, m))
    other = int(g.chance(0.5))
    b = g.numbers(*((n, k) if other else (k, n)), scale=max(k, 1) ** -0.5)
    inputs = [x, g.given(b, 0.8)]
    if g.chance(0.8):
        shape = g.one_of(((n,), (n,), (1, n), (m, n), (m, 1), (1,), (), (1, 1)))
        c = g.numbers(*shape)
        inputs.append(g.given(c, 0.8))
    more = {"transA": 1} if turned else {}
    more |= {"transB": 1} if other else {}
    more |= g.some(alpha=g.one_of((1.0, 0.5, -2.0)), beta=g.one_of((1.0, 0.0, 0.3)))
    y = g.node("Gemm", *inputs, **more)
    if g.chance(0.4):
        g.node(g.one_of(("Mul", "Add", "Sub")), y, g.weight(n))


def _einsum(g: Drawing) -> None:
    equation = g.one_of(EINSUMS)
    sizes: dict[str, int] = {}
    inputs = []
    for index, term in enumerate(equation.split("->")[0].split(",")):
        letters = term.replace("...", "")
        rank = len(term.replace("...", "xx"))
        x = None if index else g.any(rank, rank)
        shape = g.shape(x) if x else ()
        if x is None or any(sizes.get(c, n) != n for c, n in zip(letters, shape, strict=False)):
            x = g.input(g.numbers(*(sizes.get(c) or g.one_of((1, 2, 3, 5)) for c in letters)))
        if "..." not in term:
            sizes |= dict(zip(letters, g.shape(x), strict=True))
        inputs.append(x)
    g.node("Einsum", *inputs, equation=equation)


def _quantised(g: Drawing) -> None:
    """Through 8 bits and back, in front of a convolution or a product by weights of 8 bits."""
    x = g.any(2, 4)
    kind = g.one_of((np.uint8, np.int8))
    zero = np.array(g.one_of((0, 128, 117) if kind == np.uint8 else (0, -5)), kind)
    parts = [g.constant(float(np.float32(g.one_of((0.02, 0.05)))), plain=True), g.constant(zero)]
    y = g.node("DequantizeLinear", g.node("QuantizeLinear", x, *parts), *parts)
    if g.chance(0.3) or g.rank(x) == 3:
        return
    c, oc = g.shape(x)[1], g.one_of((1, 4, 8))
    shape = (oc, c, 3, 3) if g.rank(x) == 4 else (oc, c)
    per_axis = g.chance(0.5)
    scale = np.abs(g.numbers(oc, dtype=np.float32)) * 0.01 + 0.001 if per_axis else np.array(0.01)
    weight = g.node(
        "DequantizeLinear", g.constant(g.whole(-127, 128, *shape, dtype=np.int8)),
        g.constant(scale.astype(g.dtype), plain=True), g.constant(np.zeros(scale.shape, np.int8)),
        **({"axis": 0} if per_axis else {}),
    )  # fmt: skip
    bias = []
    if g.chance(0.4):
        whole = g.constant(g.whole(-500, 500, oc, dtype=np.int32))
        bias = [g.node("DequantizeLinear", whole, g.constant(np.array(0.002, g.dtype), plain=True))]
    if g.rank(x) == 4:
        y = g.node("Conv", y, weight, *bias, pads=[1, 1, 1, 1])
    else:
        y = g.node("Gemm", y, weight, *bias, transB=1)
    y = g.node("Relu", y) if g.chance(0.5) else y
    if g.chance(0.5):
        g.node("DequantizeLinear", g.node("QuantizeLinear", y, *parts), *parts)


def _dynamic_quantised(g: Drawing) -> None:
    x = g.any(2, 3)
    k, n = g.shape(x)[-1], g.one_of((1, 4, 8))
    weight = g.constant(g.whole(-127, 128, k, n, dtype=np.int8))
    scale = g.constant(np.array(0.01, np.float32), plain=True)
    if g.chance(0.3):
        zero = [g.constant(np.zeros((), np.int8)), *([g.weight(n)] if g.chance(0.5) else [])]
        inputs = [x, weight, scale, *(zero if g.chance(0.5) else ())]
        g.node("DynamicQuantizeMatMul", *inputs, domain=MICROSOFT)
        return
    q = g.node("DynamicQuantizeLinear", x, outputs=3)
    own, zero_point = g.others
    y = g.cast(g.node("MatMulInteger", q, weight, zero_point), np.float32)
    y = g.node("Mul", y, g.node("Mul", own, scale))
    if g.chance(0.5):
        g.node("Add", y, g.weight(n))


def _packed(g: Drawing) -> None:
    x = g.any(2, 3)
    k, n, bits, block = g.shape(x)[-1], g.one_of((1, 4, 8)), g.one_of((4, 4, 8)), g.one_of((16, 32))
    blocks = -(-k // block)
    packed = g.whole(0, 256, n, blocks, block * bits // 8, dtype=np.uint8)
    scales = np.abs(g.numbers(n * blocks)) * np.asarray(0.05, g.dtype)
    inputs = [g.constant(packed), g.constant(scales, plain=True)]
    if g.chance(0.4):
        inputs.append(g.constant(g.whole(0, 256, n * (-(-blocks * bits // 8)), dtype=np.uint8)))
    g.node("MatMulNBits", x, *inputs, domain=MICROSOFT, K=k, N=n, bits=bits, block_size=block)


def _tokens(g: Drawing, *, width: int, count: int | None = None, images: int | None = None) -> str:
    """(images, tokens, width)."""

    def fits(value: np.ndarray) -> bool:
        wanted = zip((images, count, width), value.shape, strict=False)
        return value.ndim == 3 and all(size in (None, own) for size, own in wanted)

    if found := g.pick(fits):
        return found
    sizes = images or g.one_of((1, 1, 2)), count or g.one_of((1, 3, 5, 8))
    return g.input(g.numbers(*sizes, width))


def _attention(g: Drawing) -> None:
    """ONNX's node, or one of ONNX Runtime's, or as several nodes."""
    heads, each = g.one_of((1, 2, 4)), g.one_of((4, 8))
    x = _tokens(g, width=heads * each)
    n, tokens, width = g.shape(x)
    keys = g.one_of((tokens, tokens, 4))
    k, v = (_tokens(g, width=width, count=keys, images=n) for _ in range(2))
    form, scale = g.one_of(ATTENTION), g.some(scale=0.3)
    form(g, (x, k, v), heads, each, scale)


Operands: TypeAlias = tuple[str, str, str]
Scale: TypeAlias = dict[str, float]


def _of_onnx(g: Drawing, qkv: Operands, heads: int, _: int, scale: Scale) -> None:
    tokens, keys = (g.shape(x)[1] for x in qkv[:2])
    more = g.some(is_causal=g.one_of((0, 1)), softcap=g.one_of((0.0, 2.0)))
    mask = [g.weight(tokens, keys)] if g.chance(0.3) else []
    if mask and g.chance(0.4):
        seen = g.whole(0, 2, tokens, keys, dtype=np.bool_) | np.eye(tokens, keys, dtype=bool)
        mask = [g.constant(seen | (np.arange(keys) == 0))]
    g.node("Attention", *qkv, *mask, q_num_heads=heads, kv_num_heads=heads, **more, **scale)


def _of_four_axes(g: Drawing, qkv: Operands, heads: int, each: int, scale: Scale) -> None:
    n = g.shape(qkv[0])[0]
    parts = [_by_head(g, x, heads, each) for x in qkv]
    past = [g.input(g.numbers(n, heads, 3, each)) for _ in range(2)] if g.chance(0.3) else []
    stage = {"qk_matmul_output_mode": g.one_of((0, 1, 2, 3))} if g.chance(0.3) else {}
    outputs = 4 if stage else 3 if past else 1
    more = {**stage, **scale, **g.some(is_causal=g.one_of((0, 1)))}
    g.node("Attention", *parts, *(("", *past) if past else ()), outputs=outputs, **more)


def _multi_head(g: Drawing, qkv: Operands, heads: int, _: int, scale: Scale) -> None:
    (n, tokens, width), keys = g.shape(qkv[0]), g.shape(qkv[1])[1]
    inputs = [*qkv, g.weight(3 * width) if g.chance(0.4) else "", "", ""]
    if g.chance(0.3):
        padding = g.whole(0, 2, n, keys, dtype=np.int32)
        first = np.arange(keys, dtype=np.int32) == 0
        inputs[4] = g.constant(np.maximum(padding, first))
    if g.chance(0.3):
        inputs[5] = g.weight(1, heads, tokens, keys)
    more = {"unidirectional": 1} if g.chance(0.2) and keys == tokens else {}
    g.node("MultiHeadAttention", *inputs, domain=MICROSOFT, num_heads=heads, **scale, **more)


def _packed_attention(g: Drawing, qkv: Operands, heads: int, _: int, scale: Scale) -> None:
    width = g.shape(qkv[0])[2]
    weight = g.weight(width, 3 * width, scale=width**-0.5)
    more = {"unidirectional": 1} if g.chance(0.3) else {}
    inputs = (qkv[0], weight, g.weight(3 * width))
    g.node("Attention", *inputs, domain=MICROSOFT, num_heads=heads, **more)


def _written_attention(g: Drawing, qkv: Operands, heads: int, each: int, scale: Scale) -> None:
    (n, tokens, width), keys = g.shape(qkv[0]), g.shape(qkv[1])[1]
    q, k, v = (_by_head(g, x, heads, each) for x in qkv)
    s = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    kind, factor = ("Mul", each**-0.5) if g.chance(0.5) else ("Div", each**0.5)
    s = g.node(kind, s, g.constant(factor))
    s = g.node("Add", s, g.weight(1, 1, tokens, keys)) if g.chance(0.3) else s
    y = g.node("MatMul", g.node("Softmax", s, axis=-1), v)
    g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.constant([n, tokens, width]))


def _by_head(g: Drawing, x: str, heads: int, each: int) -> str:
    split = g.node("Reshape", x, g.constant([0, 0, heads, each]))
    return g.node("Transpose", split, perm=[0, 2, 1, 3])


def _grouped(g: Drawing, qkv: Operands, heads: int, each: int, _: Scale) -> None:
    x = qkv[0]
    n, tokens, _width = g.shape(x)
    shared = g.one_of([h for h in range(1, heads + 1) if heads % h == 0])
    k, v = (_tokens(g, width=shared * each, count=tokens, images=n) for _ in range(2))
    past = g.one_of((0, 0, 3)) if n == 1 else 0
    caches = [g.input(g.numbers(n, shared, past, each)) for _ in range(2)] if past else ["", ""]
    last = g.constant(np.full((n,), past + tokens - 1, np.int32))
    total = g.constant(np.array(past + tokens, np.int32))
    more: dict[str, object] = g.some(
        scale=0.3, softcap=g.one_of((0.0, 3.0)), local_window_size=g.one_of((-1, 2))
    )
    tables = []
    if g.chance(0.4) and each % 8 == 0:
        angles = np.outer(np.arange(16), 0.5 ** np.arange(each // 2))
        tables = [g.constant(f(angles).astype(g.dtype)) for f in (np.cos, np.sin)]
        more |= {"do_rotary": 1, "rotary_interleaved": g.one_of((0, 1))}
    more |= {"num_heads": heads, "kv_num_heads": shared}
    inputs = (x, k, v, *caches, last, total, *tables)
    g.node("GroupQueryAttention", *inputs, domain=MICROSOFT, outputs=3, **more)


ATTENTION = (_of_onnx, _of_four_axes, _multi_head, _packed_attention, _grouped, _written_attention)


def _rotary(g: Drawing) -> None:
    heads, each = g.one_of((1, 2)), g.one_of((4, 8))
    x = _tokens(g, width=heads * each)
    n, tokens, _ = g.shape(x)
    pairs = each // 2
    angles = np.outer(np.arange(12), 0.5 ** np.arange(pairs))
    tables = [g.constant(f(angles).astype(g.dtype)) for f in (np.cos, np.sin)]
    rows = g.constant(g.whole(0, 12, n, tokens))
    x = _by_head(g, x, heads, each) if g.chance(0.5) else x
    more = {"num_heads": heads, **g.some(interleaved=g.one_of((0, 1)))}
    if g.chance(0.5):
        g.node("RotaryEmbedding", x, rows, *tables, domain=MICROSOFT, **more)
    else:
        g.node("RotaryEmbedding", x, *tables, rows, **more)


def _recurrent(g: Drawing) -> None:
    size, hidden = g.one_of((3, 4)), g.one_of((2, 5))
    x = g.input(g.numbers(g.one_of((1, 4)), g.one_of((1, 2)), size))
    kind, gates = g.one_of((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    way = g.one_of(("forward", "reverse", "bidirectional"))
    count = 2 if way == "bidirectional" else 1
    weights = [g.weight(count, gates * hidden, k, scale=0.5) for k in (size, hidden)]
    bias = [g.weight(count, 2 * gates * hidden, scale=0.5)] if g.chance(0.5) else []
    more = g.some(linear_before_reset=1) if kind == "GRU" else {}
    g.node(kind, x, *weights, *bias, outputs=2, hidden_size=hidden, direction=way, **more)


def _branch(g: Drawing) -> None:
    """An If whose branches read from outside; sizes that depend on data."""
    x = g.any()
    if g.chance(0.3):
        y = g.node("NonZero", g.node("Relu", x))
        if g.chance(0.7):
            g.node("Shape", y)
        return
    total = _reduced(g, "ReduceSum", x, None, keepdims=0)
    found = g.node("Greater", total, g.constant(0.0, plain=True))
    name = g.name()
    graphs = {}
    other = g.one_of(("Neg", "Sigmoid", "Identity"))
    for which, kind in (("then_branch", "Relu"), ("else_branch", other)):
        inner = f"{name}.{which}"
        info = helper.make_tensor_value_info(inner, helper.np_dtype_to_tensor_dtype(g.dtype), None)
        graphs[which] = helper.make_graph([helper.make_node(kind, [x], [inner])], which, [], [info])
    g.add(helper.make_node("If", [found], [name], **graphs))


def _made(g: Drawing) -> None:
    """From nothing but sizes and constants, and the like."""
    x = g.any(2, 4)
    kind = g.one_of(("shape", "filled", "trilu", "range", "onehot", "eye"))
    if kind == "shape":
        g.cast(g.node("Shape", x), g.dtype)
    elif kind == "filled":
        value = helper.make_tensor("v", helper.np_dtype_to_tensor_dtype(g.dtype), [1], [0.5])
        g.node("Add", x, g.node("ConstantOfShape", g.node("Shape", x), value=value))
    elif kind == "trilu":
        shift = [g.constant(g.one_of((-1, 0, 1)))] if g.chance(0.5) else []
        g.node("Trilu", x, *shift, **g.some(upper=g.one_of((0, 1))))
    elif kind == "range":
        size = g.node("Gather", g.node("Shape", x), g.constant(-1), axis=0)
        row = g.cast(g.node("Range", g.constant(0), size, g.constant(1)), g.dtype)
        g.node("Mul", x, row)
    elif kind == "onehot":
        found = g.node("ArgMax", x, axis=-1, keepdims=0)
        g.node("OneHot", found, g.constant(g.shape(x)[-1]), g.constant(np.array([0, 1], g.dtype)))
    else:
        g.node("EyeLike", g.any(2, 2), **g.some(k=g.one_of((-1, 0, 1))))


def _shared(g: Drawing) -> None:
    """A tensor that is an output under several names, and is read beside: aliases of all kinds."""
    x = _conv(g) if g.chance(0.5) else g.any(2, 4)
    for _ in range(g.one_of((1, 2))):
        kind = g.one_of(("Identity", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Cast"))
        if kind == "Reshape":
            g.node(kind, x, g.constant([-1]))
        elif kind == "Unsqueeze":
            g.node(kind, x, g.constant([0]))
        elif kind == "Cast":
            g.cast(x, g.dtype)
        else:
            g.node(kind, x)
    g.node(g.one_of(("Relu", "Sigmoid", "Tanh")), x)


def _head(g: Drawing) -> None:
    """Boxes and scores of a detector."""
    x = g.image()
    c = g.shape(x)[1]
    y = g.node("Conv", x, g.weight(12, c, 1, 1, scale=c**-0.5))
    n, _, h, w = g.shape(y)
    y = g.node("Transpose", g.node("Reshape", y, g.constant([n, 2, 6, h, w])), perm=[0, 1, 3, 4, 2])
    first = g.node("Split", g.node("Sigmoid", y), g.constant([2, 2, 2]), outputs=3, axis=-1)
    second, third = g.others
    grid = g.constant(g.whole(0, 9, 1, 1, h, w, 2).astype(g.dtype))
    xy = g.node("Mul", g.node("Add", g.node("Mul", first, g.constant(2.0)), grid), g.constant(8.0))
    wh = g.node("Pow", g.node("Mul", second, g.constant(2.0)), g.constant(2.0))
    y = g.node("Concat", xy, wh, third, axis=-1)
    g.node("Reshape", y, g.constant([n, -1, 6]))


GROUPS: Mapping[str, tuple[Step, ...]] = {
    "conv": (_conv, _conv, _conv, _conv, _conv_transpose, _pool, _gate, _norm),
    "elementwise": (_plain, _plain, _activation, _activation, _binary, _binary, _several, _clip,
                    _choice),
    "norm": (_norm, _norm, _written_norm, _along, _reduce, _binary),
    "window": (_pool, _pool, _pool, _conv, _conv_transpose, _global_pool, _resize),
    "shape": (_reshape, _reshape, _reaxed, _reaxed, _slice, _split, _concat, _pad, _repeat, _gather,
              _space, _resize, _shared),
    "product": (_matmul, _matmul, _matmul_self, _gemm, _gemm, _einsum, _packed, _along),
    "attention": (_attention, _attention, _rotary, _matmul, _written_norm, _activation),
    "quantised": (_quantised, _quantised, _dynamic_quantised, _packed, _conv, _reaxed),
    "types": (_casts, _casts, _integers, _choice, _largest, _made, _reduce),
    "outputs": (_shared, _shared, _conv, _head, _split, _concat, _plain),
    "other": (_branch, _recurrent, _made, _largest, _gather, _integers),
}  # fmt: skip
