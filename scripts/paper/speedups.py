"""End-to-end latency of the paper's models, speedups over its baselines, energy and memory.

From files of `codl eval -o`, or of scripts/bench/stage.py: a later file's rows of a model take the
place of an earlier one's. Latencies that a run itself doubts are marked, and in no mean. Of a SoC
that is replayed from other people's measurements, plans are searched and priced, all by the same
predictor:

    codl eval --soc host --serial local --models yolov2,vgg16 -o eval.json
    python scripts/paper/speedups.py --soc host --eval eval.json
    python scripts/paper/speedups.py --soc epyc2 --models vgg16
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from figure import MODELS, PaperFigure, Row, mean, plain, shows_models, table

import codl
from codl.errors import CodlError
from codl.frontend.convert import load_structure
from codl.ir.records import soc as socs
from codl.plan.coverage import covered
from codl.plan.predicted_plan import make_plan
from codl.plan.strategies import Context
from codl.plan.strategies.model_search import FoundPlan
from codl.predict import DEFAULT
from codl.report.results import EvalResult
from codl.report.text_table import TextTable, digits

sys.path.append(str(Path(__file__).parents[1]))
from curves import CurveResult, load_curve

STRATEGIES = ("cpu", "gpu", "gpu-image", "mulayer", "codl-paper", "codl", "ideal")
#: Published means over the five models: Snapdragon 855, 865 and 888, and Kirin 990.
PUBLISHED = {"mulayer": 3.43, "cpu": 2.08, "gpu": 1.56}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    models = options.models.split(",")
    if options.eval is None:
        yield from _predicted(options.soc, models)
        return
    results = [load_curve(path) for path in options.eval]
    chosen = [
        each
        for result in results
        for each in (result.evaluations if isinstance(result, CurveResult) else (result,))
        if isinstance(each, EvalResult)
    ]
    of_soc = [each for each in chosen if each.soc.name == options.soc]
    if not of_soc:
        names = ", ".join(each.soc.name for each in chosen) or "none"
        raise CodlError(f"--eval has no evaluation of {options.soc!r}, but of {names}.")
    options.described = of_soc[-1].soc  # whether or not there is a SoC file of it here
    last = {model: each for each in of_soc for model in each.models}
    for model, evaluation in last.items():
        for row in evaluation.of(model):
            if row.latency_ms and row.model in models and row.strategy in STRATEGIES:
                memory = row.memory_bytes or {}
                yield {
                    "model": row.model,
                    "strategy": row.strategy,
                    "latency_ms": row.latency_ms.level,
                    "predicted_ms": row.predicted_ms,
                    "energy_mj": row.energy_mj,
                    "memory_bytes": sum(memory.values()) or None,
                    "doubts": "; ".join(row.doubts),
                    "source": row.source,
                }


def _predicted(soc: str, models: Sequence[str]) -> Iterator[Row]:
    """Every strategy's plan, priced by the default predictor."""
    described = socs.load(soc)
    cost = Context.of(described).cost(DEFAULT)
    for model in models:
        network = load_structure(model)
        for strategy in ("cpu", "gpu", "mulayer", "codl-paper", "codl"):
            found = codl.search(model, soc=soc, strategy=strategy)
            assert isinstance(found, FoundPlan)
            plan, sharing = found.plan, found.plan.sharing
            known = covered(cost, network)
            plan = make_plan(network, known, plan.chains, strategy=strategy, sharing=sharing)
            yield {
                "model": model,
                "strategy": strategy,
                "latency_ms": plan.predicted_ms,
                "predicted_ms": plan.predicted_ms,
                "energy_mj": None,
                "memory_bytes": None,
                "doubts": "",
                "source": f"predicted, {described.source}",
            }


def content(frame: pd.DataFrame) -> TextTable:
    lines = []
    names = [name for name in STRATEGIES if name in set(frame.strategy)]
    for soc, of_soc in frame.groupby("soc", sort=False):
        source = ", ".join(dict.fromkeys(of_soc[of_soc.strategy != "ideal"].source))
        gains: dict[str, list[float]] = {name: [] for name in (*PUBLISHED, "ideal")}
        for model, of in of_soc.groupby("model", sort=False):
            ms, doubts = of.set_index("strategy").latency_ms, of.set_index("strategy").doubts
            over = {name: ms[name] / ms["codl"] for name in gains if name in ms}
            for name, gain in over.items():
                if not doubts[name] and not doubts["codl"]:
                    gains[name].append(gain)
            shown = (
                f"{digits(ms[x])}{' ?' if doubts[x] else ''}" if x in ms else "" for x in names
            )
            if shows_models(frame, of):
                gained = (plain(over.get(x, "")) for x in gains)
                lines.append((f"{soc} ({source})", model, *shown, *gained))
        means = [mean(values) if values else "" for values in gains.values()]
        lines.append((f"{soc} ({source})", "geometric mean", *[""] * len(names), *means))
    heads = ("model", *(f"`{name}` (ms)" for name in names))
    more = ("over muLayer", "over the CPU", "over the GPU", "ideal over `codl`")
    return table("Latency and speedup", (*heads, *more), lines)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(MODELS), help="by comma")
    parser.add_argument("--eval", type=Path, nargs="+", help="of `codl eval -o`, or of stage.py")


FIGURE = PaperFigure("speedups", "Speedup over the CPU by strategy", rows, content, options)

if __name__ == "__main__":
    FIGURE.main(__doc__)
