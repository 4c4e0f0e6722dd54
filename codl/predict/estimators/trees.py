"""Tree ensembles: a text that a person can read, and fast sums of leaves.

A tree is a line of words, every split before its two sides: `3:40` asks whether feature 3 is at
most 40, and where it is, the first side holds, else the second; a plain number is a leaf. So
`3:40 .1 0:2 .2 .3` has three leaves. LightGBM or scikit-learn grow them. Sums of leaves follow
QuickScorer (Lucchese et al., SIGIR 2015): one bit a leaf, cleared by the splits an item fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.optional import explained
from codl.predict.estimators.json_arrays import Vector, short

#: A split's feature and number, or -1 and a leaf's value.
TreeNode: TypeAlias = tuple[int, float]
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
class TreeArrays:
    """A tree as a library grows it: of every node the feature, the number, and the two children.

    Of a leaf the number is its value, and children are -1; the first node is the root.
    """

    features: NDArray[np.intp]
    numbers: Vector
    left: Sequence[int]
    right: Sequence[int]

    @classmethod
    def of(
        cls,
        features: Sequence[int],
        numbers: Sequence[float],
        left: Sequence[int],
        right: Sequence[int],
    ) -> TreeArrays:
        return cls(np.array(features, np.intp), np.array(numbers, np.float64), left, right)


@dataclass(frozen=True)
class Trees:
    """Trees whose leaves' values are added, each a tuple of nodes in the order of its text."""

    nodes: tuple[tuple[TreeNode, ...], ...]

    @classmethod
    def fit(cls, X: Vector, t: Vector, *, rounds: int, parameters: Mapping[str, Any]) -> Trees:
        """Boosted trees of features (rows, features) and targets (rows), logarithms.

        With LightGBM's `parameters`.
        """
        library = lightgbm()
        own = {**_COMMON, **parameters}
        data = library.Dataset(X, t, params=own)
        # As it is: the copy without training data that LightGBM makes otherwise takes long.
        booster = library.train(own, data, num_boost_round=rounds, keep_training_booster=True)
        text = booster.model_to_string(num_iteration=-1)
        return cls.of_arrays([_grown(part) for part in text.split("\nTree=")[1:]], X)

    @classmethod
    def of_arrays(cls, grown: Sequence[TreeArrays], X: Vector) -> Trees:
        """Trees that were fitted to features (rows, features), their splits in few digits."""
        features = np.concatenate([tree.features for tree in grown])
        numbers = np.concatenate([tree.numbers for tree in grown])
        is_split = np.concatenate([np.array(tree.left) != LEAF for tree in grown])
        numbers[is_split] = short_splits(X, features[is_split], numbers[is_split])
        texts = zip(features.tolist(), numbers.tolist(), is_split.tolist(), strict=True)
        nodes = [(feature if split else LEAF, number) for feature, number, split in texts]
        trees, first = [], 0
        for tree in grown:
            order = in_order(tree.left, tree.right)
            trees.append(tuple(nodes[first + at] for at in order))
            first += len(tree.left)
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
        numbers = chain.from_iterable(chain.from_iterable(self.nodes))
        rows = np.fromiter(numbers, np.float64).reshape(-1, 2)
        tree = np.repeat(np.arange(len(self.nodes)), [len(tree) for tree in self.nodes])
        return rows[:, 0].astype(np.intp), rows[:, 1], tree

    @cached_property
    def _values(self) -> Vector:
        features, numbers, _ = self._table
        result: Vector = numbers[features == LEAF]
        return result

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
        """By feature the numbers of its splits, and the leaves that are left past each of them.

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


def short_splits(X: Vector, features: NDArray[np.intp], numbers: Vector) -> Vector:
    """The shortest numbers that split the rows (rows, features) as `numbers` do.

    Each lies between the two neighbours of its own, away from both.
    """
    low, high = np.empty(len(numbers)), np.empty(len(numbers))
    for feature in np.unique(features).tolist():
        sizes, own = np.unique(X[:, feature]), features == feature
        at = np.searchsorted(sizes, numbers[own], side="right")
        low[own], high[own] = sizes[at - 1], sizes[np.minimum(at, len(sizes) - 1)]
    middle = (low + high) / 2
    shortest: Vector = numbers.copy()
    power = np.floor(np.log10(np.maximum(np.abs(middle), 1e-300)))
    is_open = np.ones(len(numbers), bool)
    for digits in range(1, 16):
        # Powers of ten with whole exponents are exact, so that the nearest number is found.
        places = digits - 1 - power
        up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
        short = np.round(middle * up / down) * down / up
        fits = is_open & (np.abs(short - middle) <= (high - low) / 4)
        shortest[fits] = short[fits]
        is_open &= ~fits
    return shortest


def in_order(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """A tree's nodes, a split before its two sides; children of leaves are -1."""
    waiting, order = [0], []
    while waiting:
        node = waiting.pop()
        order.append(node)
        if left[node] != LEAF:
            waiting += (right[node], left[node])
    return order


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


def _grown(text: str) -> TreeArrays:
    """A tree of LightGBM's text; there, children below 0 are leaves, ~ their number."""
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = [round(float(v), DECIMALS) for v in lines["leaf_value"].split()]
    if len(values) == 1:
        return TreeArrays.of([0], values, [LEAF], [LEAF])
    splits = [int(v) for v in lines["split_feature"].split()]
    numbers = [float(v) for v in lines["threshold"].split()]
    # Leaves stand behind the splits.
    left, right = (
        [at if at >= 0 else len(splits) + ~at for at in map(int, lines[f"{side}_child"].split())]
        for side in ("left", "right")
    )
    none = [LEAF] * len(values)
    return TreeArrays.of(splits + [0] * len(values), numbers + values, left + none, right + none)


def _word(feature: int, number: float) -> str:
    return short(number) if feature == LEAF else f"{feature}:{short(number)}"


def _read(text: str, features: int) -> tuple[TreeNode, ...]:
    """The nodes of a tree's text; raises `ValueError`."""
    nodes: list[TreeNode] = []
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


def lightgbm() -> Any:
    """LightGBM, imported where it is first needed; it needs a library of the system."""
    try:
        with explained():
            import lightgbm as library
    except OSError as error:
        raise CodlError(
            f"LightGBM cannot be loaded: {error}. It needs the GNU OpenMP runtime (libgomp1 on "
            "Debian and Ubuntu). The other predictors do without, once they are trained."
        ) from error
    return library
