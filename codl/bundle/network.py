"""A network's structure as JSON: its layers as lines of text, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from codl import yaml_file
from codl.ir.network import Layer, Network
from codl.ir.op_text import parse, to_text
from codl.ir.region import Shape
from codl.yaml_file import NotNegative, Positive

#: Of an array in NumPy.
MOST_AXES = 32
_Shape: TypeAlias = tuple[Positive, Positive, Positive, Positive]


def to_json(network: Network) -> dict[str, Any]:
    """All but the weights, and of constants the shapes."""
    return {
        "name": network.name,
        "inputs": {name: list(shape) for name, shape in network.inputs.items()},
        "outputs": {
            name: {"tensor": tensor, "shape": list(shape)}
            for name, (tensor, shape) in network.outputs.items()
        },
        "constants": {name: list(value.shape) for name, value in network.constants.items()},
        "types": dict(network.types),
        "states": {name: list(shape) for name, shape in network.states.items()},
        "layers": [
            {
                "name": layer.name,
                "op": to_text(layer.op),
                "inputs": list(layer.inputs),
                "output": layer.output,
            }
            for layer in network.layers
        ],
    }


def from_json(content: Any, path: Path) -> Network:
    """The network without weights: what can be shown and asked of, but not lowered.

    Raises `InvalidFileError` with the `path` for what is no such network.
    """
    own, zero = yaml_file.convert(content, _Network, path), np.zeros((), np.float32)
    layers = (Layer(x.name, parse(x.op), x.inputs, x.output, {}) for x in own.layers)
    return Network(
        name=own.name,
        layers=tuple(layers),
        inputs={name: Shape(*shape) for name, shape in own.inputs.items()},
        outputs={name: (one.tensor, one.shape) for name, one in own.outputs.items()},
        constants={name: np.broadcast_to(zero, shape) for name, shape in own.constants.items()},
        types=own.types,
        states={name: Shape(*shape) for name, shape in own.states.items()},
    )


@dataclass(frozen=True)
class _Layer:
    name: str
    op: str
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class _Output:
    tensor: str
    shape: tuple[NotNegative, ...]


@dataclass(frozen=True)
class _Network:
    """What `to_json` writes."""

    name: str
    inputs: Mapping[str, _Shape]
    outputs: Mapping[str, _Output]
    constants: Mapping[str, Annotated[tuple[Positive, ...], msgspec.Meta(max_length=MOST_AXES)]]
    types: Mapping[str, str]
    layers: tuple[_Layer, ...]
    states: Mapping[str, _Shape] = field(default_factory=dict)
