"""What the layers of a network hold from run to run, and what plans may not have twice of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Layer, Network, Op, split
from codl.plan.region_array import NONE, Numbers, box
from codl.plan.subop_table import PLACES, SubOps
from codl.plan.weight_places import WeightPlaces

T = TypeVar("T")
#: Fewer elements may as well be on both, but for those of products.
LEAST_ELEMENTS = 1 << 14
#: A processor has at most this many times its part: some are cut at whole words.
TOLERANCE = 1.01
#: Larger than what stands in any box.
ANYTHING = 1 << 40


class LayerWeights:
    """What the layers of a network hold: weights, states, and constants that one alone reads."""

    def __init__(self, network: Network, places: WeightPlaces, lone: frozenset[str]) -> None:
        self._layers, self._places = network.layers, places
        self._inputs = [_held_inputs(layer, lone) for layer in network.layers]
        self._known: dict[tuple[Op, tuple[int, ...]], tuple[Dim, ...]] = {}

    def allowed(self, at: int, ways: dict[Dim, T]) -> dict[Dim, T]:
        """Of the dimensions in which a layer could be cut those that cut what it holds, if any."""
        op, inputs = self._layers[at].op, self._inputs[at]
        if not self._places.once:
            return ways
        if (op, inputs) not in self._known:
            self._known[op, inputs] = _cutting(op, inputs)
        return {dim: own for dim, own in ways.items() if dim in self._known[op, inputs]}

    def cut(self, at: int) -> tuple[Dim, float] | None:
        """How a layer's chain is cut in the plan that is followed; None where that is open."""
        if not self._wholes[at]:
            return None
        return self._places.cuts.get(self._layers[at].name)

    def note(self, at: int) -> object:
        """What makes a layer differ from others with the same op."""
        name = self._layers[at].name
        return self._places.shares.get(name) if self._wholes[at] else None

    @cached_property
    def _wholes(self) -> NDArray[np.float64]:
        """Elements that each layer holds, 0 where they do not matter; (layers)."""
        if not self._places.once:
            return np.zeros(len(self._layers))
        pairs = zip(self._layers, self._inputs, strict=True)
        return np.array([_that_matters(layer.op, own) for layer, own in pairs], np.float64)

    @cached_property
    def _boxes(self) -> NDArray[np.int64]:
        """What each processor may compute of each layer, as far as weights go: (layers, 2, 6)."""
        boxes = np.full((len(self._layers), 2, 6), ANYTHING, np.int64)
        for at, layer in enumerate(self._layers):
            own = self._places.shares.get(layer.name)
            if own is None or not self._wholes[at]:
                continue
            firsts = [PLACES[dim] for dim in _cutting(layer.op, self._inputs[at])]
            places = [place for first in firsts for place in (first, first + 1)]
            for side, region in enumerate(own):
                cut = slice(None) if region is None else places
                boxes[at, side, cut] = np.array(box(region))[cut]
        return boxes

    def misplaced(self, layers: Numbers, parts: Numbers, sub_ops: SubOps) -> NDArray[np.bool_]:
        """Whether what both processors compute of layers, (rows, 2), needs weights elsewhere."""
        found = np.zeros(len(layers), np.bool_)
        rows = np.flatnonzero(self._wholes[layers])
        if not rows.size:
            return found
        layers, parts = layers[rows], parts[rows]
        held: dict[tuple[int, tuple[int, ...]], int] = {}
        totals = []
        for at, pair in zip(layers.tolist(), parts.tolist(), strict=True):
            for number in pair:
                key = number, self._inputs[at]
                if key not in held:
                    held[key] = 0 if number == NONE else _held(sub_ops.op(number), key[1])
            totals.append(sum(held[number, self._inputs[at]] for number in pair))
        twice = np.array(totals) > TOLERANCE * self._wholes[layers]
        beyond = sub_ops.boxes[parts] > self._boxes[layers]
        found[rows] = twice | (beyond & (parts != NONE)[..., None]).any(axis=(1, 2))
        return found


def _held_inputs(layer: Layer, lone: frozenset[str]) -> tuple[int, ...]:
    """The inputs that last from run to run."""
    own = (at for at, name in enumerate(layer.inputs) if name in lone or at in layer.op.states)
    return tuple(own)


def _held(op: Op, inputs: Sequence[int]) -> int:
    """Elements of weights, and of inputs that last; a bias counts for nothing."""
    weights = sum(prod(shape) for shape in op.weight_shapes.values() if len(shape) > 1)
    return weights + sum(op.inputs[at].elements for at in inputs)


def _that_matters(op: Op, inputs: Sequence[int]) -> int:
    """The same, 0 where it is too little to matter."""
    held = _held(op, inputs)
    return held if held >= LEAST_ELEMENTS or op.is_product or op.states else 0


def _cutting(op: Op, inputs: Sequence[int]) -> tuple[Dim, ...]:
    """The dimensions in which halves hold less than the whole; all of an op that holds little."""
    whole = _that_matters(op, inputs)
    if not whole:
        return op.dims
    found = []
    for dim in op.dims:
        shares = [share for share in split(op, dim, 0.5) if not share.is_empty]
        total = sum(_held(op.restrict(op.around(share)), inputs) for share in shares)
        if len(shares) < 2 or total <= TOLERANCE * whole:
            found.append(dim)
    return tuple(found)
