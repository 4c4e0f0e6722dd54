"""Trees as text that a person can read, and fast sums of them; grown by LightGBM or scikit-learn.

A tree is a line of words, every split before its two sides: `3:40` asks whether feature 3 is at
most 40, and where it is, the first side holds, else the second; a plain number is a leaf. So
`3:40 0.1 0:2 0.2 0.3` has three leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.predict.estimators.arrays import Vector

#: A split's feature and number, or -1 and a leaf's value.
Node: TypeAlias = tuple[int, float]
LEAF = -1
#: The most leaves of a tree: as many as a word of the machine has bits.
MOST_LEAVES = 64
#: Digits behind the point of leaves that are logarithms.
DECIMALS = 4
#: Items whose sums are found at a time.
CHUNK = 512
#: What every fit has in common: one thread, and the same trees every time.
_COMMON = {
    "min_data_in_bin": 1,
    "feature_pre_filter": False,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "seed": 0,
    "verbosity": -1,
}


@dataclass(frozen=True)
class Trees:
    """Trees whose leaves' values are added, each a tuple of nodes in the order of its text."""

    nodes: tuple[tuple[Node, ...], ...]

    @classmethod
    def fit(cls, X: Vector, t: Vector, *, rounds: int, parameters: Mapping[str, Any]) -> Trees:
        """Boosted trees of features (rows, features) and targets (rows), logarithms.

        With LightGBM's `parameters`.
        """
        lightgbm = _lightgbm()
        own = {**_COMMON, **parameters}
        data = lightgbm.Dataset(X, t, params=own)
        text = lightgbm.train(own, data, num_boost_round=rounds).model_to_string()
        sizes = [np.unique(column) for column in X.T]
        trees = (_grown(part, sizes) for part in text.split("\nTree=")[1:])
        return cls(tuple(trees))

    def predict(self, X: Vector) -> Vector:
        """The sums of the values (items): of every tree the first leaf that no split rules out.

        A split that an item goes past rules out the leaves of its first side. All splits of a
        feature that it goes past are known from where its value stands among their numbers.
        """
        total = np.empty(len(X))
        for at in range(0, len(X), CHUNK):
            part = X[at : at + CHUNK]
            left = np.tile(self._all_leaves, (len(part), 1))
            for feature, (numbers, kept) in self._kept.items():
                left &= kept[np.searchsorted(numbers, part[:, feature])]
            lowest = (left & (~left + left.dtype.type(1))).astype(np.float64)
            places = np.frexp(lowest)[1] - 1 + self._first_leaf
            total[at : at + CHUNK] = self._values[places].sum(1)
        return total

    @cached_property
    def _table(self) -> tuple[NDArray[np.intp], Vector, NDArray[np.intp]]:
        """Features, numbers and the trees of all nodes, one tree behind the other."""
        rows = np.array([node for tree in self.nodes for node in tree], np.float64)
        tree = np.repeat(np.arange(len(self.nodes)), [len(tree) for tree in self.nodes])
        return rows[:, 0].astype(np.intp), rows[:, 1], tree

    @cached_property
    def _values(self) -> Vector:
        features, numbers, _ = self._table
        return numbers[features == LEAF]

    @cached_property
    def _counts(self) -> NDArray[np.intp]:
        features, _, tree = self._table
        return np.bincount(tree[features == LEAF], minlength=len(self.nodes))

    @cached_property
    def _first_leaf(self) -> NDArray[np.intp]:
        result: NDArray[np.intp] = np.cumsum(self._counts) - self._counts
        return result

    @cached_property
    def _all_leaves(self) -> NDArray[Any]:
        """A bit for every leaf, in the narrowest words that have as many."""
        bits = next(b for b in (8, 16, 32, 64) if b >= self._counts.max())
        return np.full(len(self.nodes), (1 << bits) - 1, f"uint{bits}")

    @cached_property
    def _kept(self) -> Mapping[int, tuple[Vector, NDArray[Any]]]:
        """By feature the numbers of its splits, and the leaves left past so many of them.

        Those are shaped (splits + 1, trees).
        """
        features, numbers, tree = self._table
        splits, first, last = _first_sides(features)
        offset, one = self._first_leaf[tree[splits]], np.uint64(1)
        first, last = (one << (leaf - offset).astype(np.uint64) for leaf in (first, last))
        masks = ~(last - first).astype(self._all_leaves.dtype)
        result = {}
        order = np.lexsort((tree[splits], numbers[splits]))
        splits, masks = splits[order], masks[order]
        for feature in np.unique(features[splits]).tolist():
            own = np.flatnonzero(features[splits] == feature)
            kept = np.tile(self._all_leaves, (len(own) + 1, 1))
            kept[np.arange(1, len(own) + 1), tree[splits[own]]] = masks[own]
            np.bitwise_and.accumulate(kept, axis=0, out=kept)
            result[feature] = (numbers[splits[own]], kept)
        return result

    def state(self) -> list[str]:
        return [" ".join(_word(*node) for node in tree) for tree in self.nodes]

    @classmethod
    def from_state(cls, state: Any, features: int) -> Trees:
        """Read back; raises `ValueError` with what is wrong."""
        if not isinstance(state, list) or not state or not all(isinstance(t, str) for t in state):
            raise ValueError(f"trees must be a list of texts, got {state!r:.80}.")
        return cls(tuple(_read(text, features) for text in state))


def short_split(sizes: Vector, number: float) -> float:
    """The shortest number that splits the sorted `sizes` as `number` does.

    Between the two neighbours, away from both.
    """
    at = int(np.searchsorted(sizes, number, side="right"))
    low, high = float(sizes[at - 1]), float(sizes[min(at, len(sizes) - 1)])
    for digits in range(1, 16):
        short = float(f"{(low + high) / 2:.{digits}g}")
        if abs(short - (low + high) / 2) <= (high - low) / 4:
            return short
    return number


def in_order(root: int, sides: Callable[[int], tuple[int, int] | None]) -> Iterator[int]:
    """A tree's nodes, a split before its two sides; `sides` gives None for a leaf."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if (both := sides(node)) is not None:
            waiting += reversed(both)


def _first_sides(
    features: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """The places of splits, and the leaves of each one's first side, half-open.

    Of the nodes of trees one behind the other; leaves are counted through all of them.
    """
    is_leaf = features == LEAF
    # A split waits for one side more, a leaf is one. A first side ends where first as many wait as
    # before its split.
    waiting = np.cumsum(np.where(is_leaf, -1, 1))
    leaves = np.cumsum(is_leaf)
    splits = np.flatnonzero(~is_leaf)
    order = np.lexsort((np.arange(len(features)), waiting))
    keys = waiting[order] * len(features) + order
    ends = order[np.searchsorted(keys, (waiting[splits] - 1) * len(features) + splits)]
    return splits, leaves[splits], leaves[ends]


def _grown(text: str, sizes: Sequence[Vector]) -> tuple[Node, ...]:
    """A tree of LightGBM's text; children below 0 are leaves, ~ their number."""
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = [round(float(v), DECIMALS) for v in lines["leaf_value"].split()]
    if len(values) == 1:
        return ((LEAF, values[0]),)
    feature = [int(v) for v in lines["split_feature"].split()]
    number = [float(v) for v in lines["threshold"].split()]
    left, right = ([int(v) for v in lines[f"{side}_child"].split()] for side in ("left", "right"))
    return tuple(
        (LEAF, values[~node])
        if node < 0
        else (feature[node], short_split(sizes[feature[node]], number[node]))
        for node in in_order(0, lambda at: None if at < 0 else (left[at], right[at]))
    )


def _word(feature: int, number: float) -> str:
    text = f"{number:.6g}"
    text = text if float(text) == number else repr(number)
    text = text.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return text if feature == LEAF else f"{feature}:{text}"


def _read(text: str, features: int) -> tuple[Node, ...]:
    """The nodes of a tree's text; raises `ValueError`."""
    nodes: list[Node] = []
    missing = 1
    for word in text.split():
        feature, colon, number = word.rpartition(":")
        try:
            nodes.append((int(feature) if colon else LEAF, float(number)))
        except ValueError as error:
            raise ValueError(f"trees must hold numbers and splits, got {word!r}.") from error
        if colon and not 0 <= nodes[-1][0] < features:
            raise ValueError(f"trees: features must be from 0 to {features - 1}, got {word!r}.")
        if not isfinite(nodes[-1][1]):
            raise ValueError(f"trees must hold finite numbers, got {word!r}.")
        missing += 1 if colon else -1
        if not missing:
            break
    if missing or len(nodes) != len(text.split()):
        raise ValueError(f"trees: every split must have two sides, and nothing more: {text!r:.80}.")
    if len(nodes) > 2 * MOST_LEAVES - 1:
        leaves = len(nodes) // 2 + 1
        raise ValueError(f"trees must have at most {MOST_LEAVES} leaves, got {leaves}.")
    return tuple(nodes)


def _lightgbm() -> Any:
    """LightGBM, imported where it is first needed; it needs a library of the system."""
    try:
        import lightgbm
    except OSError as error:
        raise CodlError(
            f"LightGBM cannot be loaded: {error}. It needs the GNU OpenMP runtime (libgomp1 on "
            "Debian and Ubuntu). The other predictors do without, once they are trained."
        ) from error
    return lightgbm
