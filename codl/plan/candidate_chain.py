"""Chains that a search may choose, what they take, and what was chosen for their layers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim
from codl.kernels.ort import CpuOrt
from codl.plan.cost_model import Pair
from codl.plan.region_array import NONE, Numbers
from codl.plan.subop_table import SubOps

Flags: TypeAlias = NDArray[np.bool_]
#: Where a chain begins and ends, its dimension and its ratio.
ChainKey: TypeAlias = tuple[int, int, Dim, float]


class CandidateChain(NamedTuple):
    """Layers `start` ... `stop` - 1 as one chain, cut, with what each shard takes.

    `reads` and `leaves` are rows of a tensor, a processor's number, 0 for the CPU and 1 for the
    GPU, and a region's: what the shards read from outside, in the order in which lowering asks for
    it, and leave for others; the regions' notes are storage orders, and tensors are those of
    `TensorNumbers.seen_from` the chain's start. `work_ms` is how long each shard takes while the
    other one works, `alone_ms` how long its ops take alone; `launches` how many kernels, or small
    groups of them, are launched; `weights` the bytes of weights of both. `rows` are the chain's
    among `ChosenRows`; chains with the same rows are alike in all but where they begin.
    """

    start: int
    stop: int
    dim: Dim
    gpu_ratio: float
    reads: Sequence[Sequence[int]]
    leaves: Sequence[Sequence[int]]
    work_ms: Pair
    alone_ms: Pair
    launches: int
    weights: float
    rows: tuple[int, int]

    @property
    def key(self) -> ChainKey:
        return self.start, self.stop, self.dim, self.gpu_ratio

    def moved(self, layers: int) -> CandidateChain:
        """A chain that is alike, so many layers behind this one."""
        return (
            CandidateChain(self.start + layers, self.stop + layers, *self[2:]) if layers else self
        )


@dataclass(frozen=True)
class TensorNumbers:
    """Tensors by number: what layers make by the layer's, then the others.

    Seen from a layer, what another makes has the number of that which lies so many behind it:
    stretches of layers that are alike then read the same numbers.
    """

    names: Sequence[str]
    layers: int

    def seen_from(self, start: Numbers, tensors: Numbers) -> Numbers:
        return np.where(tensors < self.layers, tensors - start, tensors + self.layers)

    def name(self, start: int, seen: int) -> str:
        """The name of a tensor by its number as it is seen from a layer."""
        return self.names[start + seen if seen < self.layers else seen - self.layers]


@dataclass(frozen=True)
class CandidateTable:
    """Candidates; and of all of them the tensor and the region of what is read and left, each
    once, on the CPU and on the GPU: (items, 2).
    """

    candidates: list[CandidateChain]
    reads: tuple[Numbers, Numbers]
    leaves: tuple[Numbers, Numbers]


@dataclass(frozen=True)
class Chosen:
    """What was chosen for layers in walks: the parts of both processors, and how they are made."""

    layers: Numbers
    parts: Numbers
    in_onnx: Flags
    storages: Numbers


class ChosenRows:
    """What was chosen for the layers of chains, of many evaluations behind one another."""

    def __init__(self, sub_ops: SubOps) -> None:
        self._sub_ops = sub_ops
        self._chosen: list[Chosen] = []
        self._first: list[int] = []
        self.count = 0

    def add(self, chosen: Chosen) -> None:
        self._chosen.append(chosen)
        self._first.append(self.count)
        self.count += len(chosen.layers)

    def variants(self, candidate: CandidateChain) -> list[tuple[int, dict[str, str]]]:
        """The layers of a candidate, first to last, with the kernel variant of every part."""
        at = bisect_right(self._first, candidate.rows[0]) - 1
        own, first = self._chosen[at], self._first[at]
        rows = range(candidate.rows[0] - first, candidate.rows[1] - first)  # last layer to first
        moved = candidate.start - int(own.layers[rows[-1]])
        return [(int(own.layers[row]) + moved, self._variants(own, row)) for row in reversed(rows)]

    def _variants(self, own: Chosen, row: int) -> dict[str, str]:
        cpu, gpu = own.parts[row].tolist()
        variants: dict[str, str] = {}
        if cpu != NONE:
            variants["cpu"] = CpuOrt.name if own.in_onnx[row] else self._sub_ops.cpu_variant(cpu)
        if gpu != NONE:
            variants["gpu"] = self._sub_ops.gpu_variant(gpu, int(own.storages[row]))
        return variants
