"""A network as JSON: its layers as lines of text, without the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from codl.ir import Array, Layer, Network, Op, Shape, parse, to_text
from codl.ir.ops.onnx_model import OnnxModel


def to_json(network: Network) -> dict[str, Any]:
    """All but the weights, the constants' values and the layers that are models of their own."""
    return {
        "name": network.name,
        "inputs": {name: list(shape) for name, shape in network.inputs.items()},
        "outputs": {
            name: {"tensor": tensor, "shape": list(shape)}
            for name, (tensor, shape) in network.outputs.items()
        },
        "types": dict(network.types),
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


def from_json(
    content: Mapping[str, Any], constants: Mapping[str, Array], models: Mapping[str, bytes]
) -> Network:
    """The network without weights; `models` are those of layers of kind `onnx`, by digest.

    Raises `CodlError`, `KeyError`, `TypeError` or `ValueError` for what is no such network.
    """
    return Network(
        name=content["name"],
        layers=tuple(
            Layer(x["name"], _op(parse(x["op"]), models), tuple(x["inputs"]), x["output"], {})
            for x in content["layers"]
        ),
        inputs={name: Shape(*shape) for name, shape in content["inputs"].items()},
        outputs={
            name: (own["tensor"], tuple(own["shape"])) for name, own in content["outputs"].items()
        },
        constants=constants,
        types=content["types"],
    )


def models_of(network: Network) -> dict[str, bytes]:
    """The ONNX models of layers of kind `onnx`, by digest."""
    ops = (layer.op for layer in network.layers)
    return {op.digest: op.model for op in ops if isinstance(op, OnnxModel)}


def as_written(network: Network) -> Network:
    """The network with operators as their texts have them: those round what activations take."""
    models = models_of(network)
    layers = (replace(x, op=_op(parse(to_text(x.op)), models)) for x in network.layers)
    return replace(network, layers=tuple(layers))


def _op(op: Op, models: Mapping[str, bytes]) -> Op:
    return replace(op, model=models[op.digest]) if isinstance(op, OnnxModel) else op
