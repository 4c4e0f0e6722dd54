"""The parts of a network's layers that chains are made of, by number: each made and predicted once.

Layers with equal ops share their parts, and a chain is rows of numbers. What chains take is then
sums over columns, instead of a walk over ops for each of thousands of chains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Layer, Op, Region
from codl.ir.columns import (
    amounts,
)
from codl.ir.ops.base import AXES, cuts
from codl.ir.types import PROCESSORS
from codl.kernels import registry
from codl.kernels.base import Variant
from codl.lower.fusion import pays
from codl.plan import region_array as boxes
from codl.plan.cost_model import CostModel
from codl.plan.region_array import NONE, Boxes, Numbers

#: Ratios that are tried, in steps of one twentieth, or one image where a batch has more images; the
#: ends are one processor alone.
STEPS = 20
DIMS: tuple[Dim, ...] = tuple(AXES)
#: So many parts have room from the start; then twice as many, and so on.
ROOM = 1024
#: Where the entries of each dimension stand in a box.
_PLACES: Mapping[Dim, int] = {"N": 0, "OC": 2, "H": 4}


class Parts:
    """Parts of layers by number; `NONE` is the part of nothing.

    `ops` are the network's ops, each once, and `op_of` says which is whose layer's. `boxes` (parts,
    6) are the parts' own regions, of so many `elements` (parts), and `needs` (parts, inputs, 6) the
    regions of inputs that each part needs; behind the last part is room for more. Ops are cut in so
    many `steps`.
    """

    def __init__(self, layers: Sequence[Layer], cost: CostModel) -> None:
        numbers: dict[Op, int] = {}
        self.op_of = [numbers.setdefault(layer.op, len(numbers)) for layer in layers]
        self.ops = list(numbers)
        self._cost, self._block = cost, cost.soc.gpu.vector_width
        outputs = [op.output for op in self.ops]
        self.steps = max(STEPS, *(shape.n for shape in outputs))
        self._whole = np.array([boxes.box(Region.whole(shape)) for shape in outputs])
        self._width = np.array([shape.w for shape in outputs])
        #: By op, whether a dimension cuts it, in the order of `DIMS`.
        self._is_cut = np.array([[dim in op.dims for dim in DIMS] for op in self.ops])
        #: What an op's box is multiplied by, and what is added, for a number that no other has.
        self._weights = np.array([boxes.weights_of(shape) for shape in outputs])
        counts = [boxes.count_of(shape) for shape in outputs]
        self._first_key = np.array([0, *accumulate(counts[:-1])], np.int64)
        self._known: dict[int, int] = {}
        self._cuts: dict[tuple[int, Dim], list[int]] = {}
        self._shares: list[Boxes | None] = [None] * len(self.ops)
        self._made: list[Op] = []
        inputs = max(len(op.inputs) for op in self.ops)
        self._count = 1
        self.boxes: Boxes = np.full((ROOM, 6), boxes.NOTHING, np.int64)
        self.needs: Boxes = np.full((ROOM, inputs, 6), boxes.NOTHING, np.int64)
        self.elements = np.zeros(ROOM, np.int64)
        self._latency_ms = np.full((2, ROOM), np.nan)
        self._latency_ms[:, NONE] = 0.0
        self._variants: dict[tuple[str, str], Variant] = {}

    def cuts(self, op: int, dim: Dim) -> list[int]:
        """How much of an op the GPU gets when it is cut after 0, 1 ... `steps` steps."""
        if (op, dim) not in self._cuts:
            ratios = (step / self.steps for step in range(self.steps + 1))
            self._cuts[op, dim] = cuts(self.ops[op], dim, ratios, align=self._block)
        return self._cuts[op, dim]

    def shares(self, op: int) -> Boxes:
        """What the CPU and the GPU get of an op, shaped (dims x (steps + 1), 2, 6)."""
        found = self._shares[op]
        if found is None:
            found = np.empty((len(DIMS), self.steps + 1, 2, 6), np.int64)
            found[:] = self._whole[op]
            for own, dim in zip(found, DIMS, strict=True):
                place, places = _PLACES[dim], np.array(self.cuts(op, dim))
                own[:, 0, place], own[:, 1, place + 1] = -places, places
                own[own[..., place] + own[..., place + 1] <= 0] = boxes.NOTHING
            found = self._shares[op] = found.reshape(-1, 2, 6)
        return found

    def cut(self, dim: Dim, step: int | NDArray[np.int64]) -> int | NDArray[np.int64]:
        """Where the shares of a dimension and a step stand among an op's."""
        return DIMS.index(dim) * (self.steps + 1) + step

    def of(self, op: int | Numbers, wanted: Boxes, dims: Numbers) -> Numbers:
        """The parts of an op, or one for each item, shaped (items, 2), of boxes (items, 2, 6).

        In chains that are cut at `dims` (items), as `codl.lower.partition.Part` has it: whoever
        reads a part of what cannot be cut there gets the whole.
        """
        there = boxes.is_something(wanted)
        is_whole = there & ~self._is_cut[op, dims][:, None]
        wanted = np.where(is_whole[..., None], self._whole[op][..., None, :], wanted)
        keys = (wanted @ self._weights[op][..., None])[..., 0]
        keys = np.where(there, keys + self._first_key[op][..., None], -1)
        flat, known = keys.ravel().tolist(), self._known
        places = dict(zip(flat, range(len(flat)), strict=True))
        places.pop(-1, None)
        new = {key: at for key, at in places.items() if key not in known}
        if new:
            at = list(new.values())
            ops = np.broadcast_to(np.asarray(op)[..., None], keys.shape).ravel()[at]
            first = self._make(ops, wanted.reshape(-1, 6)[at])
            known.update(zip(new, range(first, first + len(new)), strict=True))
        found = np.array([known.get(key, NONE) for key in flat], np.int64)
        return found.reshape(keys.shape)

    def _make(self, ops: Numbers, new: Boxes) -> int:
        """The number of the first of new parts, each of an op."""
        first, self._count = self._count, self._count + len(new)
        while self._count > len(self.boxes):
            self._make_room()
        added = slice(first, self._count)
        self.boxes[added] = new
        self.elements[added] = boxes.sizes(new).prod(axis=1) * self._width[ops]
        for number, (op, row) in enumerate(zip(ops.tolist(), new.tolist(), strict=True), first):
            own, region = self.ops[op], boxes.region(row)
            self._made.append(own.restrict(region))
            for at in range(len(own.inputs)):
                self.needs[number, at] = boxes.box(own.needs(region, at))
        return first

    def _make_room(self) -> None:
        """Twice as much."""
        self.boxes = np.concatenate([self.boxes, self.boxes])
        self.elements = np.concatenate([self.elements, self.elements])
        self.needs = np.concatenate([self.needs, np.full_like(self.needs, boxes.NOTHING)])
        new = np.full_like(self._latency_ms, np.nan)
        self._latency_ms = np.concatenate([self._latency_ms, new], axis=1)

    def latency_ms(self, numbers: Numbers, side: int) -> NDArray[np.float64]:
        """Milliseconds of parts in their fastest variants on a processor; infinite without one.

        What is new is predicted in one batch.
        """
        known = self._latency_ms[side]
        asked = np.zeros(len(known), bool)
        asked[numbers] = True
        new = np.flatnonzero(asked & np.isnan(known))
        if len(new):
            ops = [self._made[number - 1] for number in new.tolist()]
            known[new] = self._cost.fastest_ms(ops, PROCESSORS[side])
        found: NDArray[np.float64] = known[numbers]
        return found

    def are_fused(self, convolution: int, add: int) -> bool:
        """Whether the GPU computes a part of an add together with that of a convolution."""
        if (self.boxes[convolution] != self.boxes[add]).any():
            return False
        variants = []
        for number in (convolution, add):
            op = self._made[number - 1]
            choice = self._cost.choice(op, "gpu")
            if choice is None:
                return False
            key = (op.kind, choice.variant)
            if key not in self._variants:
                self._variants[key] = registry.find(op, choice.variant)
            variants.append(self._variants[key])
        return pays(variants[0], variants[1], self._cost.soc)

    def amounts(self) -> Mapping[str, NDArray[np.float64]]:
        """Of every part the bytes in all, FLOPs, and bytes of weights; its images and launches."""
        inputs, weights, outputs, flops = amounts(self._made)
        images = np.array([op.images for op in self._made], np.float64)
        found = {
            "bytes": 4 * (inputs + weights + outputs),
            "flops": flops,
            "weights": 4 * weights,
            "images": images,
            "launches": images if self._cost.soc.gpu.is_cpu else np.ones_like(images),
        }
        return {name: np.concatenate([[0.0], values]) for name, values in found.items()}
