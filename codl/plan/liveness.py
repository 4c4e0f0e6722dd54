"""Which tensors of a network are still read, and by whom last."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from codl.ir import Network


def last_readers(network: Network) -> dict[str, int]:
    """The index of the last layer that reads each tensor; of results, the number of layers."""
    readers = dict.fromkeys((*network.inputs, *network.constants, *network.states), -1)
    for index, layer in enumerate(network.layers):
        readers[layer.output] = -1
        readers |= dict.fromkeys(layer.inputs, index)
    return readers | {name: len(network.layers) for name, _ in network.outputs.values()}


def live_tensors(
    network: Network, last_reader: Mapping[str, int], lone: Collection[str]
) -> list[tuple[str, ...]]:
    """At every point between layers, the tensors that are there and still read, the oldest first.

    But for constants that are `lone`.
    """
    live: list[list[str]] = [[] for _ in range(len(network.layers) + 1)]
    made = {layer.output: at + 1 for at, layer in enumerate(network.layers)}
    for name in sorted(last_reader.keys() - lone, key=lambda name: (made.get(name, 0), name)):
        for at in range(made.get(name, 0), last_reader[name] + 1):
            live[at].append(name)
    return [tuple(names) for names in live]
