"""What co-execution costs beside its latency: profiling, training, planning, memory and energy.

    codl collect --soc host --serial local --budget 10m --json > collect.json
    codl train --soc host --json > train.json
    codl eval --soc host --serial local --models yolov2,vgg16 -o eval.json
    python scripts/paper/costs.py --soc host --collect collect.json --train train.json \\
        --eval eval.json

Each file may be left out, and its lines then are not there. Memory is of tensors and weights on
both sides, over the better processor alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pandas as pd
from figure import MODELS, PaperFigure, Row, mean, table

import codl
from codl import files
from codl.plan.strategies.model_search import FoundPlan
from codl.report.text_table import TextTable, digits


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for what, value in _costs(options):
        yield {"what": what, "value": value, "source": "measured"}


def _costs(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    if options.collect:
        done = files.read_json(options.collect)
        yield "measurements of a SoC", f"{done['rows']} in {done['seconds'] / 60:.0f} minutes"
    if options.train:
        done = files.read_json(options.train)
        yield "training of all predictors", f"{digits(done['train_s'])} s"
        used = [row for row in done["predictors"] if row["name"] == "codl"]
        sizes = {row["target"]: row["bytes"] for row in used}
        yield "a trained predictor, for a target", f"{digits(median(sizes.values()))} bytes"
        each = {row["target"]: row["us_per_prediction"] for row in used}
        yield "a prediction, of many at once", f"{digits(median(each.values()))} us"
    times = [_search_ms(model, options.soc) for model in options.models.split(",")]
    yield "a search by predictions", f"{min(times):.0f} to {max(times):.0f} ms"
    if options.eval:
        frame = codl.results(*options.eval)
        for what, column in (("memory", "memory_bytes"), ("energy of an inference", "energy_mj")):
            if ratios := _over_single(frame, column):
                listed = " to ".join(digits(f(ratios)) for f in (min, max))
                yield f"{what}, over the faster processor", f"{digits(mean(ratios))} ({listed})"


def _search_ms(model: str, soc: str) -> float:
    found = codl.search(model, soc=soc)
    assert isinstance(found, FoundPlan)
    return found.search_ms


def _over_single(frame: pd.DataFrame, column: str) -> list[float]:
    """`codl` over the faster processor, by model; none where there are no values."""
    parts = [name for name in frame if name == column or str(name).startswith(f"{column}.")]
    ratios = []
    for _, of in frame.assign(total=frame[parts].sum(axis=1)).groupby("model", sort=False):
        by = of.set_index("strategy")
        if {"codl", "cpu", "gpu"} <= set(by.index) and (by.total[["codl", "cpu", "gpu"]] > 0).all():
            faster = by["latency_ms.p20"][["cpu", "gpu"]].idxmin()
            ratios.append(float(by.total["codl"] / by.total[faster]))
    return ratios


def content(frame: pd.DataFrame) -> TextTable:
    lines = [(row.soc, row.what, row.value) for row in frame.itertuples()]
    return table("Costs", ("what", "how much"), lines)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(MODELS), help="to search, by comma")
    parser.add_argument("--collect", type=Path, help="what `codl collect --json` printed")
    parser.add_argument("--train", type=Path, help="what `codl train --json` printed")
    parser.add_argument("--eval", type=Path, nargs="+", help="files of `codl eval -o`")


FIGURE = PaperFigure("costs", "Costs beside latency", rows, content, options)

if __name__ == "__main__":
    FIGURE.main(__doc__)
