"""Layers and constants that are there several times, as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codl.ir.constants import array_digest
from codl.ir.network import Layer, Network
from codl.ir.ops.base import Array, Op


def merge_equal(network: Network) -> Network:
    """The network without layers that compute what another does, nor equal constants.

    Every layer of a decoder turns queries and keys by the same angles, for one.
    """
    same = _equal_constants(network.constants)
    layers: list[Layer] = []
    known: dict[tuple[Op, tuple[str, ...]], str] = {}
    for layer in network.layers:
        inputs = tuple(same.get(name, name) for name in layer.inputs)
        if not layer.weights and not layer.op.states:
            first = known.setdefault((layer.op, inputs), layer.output)
            if first != layer.output:
                same[layer.output] = first
                continue
        layers.append(replace(layer, inputs=inputs))
    return replace(
        network,
        layers=tuple(layers),
        outputs={n: (same.get(held, held), sizes) for n, (held, sizes) in network.outputs.items()},
        constants={n: value for n, value in network.constants.items() if n not in same},
    )


def _equal_constants(constants: Mapping[str, Array]) -> dict[str, str]:
    """By the name of a constant that is there before, the first name of it."""
    first: dict[str, str] = {}
    same: dict[str, str] = {}
    for name, value in constants.items():
        known = first.setdefault(array_digest(value), name)
        if known != name:
            same[name] = known
    return same
