"""What the CPU's shards of many chains take: ops, nets of two libraries, and packing between them.

ncnn's nets and ONNX Runtime's run in turn. Which net a layer is in is known from the layers behind
it in its chain, by the rule of `codl.lower.cpu.net_levels`; here for all chains at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir import Network
from codl.ir.ops.onnx_model import OnnxModel
from codl.kernels import registry
from codl.kernels.ort import CpuOrt
from codl.plan.cost_model import CostModel
from codl.plan.halo_propagation import LayerPass
from codl.plan.region_array import NONE, Numbers, is_something
from codl.plan.subop_table import SubOps, finite


def onnx_layers(network: Network, cost: CostModel) -> frozenset[int]:
    """The light layers that ONNX Runtime computes because it does most of their neighbours.

    Between nets of two engines every tensor is unpacked and packed again, which costs more than an
    op that only adds or copies.
    """
    if cost.soc.is_replayed:
        return frozenset()
    layers = network.layers
    cost.prefetch((layer.op for layer in layers), "cpu")
    variants = [own.get(None) for own in (cost.fastest_by_storage(x.op, "cpu") for x in layers)]
    in_onnx = [variant is not None and variant.variant == CpuOrt.name for variant in variants]
    if not any(in_onnx):
        return frozenset()
    makers = {layer.output: at for at, layer in enumerate(layers)}
    around: list[list[int]] = [[] for _ in layers]
    for at, layer in enumerate(layers):
        for maker in {makers[name] for name in layer.inputs if name in makers}:
            around[at].append(maker)
            around[maker].append(at)
    light = [
        at
        for at, layer in enumerate(layers)
        if not in_onnx[at]
        and layer.op.is_light
        and registry.runs_in_onnx_runtime(layer.op, cost.soc)
    ]
    joined: set[int] = set()
    changed = True
    while changed:
        changed = False
        for at in light:
            if at not in joined and 2 * sum(in_onnx[other] for other in around[at]) > len(
                around[at]
            ):
                in_onnx[at] = changed = True
                joined.add(at)
    return frozenset(joined)


class Joined(NamedTuple):
    """Of walks whose net a layer has joined: how many layers that had, whether another net reads
    the layer's output, and how many of ncnn's nets load it.
    """

    layers_before: Numbers
    is_read_elsewhere: NDArray[np.bool_]
    loads: Numbers


class NetLevels:
    """The nets of many walks, as layers join them, last to first.

    A walk's nets are numbered by levels, ncnn's even and ONNX Runtime's odd.
    """

    def __init__(self, walks: int) -> None:
        self._walks, self._levels = walks, 4
        self._counts = np.zeros((walks, self._levels), np.int64)
        #: By tensor: the least level that its maker may have, the lowest reader's, and by level
        #: whether an ncnn net reads it.
        self._least: dict[str, Numbers] = {}
        self._lowest: dict[str, Numbers] = {}
        self._readers: dict[str, NDArray[np.bool_]] = {}
        self._last: tuple[Numbers, Numbers, NDArray[np.bool_], bool] | None = None

    def join(
        self, output: str, walks: Numbers, in_onnx: NDArray[np.bool_], *, is_model: bool
    ) -> Joined:
        """Give a layer of some walks its net; a model of its own is alone in one."""
        least = self._least.pop(output, np.zeros(self._walks, np.int64))[walks]
        lowest = self._lowest.pop(output, np.full(self._walks, 1 << 30))[walks]
        has_readers = lowest < 1 << 30
        level = least + (has_readers if is_model else 0)
        level += (level % 2) != in_onnx
        while level.max(initial=0) >= self._levels:
            self._widen()
        before = self._counts[walks, level]
        if is_model:
            before = np.zeros_like(before)
        else:
            self._counts[walks, level] += 1
        readers = self._readers.pop(output, None)
        loads = np.zeros(len(walks), np.int64)
        if readers is not None:
            loads = readers[walks].sum(axis=1) - (~in_onnx & readers[walks, level])
        self._last = walks, level, in_onnx, is_model
        return Joined(before, has_readers & (lowest < level), loads)

    def read(self, tensor: str, reads: NDArray[np.bool_]) -> None:
        """Note that the layer that joined last reads a tensor, in some of its walks."""
        assert self._last is not None
        walks, level, in_onnx, is_model = self._last
        if tensor not in self._least:
            self._least[tensor] = np.zeros(self._walks, np.int64)
            self._lowest[tensor] = np.full(self._walks, 1 << 30)
            self._readers[tensor] = np.zeros((self._walks, self._levels), bool)
        walks, level, in_onnx = walks[reads], level[reads], in_onnx[reads]
        least, lowest = self._least[tensor], self._lowest[tensor]
        least[walks] = np.maximum(least[walks], level + is_model)
        lowest[walks] = np.minimum(lowest[walks], level)
        self._readers[tensor][walks[~in_onnx], level[~in_onnx]] = True

    def loads(self, tensor: str, walks: Numbers) -> Numbers:
        """How many of ncnn's nets read a tensor from outside the chains of walks."""
        return np.asarray(self._readers[tensor][walks].sum(axis=1))

    def _widen(self) -> None:
        """Room for twice as many levels."""
        self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
        for tensor, readers in self._readers.items():
            self._readers[tensor] = np.concatenate([readers, np.zeros_like(readers)], axis=1)
        self._levels *= 2


class CpuShards:
    """Columns over the rows of some steps; a row is a layer in a walk.

    `saved_ms` is what calls of nets take less because ops share them; `loaded` and `stored` how
    often ncnn's nets load and store what the layer makes; `light` rows are of layers that ONNX
    Runtime computes wherever it can.
    """

    def __init__(
        self,
        network: Network,
        cost: CostModel,
        sub_ops: SubOps,
        parts: Numbers,
        light: NDArray[np.bool_],
        walks: int,
    ) -> None:
        self._network, self._cost, self._sub_ops = network, cost, sub_ops
        self.parts = parts
        self.ms, self.missing = finite(sub_ops.fastest_ms(self.parts, 0))
        self.saved_ms = np.zeros(len(parts))
        self.loaded, self.stored = np.zeros((2, len(parts)), np.int64)
        able = [number for number in np.unique(parts[light]).tolist() if self._is_able(number)]
        self.in_onnx = sub_ops.in_onnx(parts) | (light & np.isin(parts, able))
        self._nets = NetLevels(walks) if self.in_onnx.any() else None
        self._counts = np.zeros(walks, np.int64)
        self._call_ms = cost.inside("cpu").call_ms

    def _is_able(self, number: int) -> bool:
        """Whether ONNX Runtime takes a part."""
        if number == NONE:
            return False
        op = self._sub_ops.op(number)
        return registry.runs_in_onnx_runtime(op, self._cost.soc)

    def step(self, step: LayerPass, rows: slice) -> None:
        """Put a layer's parts into nets."""
        items = np.flatnonzero(self.parts[rows])
        walks, stores = step.walks[items], step.leaves[items]
        if self._nets is None:
            before, loads = self._counts[walks], np.zeros(len(items), np.int64)
            self._counts[walks] += 1
        else:
            layer, in_onnx = self._network.layers[step.layer], self.in_onnx[rows][items]
            is_model = layer.op.kind == OnnxModel.kind
            net = self._nets.join(layer.output, walks, in_onnx, is_model=is_model)
            before, loads = net.layers_before, net.loads
            stores = ~in_onnx & (stores | net.is_read_elsewhere)
            needs = is_something(self._sub_ops.needs[self.parts[rows][items]])
            for at, name in step.inputs:
                self._nets.read(name, needs[:, at])
        self.saved_ms[rows][items] = self._call_ms * (before > 0)
        self.loaded[rows][items], self.stored[rows][items] = loads, stores

    def loads(self, tensors: Sequence[str], walks: Numbers) -> Numbers:
        """How many nets of walks load tensors from outside their chains, (tensors, walks)."""
        if self._nets is None:
            return np.ones((len(tensors), len(walks)), np.int64)
        return np.stack([self._nets.loads(tensor, walks) for tensor in tensors])
