"""Which library computes each layer on the CPU: ncnn, ONNX Runtime or another one.

Between nets of two libraries tensors are unpacked and packed again, which may cost more than the
faster library saves. So the layers of a network are given libraries all together, for the least
sum of what ops and changes take; each layer of a shard is computed by that library then, whatever
the shard's part of it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from codl.ir import Network
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.lower.rules import loading, packs, storing
from codl.plan.cost_model import CostModel, Milliseconds
from codl.plan.region_array import Numbers

#: Of a layer: the library that is fastest for its part.
ANY = -1
#: Several libraries must be predicted to take less than this part of what one of them takes, as far
#: as it can: predictions of two libraries are further off each other than those of one.
WORTH = 0.95


class _Labelled(NamedTuple):
    """Libraries of the first layers, and what those take in milliseconds."""

    taken_ms: float
    libraries: tuple[int, ...]


def cpu_libraries(network: Network, cost: CostModel) -> Numbers:
    """The number of the library that computes each layer; shaped (layers).

    `ANY` for all where latencies are other people's, or the rule is switched off.
    """
    layers = network.layers
    if cost.soc.is_replayed or "joins-onnx" in cost.off:
        return np.full(len(layers), ANY)
    ops_ms = _ops_ms(network, cost)
    able = np.isfinite(ops_ms)
    if not able.any(axis=1).all() or able[:, 1:].sum() == 0:
        return np.full(len(layers), ANY)
    fastest = ops_ms.argmin(axis=1)
    uniforms = [np.where(able[:, library], library, fastest) for library in range(len(LIBRARIES))]
    if cost.library is not None:
        return np.asarray(uniforms[cost.library], np.int64)
    labels = _Labels(network, cost, ops_ms)
    uniform = [labels.of(libraries.tolist()) for libraries in uniforms]
    searched, simplest = labels.searched(), min(uniform)
    is_worth = searched.taken_ms < WORTH * simplest.taken_ms
    return np.array((searched if is_worth else simplest).libraries, np.int64)


def in_each_library(network: Network, cost: CostModel) -> list[CostModel]:
    """The cost model, and the same with each library taken as far as it can; each way once."""
    costs = [cost, *map(cost.in_library, range(len(LIBRARIES)))]
    different: dict[bytes, CostModel] = {}
    for each in costs:
        different.setdefault(cpu_libraries(network, each).tobytes(), each)
    return list(different.values())


def _ops_ms(network: Network, cost: CostModel) -> Milliseconds:
    """Milliseconds of layers by library, infinite where it has no variant; (layers, libraries).

    A light op that a library was not measured with counts as in the fastest.
    """
    ops_ms = np.full((len(network.layers), len(LIBRARIES)), np.inf)
    by_op = cost.prefetch((layer.op for layer in network.layers), "cpu")
    for row, layer, op_costs in zip(ops_ms, network.layers, by_op, strict=True):
        for known in op_costs.values():
            row[known.library] = min(row[known.library], known.latency_ms)
        if layer.op.is_light:
            fastest_ms = row.min()
            for library in np.flatnonzero(np.isinf(row)).tolist():
                if registry.of_library(layer.op, library, cost.soc) is not None:
                    row[library] = fastest_ms
    return ops_ms


class _Labels:
    """Sums up what layers take in libraries, with the changes between these."""

    def __init__(self, network: Network, cost: CostModel, ops_ms: Milliseconds) -> None:
        self._network, self._ops_ms = network, ops_ms
        self._call_ms = [cost.inside("cpu", library).call_ms for library in LIBRARIES]
        self._makers = {layer.output: at for at, layer in enumerate(network.layers)}
        self._results = {holder for holder, _ in network.outputs.values()}
        read = (name for layer in network.layers for name in layer.inputs)
        names = [name for name in (*read, *self._results) if name not in network.constants]
        shapes = {name: network.shapes[name] for name in names}
        #: By library, what packing a tensor takes, and unpacking it.
        self._load_ms, self._store_ms = (
            [dict(zip(shapes, cost.packings_ms(way(x), shapes.values()), strict=True))
             for x in LIBRARIES]
            for way in (loading, storing)
        )  # fmt: skip

    def of(self, libraries: Sequence[int]) -> _Labelled:
        labelled = _Labelled(0.0, ())
        for library in libraries:
            labelled = self._with(labelled, library)
        return labelled

    def searched(self) -> _Labelled:
        """The best that ends in each library, layer by layer; of those the best at the end."""
        best = [_Labelled(0.0, ())]
        for row in self._ops_ms:
            able = np.flatnonzero(np.isfinite(row)).tolist()
            best = [min(self._with(before, library) for before in best) for library in able]
        return min(best)

    def _with(self, before: _Labelled, library: int) -> _Labelled:
        """One layer more, in a library."""
        taken_ms, libraries = before
        at = len(libraries)
        layer = self._network.layers[at]
        reads_packed = packs(layer.op, library)
        taken_ms += float(self._ops_ms[at, library])
        # Every op counts with a call of its own.
        if libraries and libraries[-1] == library:
            taken_ms -= self._call_ms[library]
        load_ms = self._load_ms[library]
        for name in layer.inputs:
            if name not in load_ms:
                continue
            maker = self._makers.get(name)
            made_in = None if maker is None else libraries[maker]
            is_packed = maker is not None and packs(self._network.layers[maker].op, made_in or 0)
            if made_in == library:
                taken_ms += (reads_packed and not is_packed) * load_ms[name]
            else:
                taken_ms += reads_packed * load_ms[name]
                taken_ms += is_packed * self._store_ms[made_in or 0][name]
        if layer.output in self._results and packs(layer.op, library):
            taken_ms += self._store_ms[library][layer.output]
        return _Labelled(taken_ms, (*libraries, library))
