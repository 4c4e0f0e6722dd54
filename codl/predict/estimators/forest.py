"""A random forest, as nn-Meter has it: bagged regression trees on a variant's features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from codl.predict.estimators.arrays import from_rows, rounded, to_rows
from codl.predict.estimators.base import Groups, LatencyEstimator, State, Vector
from codl.predict.features import FeatureSet

LEAF = -1


class _Tree(Protocol):
    """What is used of a scikit-learn tree; children are -1 at a leaf."""

    children_left: NDArray[np.intp]
    children_right: NDArray[np.intp]
    feature: NDArray[np.intp]
    threshold: Vector
    value: Vector


class RandomForest(LatencyEstimator):
    """The mean of trees that were each fitted to rows drawn with replacement.

    All trees' nodes stand in one array, a parent before its children and its left child next to it:
    the feature (-1 at a leaf), the threshold or at a leaf the latency, and the right child.
    """

    name: ClassVar[str] = "random_forest"
    feature_set: ClassVar[FeatureSet] = "variant"
    feature_: NDArray[np.intp]
    number_: Vector
    right_: NDArray[np.intp]
    roots_: NDArray[np.intp]

    def __init__(self, *, trees: int = 16, leaves: int = 32) -> None:
        self.trees = trees
        self.leaves = leaves

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        from sklearn.ensemble import RandomForestRegressor

        forest = RandomForestRegressor(
            self.trees, max_leaf_nodes=self.leaves, max_features=0.7, random_state=0, n_jobs=1
        ).fit(X, y)
        nodes: list[tuple[int, float, int]] = []
        roots = []
        for tree in forest.estimators_:
            roots.append(len(nodes))
            _append(nodes, tree.tree_, 0)
        self._set(nodes, roots)

    def _set(self, nodes: Sequence[tuple[int, float, int]], roots: Sequence[int]) -> None:
        self.feature_ = np.array([node[0] for node in nodes], np.intp)
        self.number_ = rounded([node[1] for node in nodes])
        self.right_ = np.array([node[2] for node in nodes], np.intp)
        self.roots_ = np.array(roots, np.intp)

    def _predict(self, X: Vector) -> Vector:
        at = np.repeat(self.roots_[None], len(X), axis=0)
        rows = np.arange(len(X))[:, None]
        while True:
            feature = self.feature_[at]
            inside = feature != LEAF
            if not inside.any():
                result: Vector = self.number_[at].mean(1)
                return result
            goes_left = X[rows, np.maximum(feature, 0)] <= self.number_[at]
            at = np.where(inside, np.where(goes_left, at + 1, self.right_[at]), at)

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        """A text for each tree: feature, number and right child of its nodes, one after another."""
        ends = [*self.roots_[1:].tolist(), len(self.feature_)]
        table = np.column_stack([self.feature_, self.number_, self.right_])
        table[:, 2] -= np.repeat(self.roots_, np.diff([*self.roots_, len(table)]))
        table[self.feature_ == LEAF, 2] = 0
        trees = [to_rows(table[a:b].ravel())[0] for a, b in zip(self.roots_, ends, strict=True)]
        return {"trees": trees}

    def _read(self, state: State, names: Sequence[str]) -> None:
        texts = state.get("trees")
        if not isinstance(texts, list) or not texts:
            raise ValueError(f"trees must be a list of trees, got {texts!r:.80}.")
        nodes: list[tuple[int, float, int]] = []
        roots = []
        for text in texts:
            size = len(text.split()) if isinstance(text, str) else 0
            values = from_rows({"trees": [text]}, "trees", rows=1, columns=size).reshape(-1)
            if not size or size % 3:
                raise ValueError(f"trees must have 3 numbers for each node, got {size}.")
            tree = values.reshape(-1, 3)
            _check(tree, len(names))
            roots.append(len(nodes))
            nodes += [(int(f), n, int(r) + roots[-1]) for f, n, r in tree.tolist()]
        self._set(nodes, roots)


def _append(nodes: list[tuple[int, float, int]], tree: _Tree, node: int) -> None:
    """Add a node and all below it, the left side first."""
    at = len(nodes)
    if tree.children_left[node] < 0:
        nodes.append((LEAF, float(tree.value[node].item()), at))
        return
    nodes.append((int(tree.feature[node]), float(tree.threshold[node]), at))
    _append(nodes, tree, int(tree.children_left[node]))
    nodes[at] = (*nodes[at][:2], len(nodes))
    _append(nodes, tree, int(tree.children_right[node]))


def _check(tree: Vector, features: int) -> None:
    """Refuse what would read outside an array, or never come to a leaf."""
    feature, right, at = tree[:, 0], tree[:, 2], np.arange(len(tree))
    if (tree[:, [0, 2]] % 1).any() or not ((feature >= LEAF) & (feature < features)).all():
        raise ValueError(f"trees: features must be whole numbers from -1 to {features - 1}.")
    inside = feature != LEAF
    if not ((right > at + 1) & (right < len(tree)))[inside].all():
        raise ValueError("trees: a right child must come after its left one.")
