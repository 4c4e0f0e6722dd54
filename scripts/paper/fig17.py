"""Fig. 17 and 19: the layers of a network as a strip, by dimension, ratio and chain.

Plans are searched by predictions; with --eval they are those that an evaluation ran:

    python scripts/paper/fig17.py --soc epyc2 --models vgg16
    codl eval --soc host --serial local --models yolov2,vgg16 -o eval.json
    python scripts/paper/fig17.py --soc host --eval eval.json -o docs/results/paper-fig17-host.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
from figure import MODELS, PaperFigure, Row, plain, table

import codl
from codl.errors import CodlError
from codl.frontend.convert import load_structure
from codl.ir.plan import Plan, read_plan
from codl.report.results import EvalResult, load_result
from codl.report.text_table import TextTable

STRATEGIES = ("codl-paper", "codl")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for plan in _plans(options):
        network = load_structure(plan.model)
        for number, (chain, layers) in enumerate(plan.layers(network)):
            for layer in layers:
                yield {
                    "model": plan.model,
                    "strategy": plan.strategy,
                    "op": layer.name,
                    "kind": layer.op.kind,
                    "flops": layer.op.flops,
                    "chain": number,
                    "dim": chain.dim,
                    "gpu_ratio": chain.gpu_ratio,
                    "source": "measured" if options.eval else "predicted",
                }


def _plans(options: argparse.Namespace) -> Iterator[Plan]:
    models = options.models.split(",")
    if options.eval is None:
        for model in models:
            for strategy in STRATEGIES:
                yield codl.search(model, soc=options.soc, strategy=strategy).plan
        return
    for path in options.eval:
        result = load_result(path)
        if not isinstance(result, EvalResult):
            raise CodlError(f"{path} is of `codl {result.command}`, not of `codl eval`.")
        for row in result.rows:
            if row.strategy in STRATEGIES and row.model in models and row.plan in result.plans:
                plan = read_plan(dict(result.plans[row.plan]), path)
                yield replace(plan, strategy=row.strategy)


def content(frame: pd.DataFrame) -> TextTable:
    lines = []
    for (soc, model, strategy), of in frame.groupby(["soc", "model", "strategy"], sort=False):
        split = of[(of.gpu_ratio > 0) & (of.gpu_ratio < 1)]
        sizes = of.groupby("chain").op.transform("size")
        heavy = split[split.kind.isin(["conv2d", "fc", "conv_transpose2d"])]
        cells = (
            model,
            f"`{strategy}`",
            len(of),
            of.chain.nunique(),
            f"{(sizes > 1).mean():.0%}",
            f"{len(split) / len(of):.0%}",
            *(f"{(heavy.dim == dim).mean():.0%}" if len(heavy) else "" for dim in ("H", "OC")),
            (of.gpu_ratio * of.flops).sum() / of.flops.sum(),
        )
        lines.append((soc, *map(plain, cells)))
    heads = ("model", "strategy", "ops", "chains", "chained ops", "split ops")
    more = ("convolutions along H", "along OC", "the GPU's share of FLOPs")
    return table("Layers by dimension and chain", (*heads, *more), lines)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(MODELS), help="by comma")
    parser.add_argument("--eval", type=Path, nargs="+", help="plans of files of `codl eval -o`")


FIGURE = PaperFigure("fig17", "Layers by dimension and chain", rows, content, options)

if __name__ == "__main__":
    FIGURE.main(__doc__)
