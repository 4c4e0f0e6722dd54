"""The `gbdt` predictor: gradient-boosted trees, and fast sums of their leaves.

LightGBM grows the trees. Prediction follows QuickScorer (Lucchese et al., SIGIR
2015): one bit a leaf, cleared by failed splits. Walking down 200 trees takes 2.7 times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.predict.estimators import CodlLinear, LatencyEstimator
from codl.predict.estimators.numerics import RESOLUTION_MS, Vector
from codl.predict.features import FeatureSet

#: By feature: the numbers of its splits, and the leaves that remain beyond each.
Splits: TypeAlias = dict[int, tuple[Vector, NDArray[Any]]]
#: Feature index that marks a leaf.
LEAF = -1
#: Most leaves of a tree: the bits of a machine word.
MOST_LEAVES = 64
#: Decimals of leaf values of boosted trees (logarithms).
LEAF_DECIMALS = 4
#: Items predicted at a time.
CHUNK = 512
#: LightGBM parameters of every fit: one thread, deterministic.
COMMON = {
    "objective": "regression",
    "min_data_in_leaf": 4,
    "min_data_in_bin": 1,
    "feature_pre_filter": False,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "seed": 0,
    "verbosity": -1,
}
#: Boosting rounds and parameters of `gbdt`.
ROUNDS, BOOSTING = 80, {"learning_rate": 0.1, "num_leaves": 8}


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees concatenated in pre-order: each node's feature index and number, shaped (nodes).

    A split is followed by its two sides, the first for feature <= number. A leaf has feature -1,
    and its value as the number. Raises `ValueError` for an incomplete tree or too many leaves.
    """

    features: NDArray[np.intp]
    numbers: Vector

    def __post_init__(self) -> None:
        shape = self.features.shape
        if shape != self.numbers.shape or len(shape) != 1 or not shape[0]:
            raise ValueError("Every node must have a feature and a number")
        waiting, _, counts = self._order
        if waiting[-1] >= 0 or (waiting[:-1] <= waiting[-1]).any() or self.features.min() < LEAF:
            raise ValueError("Every split must have two sides, and nothing more")
        if counts.max() > MOST_LEAVES:
            raise ValueError(f"At most {MOST_LEAVES} leaves a tree, got {counts.max()}")

    @classmethod
    def boost(cls, X: Vector, t: Vector, *, rounds: int, parameters: Mapping[str, Any]) -> Trees:
        """LightGBM's trees for features `X` (rows, features) and log targets `t` (rows).

        Raises `CodlError` if LightGBM cannot be loaded.
        """
        try:
            import lightgbm
        except OSError as error:
            raise CodlError(
                f"LightGBM cannot be loaded: {error}. It needs the GNU OpenMP runtime (libgomp1 on "
                "Debian and Ubuntu). The other predictors do without, once they are trained."
            ) from error
        settings = COMMON | dict(parameters)
        data = lightgbm.Dataset(X, t, params=settings)
        # `keep_training_booster` avoids LightGBM's slow copy without training data.
        booster = lightgbm.train(settings, data, rounds, keep_training_booster=True)
        trees = booster.model_to_string(num_iteration=-1).split("\nTree=")[1:]
        nodes = [node for tree in trees for node in _nodes(tree)]
        features, numbers = (np.array(column) for column in zip(*nodes, strict=True))
        splits = features != LEAF
        numbers[splits] = midway(X, features[splits], numbers[splits])
        return cls(features, numbers)

    def __len__(self) -> int:
        return len(self._order[2])

    def predict(self, X: Vector) -> Vector:
        """Sums (items) of each tree's exit leaf: the first leaf that no split rules out.

        A split that an item exceeds rules out the leaves of its first side. One binary search for
        each feature finds all exceeded splits.
        """
        values, first_leaf, all_leaves, splits = self._scorer
        total = np.empty(len(X))
        for at in range(0, len(X), CHUNK):
            part = X[at : at + CHUNK]
            left = np.tile(all_leaves, (len(part), 1))
            for feature, (numbers, kept) in splits.items():
                left &= kept[np.searchsorted(numbers, part[:, feature])]
            lowest = (left & (~left + left.dtype.type(1))).astype(np.float64)
            places = np.frexp(lowest)[1] - 1 + first_leaf
            total[at : at + CHUNK] = values[places].sum(1)
        return total

    @cached_property
    def _order(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Open sides after each node, each node's tree, and the number of each tree's leaves.

        Open sides have a new minimum at each tree's last node.
        """
        is_leaf = self.features == LEAF
        waiting = np.cumsum(np.where(is_leaf, -1, 1))
        least = np.minimum.accumulate(np.minimum(waiting, 0))
        tree = -np.concatenate([[0], least[:-1]])
        return waiting, tree, np.bincount(tree[is_leaf])

    @cached_property
    def _scorer(self) -> tuple[Vector, NDArray[np.intp], NDArray[Any], Splits]:
        """Leaves' values, each tree's first leaf, a set of all its leaves, and the splits.

        A set has a bit for every leaf, in the narrowest word type that every tree fits in. Splits
        are by feature: sorted numbers, and sets of remaining leaves, shaped (splits + 1, trees);
        row i applies to items beyond i splits.
        """
        (waiting, tree, counts), is_leaf = self._order, self.features == LEAF
        first_leaf = np.cumsum(counts) - counts
        bits = next(b for b in (8, 16, 32, 64) if b >= counts.max())
        all_leaves = np.full(len(self), (1 << bits) - 1, f"uint{bits}")
        splits = np.flatnonzero(~is_leaf)
        # A split's first side ends where the count of open sides first returns to its start.
        order = np.lexsort((np.arange(len(self.features)), waiting))
        keys = waiting[order] * len(order) + order
        ends = order[np.searchsorted(keys, (waiting[splits] - 1) * len(order) + splits)]
        leaves = np.cumsum(is_leaf)
        places = (leaves[at] - first_leaf[tree[splits]] for at in (splits, ends))
        first, last = (np.uint64(1) << place.astype(np.uint64) for place in places)
        masks = ~(last - first).astype(all_leaves.dtype)
        by_feature: Splits = {}
        order = np.lexsort((tree[splits], self.numbers[splits]))
        splits, masks = splits[order], masks[order]
        for feature in np.unique(self.features[splits]).tolist():
            at = np.flatnonzero(self.features[splits] == feature)
            kept = np.tile(all_leaves, (len(at) + 1, 1))
            kept[np.arange(1, len(at) + 1), tree[splits[at]]] = masks[at]
            np.bitwise_and.accumulate(kept, axis=0, out=kept)
            by_feature[feature] = (self.numbers[splits[at]], kept)
        return self.numbers[is_leaf], first_leaf, all_leaves, by_feature


def midway(X: Vector, features: NDArray[np.intp], numbers: Vector) -> Vector:
    """Numbers with the fewest digits that split `X` (rows, features) as `numbers` do.

    Each lies near the middle between its neighbouring values. LightGBM splits beside 0 at 0,
    which would put the typical run's fractional columns always on one side.
    """
    low, high = np.empty(len(numbers)), np.empty(len(numbers))
    for feature in np.unique(features).tolist():
        sizes, at_feature = np.unique(X[:, feature]), features == feature
        at = np.searchsorted(sizes, numbers[at_feature], side="right")
        low[at_feature], high[at_feature] = sizes[at - 1], sizes[np.minimum(at, len(sizes) - 1)]
    middle = (low + high) / 2
    shortest: Vector = numbers.copy()
    power = np.floor(np.log10(np.maximum(np.abs(middle), 1e-300)))
    is_open = np.ones(len(numbers), bool)
    for digits in range(1, 16):
        # Powers of ten with non-negative exponents are exact, so rounding is to the nearest.
        places = digits - 1 - power
        up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
        short = np.round(middle * up / down) * down / up
        fits = is_open & (np.abs(short - middle) <= (high - low) / 4)
        shortest[fits] = short[fits]
        is_open &= ~fits
    return shortest


def _nodes(text: str) -> list[tuple[int, float]]:
    """The (feature, number) nodes of a tree in LightGBM's model text, in pre-order."""
    words = {key: words.split() for key, _, words in (x.partition("=") for x in text.splitlines())}

    def below(at: int) -> list[tuple[int, float]]:
        if at < 0:  # the leaf ~at
            return [(LEAF, round(float(words["leaf_value"][~at]), LEAF_DECIMALS))]
        first, second = (below(int(words[side][at])) for side in ("left_child", "right_child"))
        split = int(words["split_feature"][at]), float(words["threshold"][at])
        return [split, *first, *second]

    return below(0 if words["num_leaves"] != ["1"] else ~0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gbdt(LatencyEstimator):
    """Gradient-boosted trees (LightGBM) that correct the linear costs of `codl_linear`.

    The trees are fitted to log(latency / base); extrapolation beyond the largest measured op is
    the base's.
    """

    name: ClassVar[str] = "gbdt"
    feature_set: ClassVar[FeatureSet] = "variant"
    base: CodlLinear
    trees: Trees

    @classmethod
    def _fit(cls, X: Vector, y: Vector) -> Gbdt:
        base = CodlLinear._fit(X, y)
        target = np.log(np.maximum(y, RESOLUTION_MS) / base.predict(X))
        return cls(base=base, trees=Trees.boost(X, target, rounds=ROUNDS, parameters=BOOSTING))

    def _predict(self, X: Vector) -> Vector:
        return self.base.predict(X) * np.exp(self.trees.predict(X))
