"""A random forest, as nn-Meter has it: bagged regression trees on a variant's features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn import config_context

from codl.predict.estimators.base import Groups, LatencyEstimator, State, Vector
from codl.predict.estimators.json_arrays import rounded
from codl.predict.estimators.trees import LEAF, TreeArrays, Trees
from codl.predict.features import FeatureSet

#: Significant digits of latencies at leaves; their mean has more.
DIGITS = 3
SEEDS = 2**31 - 1


class RandomForest(LatencyEstimator):
    """The mean of trees that were each fitted to rows drawn with replacement."""

    name: ClassVar[str] = "random_forest"
    feature_set: ClassVar[FeatureSet] = "variant"
    takes_terms: ClassVar[bool] = True
    trees_: Trees

    def __init__(self, *, trees: int = 16, leaves: int = 32) -> None:
        self.trees = trees
        self.leaves = leaves

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        """As scikit-learn's forest draws rows and seeds; that takes longer than the trees do."""
        rows, seeds = X.astype(np.float32), np.random.RandomState(0)
        with config_context(assume_finite=True, skip_parameter_validation=True):
            grown = [self._grown(rows, y, seeds.randint(SEEDS)) for _ in range(self.trees)]
        self.trees_ = Trees.of_arrays(grown, X)

    def _grown(self, rows: Any, y: Vector, seed: int) -> TreeArrays:
        from sklearn.tree import DecisionTreeRegressor

        drawn = np.random.RandomState(seed).randint(0, len(y), len(y), dtype=np.int32)
        counts = np.bincount(drawn, minlength=len(y)).astype(np.float64)
        tree = DecisionTreeRegressor(
            max_leaf_nodes=self.leaves, max_features=0.7, random_state=seed
        )
        grown = tree.fit(rows, y, sample_weight=counts, check_input=False).tree_
        left, right = grown.children_left, grown.children_right
        is_leaf = left == LEAF
        numbers = grown.threshold.copy()
        numbers[is_leaf] = rounded(grown.value.ravel()[is_leaf], DIGITS)
        features = np.where(is_leaf, 0, grown.feature)
        return TreeArrays(features, numbers, left.tolist(), right.tolist())

    def _predict(self, X: Vector) -> Vector:
        return self.trees_.predict(X) / len(self.trees_.nodes)

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        return {"trees": self.trees_.state()}

    def _read(self, state: State, names: Sequence[str]) -> None:
        self.trees_ = Trees.from_state(state.get("trees"), len(names))
