"""The predictors' accuracy: the share of rows within 10 % of what was measured.

Rows are held out one by one, as the paper does it, and by whole shapes of ops, as docs count:

    codl train --soc host --json > train.json
    python scripts/paper/predictors.py --soc host --train train.json

Datasets of other people's phones are replayed: `codl dataset import` makes the SoC.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from figure import PaperFigure, Row, table

from codl.errors import CodlError
from codl.ir.records import soc as socs
from codl.report.results import TrainResult, load_result
from codl.report.text_table import TextTable

#: In the order of the table.
NAMES = ("flops_linear", "codl_linear", "gbdt", "codl")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if options.train is None:
        raise CodlError(
            "--train wants a file that `codl train --soc "
            f"{options.soc} --json > train.json` writes; none was named."
        )
    result = load_result(options.train)
    if not isinstance(result, TrainResult):
        raise CodlError(f"{options.train} is of `codl {result.command}`, not of `codl train`.")
    source = socs.load(options.soc).source
    for row in result.predictors:
        is_kernel = row.processor and "mulayer" not in row.target and "threads" not in row.target
        if is_kernel and row.name in NAMES:
            yield {
                "predictor": row.name,
                "target": row.target,
                "processor": row.processor,
                "split": row.split,
                "rows": row.n_test,
                "acc10": row.acc10,
                "bytes": row.bytes,
                "us": row.us_per_prediction,
                "train_s": result.train_s,
                "source": source,
            }


def accuracy(of: pd.DataFrame) -> float | None:
    """Of several targets, each with the weight of its rows."""
    of = of.dropna(subset=["acc10"])
    return float(np.average(of.acc10, weights=of.rows)) if of.rows.sum() else None


def content(frame: pd.DataFrame) -> TextTable:
    lines = []
    for (soc, source), of_soc in frame.groupby(["soc", "source"], sort=False):
        for name in NAMES:
            of = of_soc[of_soc.predictor == name]
            if of.empty:
                continue
            cells: list[Any] = [f"`{name}`"]
            for split in ("row", "shape"):
                for side in ("cpu", "gpu"):
                    value = accuracy(of[(of.split == split) & (of.processor == side)])
                    cells.append("" if value is None else f"{value:.1f}")
            lines.append((f"{soc} ({source})", *cells))
    heads = ("predictor", "CPU, rows held out (%)", "GPU, rows (%)", "CPU, shapes (%)")
    return table("Rows within 10 %", (*heads, "GPU, shapes (%)"), lines)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--train", type=Path, help="a file of `codl train --json`")


FIGURE = PaperFigure("predictors", "Accuracy of the predictors", rows, content, options)

if __name__ == "__main__":
    FIGURE.main(__doc__)
