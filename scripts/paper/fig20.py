"""Fig. 20: data sharing with chains and without, and what a second dimension is worth.

All four are searched as the paper does it (Algorithm 1), by its own predictor, and priced alike:
chains and both dimensions, every op by itself, rows alone, channels alone. With --serial the first
two run in turns, and what they share is measured as well:

    python scripts/paper/fig20.py --soc epyc2
    python scripts/paper/fig20.py --soc host --serial local -o docs/results/paper-fig20-host.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from math import fsum
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from figure import MODELS, PaperFigure, Row, mean, plain, shows_models, table

import codl
from codl.frontend.convert import load_structure
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.records import soc as socs
from codl.ir.records.statistic import level
from codl.lower.lowering import lower
from codl.measure.inputs import random_inputs
from codl.plan.coverage import covered, without
from codl.plan.predicted_plan import make_plan
from codl.plan.price import stage_times, walk
from codl.plan.search import ChainSearch, greedy_chains, single_ops
from codl.plan.strategies import Context
from codl.plan.strategies.planners import PAPER_PREDICTOR
from codl.predict import DEFAULT
from codl.report.text_table import TextTable
from codl.runtime.loaded import sharing_ms

CHAINS, SINGLE, ROWS, CHANNELS = "chains", "no chains", "rows alone", "channels alone"
ROUNDS = 20


def rows(options: argparse.Namespace) -> Iterator[Row]:
    described = socs.load(options.soc)
    context = Context.of(described)
    for model in options.models.split(","):
        network = load_structure(model)
        plans = _plans(network, context)
        run = {} if options.serial is None else _measured(plans, options)
        priced = _replayed_ms if described.source == "replayed" else _priced_ms
        for name, plan in plans.items():
            predicted_ms, sharing = priced(network, plan, context)
            yield {
                "model": model,
                "plan": name,
                "chains": len(plan.chains),
                "predicted_ms": predicted_ms,
                "predicted_sharing_ms": sharing,
                **run.get(name, {"measured_ms": None, "measured_sharing_ms": None}),
                "source": described.source,
            }


def _plans(network: Network, context: Context) -> Mapping[str, Plan]:
    cost = context.cost(PAPER_PREDICTOR)
    both = ChainSearch(network, cost, dims=("H", "OC"))
    searches = {
        ROWS: ChainSearch(network, cost, dims=("H",)),
        CHANNELS: ChainSearch(network, cost, dims=("OC",)),
    }
    return {
        CHAINS: both.plan("codl-paper", greedy_chains(both)),
        SINGLE: both.plan("codl-paper", single_ops(both)),
        **{name: search.plan(name, greedy_chains(search)) for name, search in searches.items()},
    }


def _priced_ms(network: Network, plan: Plan, context: Context) -> tuple[float, float]:
    """What a plan takes, and all of its transfers, whoever waits for them."""
    executable = lower(network, plan, context.soc, context.tuning)
    times = stage_times(executable, context.cost(DEFAULT))
    transfers = [parts for stage in times for parts in stage.transfers_ms.values()]
    sharing_ms = fsum(ms for parts in transfers for ms in parts.values())
    return walk(executable, times).latency_ms, sharing_ms


def _replayed_ms(network: Network, plan: Plan, context: Context) -> tuple[float, float]:
    """What a plan takes, and what of that is sharing: other people's kernels cannot be lowered."""
    cost = covered(context.cost(DEFAULT), network)
    with_ms, without_ms = (
        make_plan(network, each, plan.chains, strategy="", sharing=plan.sharing).predicted_ms or 0
        for each in (cost, without(cost, ways=("to_gpu", "to_cpu")))
    )
    return with_ms, with_ms - without_ms


def _measured(plans: Mapping[str, Plan], options: argparse.Namespace) -> Mapping[str, Row]:
    """The plans with chains and without on this machine, in turns."""
    with TemporaryDirectory() as folder:
        engines = {}
        for name in (CHAINS, SINGLE):
            path = plans[name].save(Path(folder) / f"{name.replace(' ', '_')}.json")
            engines[name] = codl.compile(
                plans[name].model, soc=options.soc, plan=path, check=False, profile=False
            )
            engines[name].feed(random_inputs(engines[name].network))
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for at in range(ROUNDS + 3):
            for name, engine in engines.items():
                start = perf_counter()
                engine.run()
                if at >= 3:
                    seconds[name].append(perf_counter() - start)
        return {
            name: {
                "measured_ms": 1e3 * level(seconds[name]),
                "measured_sharing_ms": median(sharing_ms(engine.profile(1)) for _ in range(5)),
            }
            for name, engine in engines.items()
        }


def content(frame: pd.DataFrame) -> TextTable:
    lines = []
    for soc, of_soc in frame.groupby("soc", sort=False):
        kept = []
        for model, of in of_soc.groupby("model", sort=False):
            by = of.set_index("plan")
            without_ms = by.predicted_sharing_ms[SINGLE]  # none where one processor does it all
            left = by.predicted_sharing_ms[CHAINS] / without_ms if without_ms else 1.0
            dims = min(by.predicted_ms[ROWS], by.predicted_ms[CHANNELS]) / by.predicted_ms[CHAINS]
            measured = by.measured_sharing_ms.astype(float)
            kept.append((left, measured[CHAINS] / measured[SINGLE], dims))
            cells = (
                model,
                f"{by.chains[CHAINS]} and {by.chains[SINGLE]}",
                by.predicted_sharing_ms[SINGLE],
                by.predicted_sharing_ms[CHAINS],
                *_less(left, measured[SINGLE], measured[CHAINS]),
                by.predicted_ms[SINGLE] / by.predicted_ms[CHAINS],
                dims,
            )
            if shows_models(frame, of):
                lines.append((soc, *map(plain, cells)))
        lefts, measured_lefts, dims = (np.array(values) for values in zip(*kept, strict=True))
        less = f"{1 - lefts.mean():.0%}"
        has_runs = not np.isnan(measured_lefts).any()
        shown = f"{1 - measured_lefts.mean():.0%}" if has_runs else ""
        lines.append((soc, "mean", "", "", "", less, "", "", shown, "", mean(dims)))
    heads = ("model", "chains with and without", "sharing without (ms)", "with (ms)", "less")
    more = (
        "measured without (ms)",
        "with (ms)",
        "less",
        "gain of chains",
        "gain of two dimensions",
    )
    return table("Data sharing with chains and without", (*heads, *more), lines)


def _less(left: float, without_ms: float, with_ms: float) -> tuple[Any, ...]:
    if np.isnan(without_ms):
        return f"{1 - left:.0%}", "", "", ""
    return f"{1 - left:.0%}", without_ms, with_ms, f"{1 - with_ms / without_ms:.0%}"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(MODELS), help="by comma")
    parser.add_argument("--serial", choices=["local"], help="run two of the plans as well")


FIGURE = PaperFigure("fig20", "Data sharing with chains and without", rows, content, options)

if __name__ == "__main__":
    FIGURE.main(__doc__)
