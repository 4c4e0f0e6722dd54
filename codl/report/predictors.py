"""A picture of how accurate predictors are."""

from __future__ import annotations

from collections import Counter

from codl.report import charts
from codl.report.charts import Dot
from codl.report.drawing import Data, Key, Picture
from codl.report.results import TrainResult
from codl.report.text_table import digits

#: The one that plans by default, and shapes of the others in their order.
DEFAULT = "codl"
SHAPES = ("up", "down", "diamond", "cross", "star", "square", "bar")


def accuracy(result: TrainResult) -> Picture | None:
    """Rows within 10 % of what was measured, whole op shapes held out, by target.

    Of targets that several predictors know.
    """
    rows = [row for row in result.predictors if row.split == "shape" and row.acc10 is not None]
    counts = Counter(row.target for row in rows)
    rows = [row for row in rows if counts[row.target] > 1]  # others stand in the table
    if not rows:
        return None
    names = list(dict.fromkeys(row.name for row in rows))
    others = [name for name in names if name != DEFAULT]
    keys = {DEFAULT: Key("both", DEFAULT, "circle")} if DEFAULT in names else {}
    keys |= {name: Key("library", name, SHAPES[at % len(SHAPES)]) for at, name in enumerate(others)}

    def dot(name: str, acc10: float, target: str) -> Dot:
        key = keys[name]
        tip = f"{target}: {name} predicts {digits(acc10)} % within 10 %"
        return Dot(acc10, key.class_, tip, key.shape)

    targets = dict.fromkeys(row.target for row in rows)
    by_target = [
        (
            target,
            [dot(r.name, r.acc10 or 0.0, target) for r in rows if r.target == target],
        )
        for target in targets
    ]
    table = tuple((row.target, row.processor, row.name, row.acc10, row.mape) for row in rows)
    return charts.dots(
        "Accuracy of the predictors",
        by_target,
        Data(("target", "processor", "predictor", "within 10 % (%)", "MAPE (%)"), table),
        name="percent of held-out rows within 10 %",
        pitch=0,
        legend=keys.values(),
        note="All rows of an op's shape are held out together.",
        sources=result.sources,
    )
