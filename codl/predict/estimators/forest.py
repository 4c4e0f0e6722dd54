"""A random forest, as nn-Meter has it: bagged regression trees on a variant's features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from codl.predict.estimators.arrays import rounded
from codl.predict.estimators.base import Groups, LatencyEstimator, State, Vector
from codl.predict.estimators.trees import LEAF, Node, Trees, in_order, short_split
from codl.predict.features import FeatureSet

#: Significant digits of latencies at leaves.
DIGITS = 4


class _Tree(Protocol):
    """What is used of a scikit-learn tree; children are -1 at a leaf."""

    children_left: NDArray[np.intp]
    children_right: NDArray[np.intp]
    feature: NDArray[np.intp]
    threshold: Vector
    value: Vector


class RandomForest(LatencyEstimator):
    """The mean of trees that were each fitted to rows drawn with replacement."""

    name: ClassVar[str] = "random_forest"
    feature_set: ClassVar[FeatureSet] = "variant"
    trees_: Trees

    def __init__(self, *, trees: int = 16, leaves: int = 32) -> None:
        self.trees = trees
        self.leaves = leaves

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        from sklearn.ensemble import RandomForestRegressor

        forest = RandomForestRegressor(
            self.trees, max_leaf_nodes=self.leaves, max_features=0.7, random_state=0, n_jobs=1
        ).fit(X, y)
        sizes = [np.unique(column) for column in X.T]
        self.trees_ = Trees(tuple(_nodes(tree.tree_, sizes) for tree in forest.estimators_))

    def _predict(self, X: Vector) -> Vector:
        return self.trees_.predict(X) / len(self.trees_.nodes)

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        return {"trees": self.trees_.state()}

    def _read(self, state: State, names: Sequence[str]) -> None:
        self.trees_ = Trees.from_state(state.get("trees"), len(names))


def _nodes(tree: _Tree, sizes: Sequence[Vector]) -> tuple[Node, ...]:
    def sides(node: int) -> tuple[int, int] | None:
        left, right = int(tree.children_left[node]), int(tree.children_right[node])
        return None if left < 0 else (left, right)

    values = rounded(tree.value.ravel(), DIGITS).tolist()
    found: list[Node] = []
    for node in in_order(0, sides):
        feature = int(tree.feature[node])
        is_leaf = sides(node) is None
        number = values[node] if is_leaf else float(tree.threshold[node])
        found.append((LEAF, number) if is_leaf else (feature, short_split(sizes[feature], number)))
    return tuple(found)
