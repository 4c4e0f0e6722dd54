"""Chooses the library that computes each layer on the CPU: ncnn, ONNX Runtime or OpenVINO.

A change of library unpacks and packs tensors again, which may cost more than the faster library
saves. So the libraries of all layers are chosen together, for the least sum of ops and changes. All
shards of a layer use its library.
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

#: Stands for the library that is fastest for a part.
ANY = -1
#: A mix of libraries must be predicted to take less than this part of the best single library's
#: latency: predictions of two libraries differ more in their errors than those of one.
WORTH = 0.95


class _Labelled(NamedTuple):
    """The libraries of the first layers of a network, and their milliseconds."""

    taken_ms: float
    libraries: tuple[int, ...]


def cpu_libraries(network: Network, cost: CostModel) -> Numbers:
    """By layer, the number of the library that computes it; `ANY` for all on replayed SoCs."""
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
    """The cost model, and one for each library that plans prefer, without duplicates."""
    costs = [cost, *map(cost.in_library, range(len(LIBRARIES)))]
    different: dict[bytes, CostModel] = {}
    for each in costs:
        different.setdefault(cpu_libraries(network, each).tobytes(), each)
    return list(different.values())


def _ops_ms(network: Network, cost: CostModel) -> Milliseconds:
    """Milliseconds of layers by library, infinite without a variant; (layers, libraries).

    A light op without a prediction in a library counts as in the fastest one.
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
    """Sums the milliseconds of layers in libraries, and of changes between libraries."""

    def __init__(self, network: Network, cost: CostModel, ops_ms: Milliseconds) -> None:
        self._network, self._ops_ms = network, ops_ms
        self._call_ms = [cost.inside("cpu", library).call_ms for library in LIBRARIES]
        self._makers = {layer.output: at for at, layer in enumerate(network.layers)}
        self._results = {holder for holder, _ in network.outputs.values()}
        read = (name for layer in network.layers for name in layer.inputs)
        names = [name for name in (*read, *self._results) if name not in network.constants]
        shapes = {name: network.shapes[name] for name in names}
        #: By library and tensor, milliseconds of packing and of unpacking.
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
        """The best libraries of all layers, by dynamic programming over the last library."""
        best = [_Labelled(0.0, ())]
        for row in self._ops_ms:
            able = np.flatnonzero(np.isfinite(row)).tolist()
            best = [min(self._with(before, library) for before in best) for library in able]
        return min(best)

    def _with(self, before: _Labelled, library: int) -> _Labelled:
        """The sums with one more layer, in a library."""
        taken_ms, libraries = before
        at = len(libraries)
        layer = self._network.layers[at]
        reads_packed = packs(layer.op, library)
        taken_ms += float(self._ops_ms[at, library])
        # The prediction of each op includes one call.
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
