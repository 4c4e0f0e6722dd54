"""A network's structure as JSON: its layers as lines of text, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from codl.ir.network import Layer, Network
from codl.ir.op_text import parse, to_text
from codl.ir.region import Shape


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


def from_json(content: Mapping[str, Any]) -> Network:
    """The network without weights: what can be shown and asked of, but not lowered.

    Raises `CodlError`, `KeyError`, `TypeError` or `ValueError` for what is no such network.
    """
    zero = np.zeros((), np.float32)
    return Network(
        name=content["name"],
        layers=tuple(
            Layer(x["name"], parse(x["op"]), tuple(x["inputs"]), x["output"], {})
            for x in content["layers"]
        ),
        inputs={name: Shape(*shape) for name, shape in content["inputs"].items()},
        outputs={
            name: (own["tensor"], tuple(own["shape"])) for name, own in content["outputs"].items()
        },
        constants={n: np.broadcast_to(zero, shape) for n, shape in content["constants"].items()},
        types=content["types"],
        states={name: Shape(*shape) for name, shape in content.get("states", {}).items()},
    )
