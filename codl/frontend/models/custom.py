"""Models of one's own: a few lines of YAML, layer by layer, with weights made from a seed.

A layer reads the one before it, or those that `from` names. What layers are called, or their op and
its number, are the names by which others and the caller know their tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import onnx

from codl.errors import UnknownNameError
from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.layers import ACTIVATIONS, LAYERS, Inputs
from codl.frontend.models.reading import MOST, Section, sequence, sizes, text, whole

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
