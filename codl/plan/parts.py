"""Regions of tensors as arrays, tables of the parts of layers, and halo propagation.

A box is a region as six integers, (-n0, n1, -c0, c1, -y0, y1), for images n0 ... n1 - 1, channels
c0 ... c1 - 1 and rows y0 ... y1 - 1. With the negated starts, the smallest box around two boxes is
their element-wise maximum. The empty box has very small entries.

A part is what one processor computes of a layer: an op of its own, with a number in `PartTable`.
Each part is predicted once, and layers with equal ops share their parts. `HaloPropagation` finds
the parts of many chains at once, from the last layer to the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Layer, Op, Region, Shape
from codl.ir.columns import ColumnsByType
from codl.ir.ops.base import AXES, cuts
from codl.ir.region import Span
from codl.ir.types import PROCESSORS, STORAGES, Storage
from codl.kernels.base import LIBRARIES
from codl.plan.cost_model import CostModel, Milliseconds

#: Boxes, shaped (..., 6).
Boxes = NDArray[np.int64]
#: Numbers of boxes, parts or layers.
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
#: Every entry of the empty box.
NOTHING = -(1 << 31)
#: The number of the empty region, and of the empty part.
NONE = 0
DIMS: tuple[Dim, ...] = tuple(AXES)
#: The index of the first of a dimension's two entries in a box, in the order of the entries.
PLACES: Mapping[Dim, int] = {"N": 0, "OC": 2, "H": 4}
#: The number of each storage, its index in `STORAGES`.
STORAGE_NUMBER: Mapping[Storage, int] = {storage: at for at, storage in enumerate(STORAGES)}
#: The names of the tables of parts.
TABLES = (
    "boxes", "needs", "elements", "bytes", "images", "library_ms", "storage_ms", "_fastest_ms",
)  # fmt: skip
#: The initial capacity of the tables, in parts; it doubles when they are full.
ROOM = 1024
#: Both processors together compute at most this many times the elements of each layer.
MOST_OVERLAP = 1.15


def box(region: Region | None) -> tuple[int, int, int, int, int, int]:
    """The box of a region; None and empty regions have the empty box."""
    if region is None or region.is_empty:
        return (NOTHING,) * 6
    (n0, n1), (c0, c1), (y0, y1) = region
    return -n0, n1, -c0, c1, -y0, y1


def region(row: Sequence[int]) -> Region:
    n0, n1, c0, c1, y0, y1 = row
    return Region(Span(-n0, n1), Span(-c0, c1), Span(-y0, y1))


def is_something(boxes: Boxes) -> Flags:
    """True for boxes (..., 6) that are not empty, shaped (...)."""
    return np.asarray(boxes[..., 1] != NOTHING)


def sizes(boxes: Boxes) -> Numbers:
    return boxes[..., 0::2] + boxes[..., 1::2]


def missing_sizes(held: Boxes, needs: Boxes) -> Numbers:
    """The sizes of the regions that move to a processor, for all pairs of `held` and `needs`.

    Shaped (sizes, 3), with duplicates. `codl.lower.partition.missing_regions` has the rule: the
    pieces of the smallest box around both boxes, without the held one.
    """
    is_held = is_something(held)
    pieces = [] if is_held.all() else [sizes(needs)]
    held = held[is_held, None]
    more = np.maximum(held, needs) - held  # at either end of every axis
    held_sizes = np.broadcast_to(sizes(held), (len(held), len(needs), 3))
    whole = held_sizes + more[..., 0::2] + more[..., 1::2]
    for axis in range(3):
        size = np.concatenate([held_sizes[..., :axis], whole[..., axis:]], axis=-1)
        for end in (0, 1):
            extra = more[..., 2 * axis + end]
            piece = size.copy()
            piece[..., axis] = extra
            pieces.append(piece[extra > 0])
    return np.concatenate(pieces)


def key_factors(shape: Shape) -> Numbers:
    """The vector whose product with a box of a tensor of this shape is a unique key, shaped (6)."""
    radices = [size + 1 for size in shape[:3] for _ in (0, 1)]
    signs = (-1, 1) * 3
    return np.array([sign * prod(radices[at + 1 :]) for at, sign in enumerate(signs)], np.int64)


class BoxKeys:
    """Unique integer keys of the boxes of several tensors, which are given by number."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.factors = np.array([key_factors(shape) for shape in shapes])
        counts = [prod((size + 1) ** 2 for size in shape[:3]) for shape in shapes]
        self.first = np.cumsum([0, *counts[:-1]])

    def of(self, tensors: int | Numbers, boxes: Boxes) -> Numbers:
        """The keys (..., k) of k boxes (..., k, 6) of each of some tensors (...)."""
        keys = (boxes @ self.factors[tensors][..., None])[..., 0]
        return np.asarray(keys + self.first[tensors][..., None])


class RegionTable:
    """Numbers regions of tensors with notes, from 1 on; tensors of one shape share numbers.

    By number, `wholes` has the tensor's shape, `boxes` the box, and `notes` an integer of the
    caller, here a storage order.
    """

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self._shapes = list(dict.fromkeys(shapes))
        self.shapes = {shape: at for at, shape in enumerate(self._shapes)}
        self._keys = BoxKeys(self._shapes)
        self._known: dict[tuple[int, int], int] = {}
        self.wholes: list[Shape] = [Shape(0, 0, 0, 0)]
        self.boxes: list[tuple[int, ...]] = [(NOTHING,) * 6]
        self.notes: list[int] = [0]

    def of(self, shapes: Numbers, boxes: Boxes, notes: Numbers) -> Numbers:
        """The numbers (items) of non-empty boxes (items, 6) with notes (items).

        `shapes` (items) are the numbers of the tensors' shapes.
        """
        box_keys = self._keys.of(shapes, boxes[:, None])[:, 0]
        keys = list(zip(box_keys.tolist(), notes.tolist(), strict=True))
        numbers, places = self._known, dict(zip(keys, range(len(keys)), strict=True))
        for key, at in places.items():
            if key not in numbers:
                self._add(self._shapes[shapes[at]], key, tuple(boxes[at].tolist()))
        return np.array([numbers[key] for key in keys], np.int64)

    def one(self, shape: Shape, row: tuple[int, ...], note: int = 0) -> int:
        """The number of one box of a tensor of a shape; `NONE` for the empty box."""
        if row[1] == NOTHING:
            return NONE
        at, keys = self.shapes[shape], self._keys
        key = sum(map(mul, keys.factors[at].tolist(), row), int(keys.first[at])), note
        return self._known.get(key) or self._add(shape, key, row)

    def noted(self, number: int, note: int) -> int:
        if self.notes[number] == note:
            return number
        return self.one(self.wholes[number], self.boxes[number], note)

    def _add(self, shape: Shape, key: tuple[int, int], row: tuple[int, ...]) -> int:
        self._known[key] = number = len(self.boxes)
        self.wholes.append(shape)
        self.boxes.append(row)
        self.notes.append(key[1])
        return number

    def region(self, number: int) -> Region:
        return region(self.boxes[number])


class PartTable:
    """Tables of the parts of ops; `NONE` is the number of the empty part.

    `ops` are the distinct ops, and `op_of` has the op number of each given op. `boxes` (parts, 6)
    are the output regions of parts, and `needs` (parts, inputs, 6) the input regions. `elements`
    (parts) are those of the output. `bytes` and `images` (parts), and the milliseconds in the
    fastest variants of the CPU and the GPU, `library_ms` (parts, libraries) and `storage_ms`
    (parts, storages), are of predicted parts. The tables have spare rows at their end. Ops are cut
    at `ratios`, the first 0 and the last 1.
    """

    def __init__(self, ops: Sequence[Op], cost: CostModel, ratios: Sequence[float]) -> None:
        numbers: dict[Op, int] = {}
        self.op_of = [numbers.setdefault(op, len(numbers)) for op in ops]
        self.ops = list(numbers)
        self.ratios = tuple(ratios)
        self._cost = cost
        outputs = [op.output for op in self.ops]
        self._whole = np.array([box(Region.whole(shape)) for shape in outputs])
        self._width = np.array([shape.w for shape in outputs])
        self._channel_step = np.array([op.channel_step for op in self.ops])
        #: By op and entry of a box, True where no dimension cuts that axis of the op.
        self._is_fixed = np.array(
            [[dim not in op.dims for dim in PLACES for _ in (0, 1)] for op in self.ops]
        )
        self._keys = BoxKeys(outputs)
        self._known: dict[int, int] = {}
        self._cuts: dict[tuple[int, Dim], list[int]] = {}
        self._shares: dict[int, Boxes] = {}
        self._made: list[Op] = []
        self._count = 1
        self.boxes: Boxes = np.full((ROOM, 6), NOTHING, np.int64)
        inputs = max(len(op.inputs) for op in self.ops)
        self.needs: Boxes = np.full((ROOM, inputs, 6), NOTHING, np.int64)
        self.elements = np.zeros(ROOM, np.int64)
        self.bytes, self.images = np.zeros((2, ROOM))
        self.library_ms = np.full((ROOM, len(LIBRARIES)), np.nan)
        self.storage_ms = np.full((ROOM, len(STORAGES)), np.nan)
        #: Milliseconds in the fastest variant of each processor, shaped (parts, 2).
        self._fastest_ms = np.full((ROOM, 2), np.nan)
        self.library_ms[NONE] = self.storage_ms[NONE] = self._fastest_ms[NONE] = 0.0

    # Cutting.

    def cuts(self, op: int, dim: Dim) -> list[int]:
        """For each ratio, how many rows, channels or images of an op the GPU gets."""
        if (op, dim) not in self._cuts:
            block = self._cost.soc.gpu.vector_width
            self._cuts[op, dim] = cuts(self.ops[op], dim, self.ratios, align=block)
        return self._cuts[op, dim]

    def shares(self, op: int) -> Boxes:
        """The boxes of an op for the CPU and the GPU at each cut, shaped (dims x ratios, 2, 6)."""
        if op not in self._shares:
            halves = [self.halves(op, dim, self.cuts(op, dim)) for dim in DIMS]
            self._shares[op] = np.concatenate(halves)
        return self._shares[op]

    def halves(self, op: int, dim: Dim, places: Sequence[int]) -> Boxes:
        """The boxes of an op where the GPU gets the first `places` of `dim`, (places, 2, 6)."""
        halves, place, ends = np.empty((len(places), 2, 6), np.int64), PLACES[dim], np.array(places)
        halves[:] = self._whole[op]
        halves[:, 0, place], halves[:, 1, place + 1] = -ends, ends
        halves[halves[..., place] + halves[..., place + 1] <= 0] = NOTHING
        return halves

    def cut(self, dim: Dim, step: int | Numbers) -> int | Numbers:
        """The index in `shares` of the cut at a dimension and a ratio number."""
        return DIMS.index(dim) * len(self.ratios) + step

    def of(self, op: int | Numbers, wanted: Boxes) -> Numbers:
        """The numbers of the parts with boxes `wanted` (items, 2, 6); shaped (items, 2).

        `op` is one op or an array of one op per item. Boxes are extended as `Op.around` does: to
        all of an axis that no dimension cuts, and to whole groups of channels.
        """
        is_there = is_something(wanted)
        if (fixed := self._is_fixed[op][..., None, :]).any():
            wanted = np.where(is_there[..., None] & fixed, self._whole[op][..., None, :], wanted)
        if (step := self._channel_step[op][..., None, None]).max() > 1:
            channels = -(-wanted[..., 2:4] // step) * step  # outwards: first channels are negated
            wanted[..., 2:4] = np.where(is_there[..., None], channels, wanted[..., 2:4])
        keys = np.where(is_there, self._keys.of(op, wanted), -1)
        flat, numbers_by_key = keys.ravel().tolist(), self._known
        places = dict(zip(flat, range(len(flat)), strict=True))
        places.pop(-1, None)
        new = {key: at for key, at in places.items() if key not in numbers_by_key}
        if new:
            at = list(new.values())
            ops = np.broadcast_to(np.asarray(op)[..., None], keys.shape).ravel()[at]
            first = self._make(ops, wanted.reshape(-1, 6)[at])
            numbers_by_key.update(zip(new, range(first, first + len(new)), strict=True))
        numbers = np.array([numbers_by_key.get(key, NONE) for key in flat], np.int64)
        return numbers.reshape(keys.shape)

    def _make(self, ops: Numbers, new: Boxes) -> int:
        """Add parts, each of its op; returns the number of the first one."""
        first, self._count = self._count, self._count + len(new)
        while self._count > len(self.boxes):
            for name in TABLES:
                table = getattr(self, name)
                spare = np.full_like(table, np.nan if table.dtype.kind == "f" else NOTHING)
                setattr(self, name, np.concatenate([table, spare]))
        added = slice(first, self._count)
        self.boxes[added] = new
        self.elements[added] = sizes(new).prod(axis=1) * self._width[ops]
        for number, (op, row) in enumerate(zip(ops.tolist(), new.tolist(), strict=True), first):
            whole_op, part = self.ops[op], region(row)
            self._made.append(whole_op.restrict(part))
            for at in range(len(whole_op.inputs)):
                self.needs[number, at] = box(whole_op.needs(part, at))
        return first

    def op(self, number: int) -> Op:
        return self._made[number - 1]

    # Costs.

    def fastest_ms(self, numbers: Numbers, side: int) -> Milliseconds:
        """Milliseconds of parts in their fastest variants on a processor; infinite without one.

        Parts that were not predicted yet are predicted in one batch.
        """
        fastest_ms = self._fastest_ms[:, side]
        asked = np.zeros(len(fastest_ms), bool)
        asked[numbers] = True
        new = np.flatnonzero(asked & np.isnan(fastest_ms)).tolist()
        if new:
            table = self.storage_ms if side else self.library_ms
            table[new] = np.inf
            ops = [self.op(number) for number in new]
            inputs, weights, outputs, _ = ColumnsByType(ops).amounts
            self.bytes[new] = 4 * (inputs + weights + outputs)
            self.images[new] = [op.images for op in ops]
            by_op = self._cost.prefetch(ops, PROCESSORS[side])
            for number, op_costs in zip(new, by_op, strict=True):
                for cost in op_costs.values():
                    at = cost.library if cost.storage is None else STORAGE_NUMBER[cost.storage]
                    table[number, at] = min(table[number, at], cost.latency_ms)
            fastest_ms[new] = table[new].min(axis=1)
        return np.asarray(fastest_ms[numbers])


class Walk(NamedTuple):
    """Chains with a common end and cut: they end before layer `stop`, and begin at `starts`.

    `step` is the number of the partition ratio.
    """

    stop: int
    dim: Dim
    step: int
    starts: frozenset[int]


class ChainReads(NamedTuple):
    """The input boxes `needed` (tensors, walks, 2, 6) of chains that begin at a layer.

    `tensors` come in the order in which the layers read them.
    """

    tensors: list[str]
    walks: Numbers
    needed: Boxes


class LayerPass(NamedTuple):
    """One layer in all walks that pass it.

    `parts` (walks, 2) are the part numbers of both processors. `is_written` (walks) is True where
    a later chain reads the output. `reads` are the inputs of chains that begin here, if any.
    `inputs` are the indices and names of the layer's inputs without private tensors.
    """

    layer: int
    inputs: Sequence[tuple[int, str]]
    walks: Numbers
    parts: Numbers
    is_written: Flags
    reads: ChainReads | None


class HaloPropagation:
    """Propagates the needed regions of walks through a network, from the last layer to the first.

    `begins` (layers, walks) is True where a chain begins; its rows are the layers from `first` on.
    With `limited`, chains with too large a halo are left out. Walks do not need private tensors.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        table: PartTable,
        last_reader: Mapping[str, int],
        private_tensors: Collection[str],
        walks: Sequence[Walk],
        *,
        limited: bool,
    ) -> None:
        self._layers, self._table, self._limited = layers, table, limited
        self._last_reader, self._private, self._count = last_reader, private_tensors, len(walks)
        self._stop = np.array([walk.stop for walk in walks], np.int64)
        self._first = np.array([min(walk.starts) for walk in walks], np.int64)
        dims = np.array([DIMS.index(walk.dim) for walk in walks], np.int64)
        ratios = np.array([walk.step for walk in walks], np.int64)
        self._cut = dims * len(table.ratios) + ratios
        self._goes_on = np.ones(self._count, bool)
        self.first = int(self._first.min(initial=len(layers)))
        self._last = int(self._stop.max(initial=self.first))
        self.begins = np.zeros((self._last - self.first, self._count), bool)
        for at, walk in enumerate(walks):
            self.begins[[start - self.first for start in walk.starts], at] = True
        #: The boxes (walks, 2, 6) that walks need of each tensor made earlier, in reading order.
        self._needed: dict[str, Boxes] = {}

    def steps(self) -> list[LayerPass]:
        passes = map(self._pass, reversed(range(self.first, self._last)))
        return [step for step in passes if step is not None]

    def _pass(self, k: int) -> LayerPass | None:
        """The walks that pass layer `k`: their parts of it, and the inputs of these parts."""
        layer, table = self._layers[k], self._table
        passing = np.flatnonzero(self._goes_on & (self._first <= k) & (k < self._stop))
        needed = self._needed.pop(layer.output, None)
        if not len(passing):
            return None
        is_written = self._last_reader[layer.output] >= self._stop[passing]
        # A part covers what later layers need, and its share of the chain's outputs.
        shares = table.shares(table.op_of[k])[self._cut[passing]]
        if needed is None:
            wanted = np.where(is_written[:, None, None], shares, NOTHING)
        else:
            wanted = needed[passing]
            np.maximum(wanted, shares, out=wanted, where=is_written[:, None, None])
        parts = table.of(table.op_of[k], wanted)
        computed = table.elements[parts].sum(axis=1)
        most = MOST_OVERLAP * layer.op.output.elements
        if self._limited and (computed > most).any():
            lost, stays = passing[computed > most], computed <= most
            self._goes_on[lost] = False
            self.begins[: k + 1 - self.first, lost] = False
            passing, parts, is_written = passing[stays], parts[stays], is_written[stays]
        needs = table.needs[parts]
        inputs = [(at, name) for at, name in enumerate(layer.inputs) if name not in self._private]
        for at, name in inputs:
            if name not in self._needed:
                self._needed[name] = np.full((self._count, 2, 6), NOTHING, np.int64)
            boxes = self._needed[name]
            boxes[passing] = np.maximum(boxes[passing], needs[:, :, at])
        self._needed = {name: self._needed[name] for _, name in inputs} | self._needed
        begin, reads = passing[self.begins[k - self.first, passing]], None
        if len(begin) and self._needed:
            read = np.stack([boxes[begin] for boxes in self._needed.values()])
            reads = ChainReads(list(self._needed), begin, read)
        return LayerPass(k, inputs, passing, parts, is_written, reads)
