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
from typing import Any

import pandas as pd
from figure import COLOURS, MODELS, PaperFigure, Row, plain, table

import codl
from codl.errors import CodlError
from codl.frontend.convert import load_structure
from codl.ir.plan import Plan, read_plan
from codl.report.load import load_result
from codl.report.results import EvalResult
from codl.report.text_table import TextTable

STRATEGIES = ("codl-paper", "codl")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for plan in _plans(options):
        network = load_structure(plan.model)
        network, plan = plan.applied(network)
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


def draw(figure: Any, frame: pd.DataFrame) -> None:
    strips = list(frame.groupby(["soc", "model", "strategy"], sort=False))
    for axes, (names, of) in zip(
        figure.subplots(len(strips), 1, squeeze=False)[:, 0], strips, strict=True
    ):
        chains = of.reset_index(drop=True).reset_index().groupby("chain", sort=False)
        for _, chain in chains:
            first, count, ratio = chain["index"].iloc[0], len(chain), chain.gpu_ratio.iloc[0]
            colour = COLOURS[chain.dim.iloc[0]] if 0 < ratio < 1 else COLOURS["ideal"]
            box = {"align": "edge", "edgecolor": "white", "linewidth": 0.8}
            axes.bar(first, ratio, count, color=colour, **box)
            axes.bar(first, 1 - ratio, count, bottom=ratio, color=colour, alpha=0.25, **box)
        axes.set(xlim=(0, len(of)), ylim=(0, 1), yticks=[], xticks=[])
        axes.set_title(" ".join((names[1], names[2], f"({names[0]})")), loc="left", fontsize=8)
    _legend(figure)


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    looks = {"cut along H": "H", "along OC": "OC", "on one processor": "ideal"}
    handles = [Patch(color=COLOURS[name], label=label) for label, name in looks.items()]
    pale = Patch(color=COLOURS["ideal"], alpha=0.25, label="pale: the CPU's share")
    figure.legend(handles=[*handles, pale], loc="outside lower center", ncols=4, frameon=False)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(MODELS), help="by comma")
    parser.add_argument("--eval", type=Path, nargs="+", help="plans of files of `codl eval -o`")


FIGURE = PaperFigure(
    name="fig17",
    title="The layers of a network by dimension, ratio and chain",
    rows=rows,
    table=content,
    draw=draw,
    options=options,
    height=lambda frame: 0.4 + 0.65 * len(frame.groupby(["soc", "model", "strategy"])),
)

if __name__ == "__main__":
    FIGURE.main(__doc__)
