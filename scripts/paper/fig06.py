"""Fig. 6: the latency of a convolution goes up in steps as it has more output channels.

Each number of channels is an op of its own, measured whole. To measure them, write them to a file,
and run the command that is printed; without that there are predictions alone:

    python scripts/paper/fig06.py --soc host --write-ops ops.csv
    python scripts/paper/fig06.py --soc host -o docs/results/paper-fig06-host.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from fig05 import measured_ms
from figure import PaperFigure, Row, plain, table, write_ops

from codl.ir import Op, parse, to_text
from codl.ir.records import soc as socs
from codl.ir.types import PROCESSORS
from codl.plan.coverage import without
from codl.plan.strategies import Context
from codl.predict import DEFAULT
from codl.predict.in_network_cost import NOTHING
from codl.report.text_table import TextTable

OP = "conv2d in=1x64x28x28 oc={channels} kernel=3x3 pad=1"
CHANNELS, STEP = 160, 4
#: Less than this is no growth.
FLAT = 0.02


def ops(options: argparse.Namespace) -> list[Op]:
    counts = range(options.step, options.channels + 1, options.step)
    return [parse(options.op.format(channels=count)) for count in counts]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    every = ops(options)
    if options.write_ops:
        write_ops(options.write_ops, every, options.soc, "--shares 1")
    described = socs.load(options.soc)
    cost = without(Context.of(described).cost(DEFAULT), inside=asdict(NOTHING))
    measured = measured_ms(options.soc)
    for side in PROCESSORS:
        for op, ms in zip(every, cost.fastest_ms(every, side), strict=True):
            yield {
                "op": options.op,
                "channels": op.output.c,
                "processor": side,
                "measured_ms": measured.get((to_text(op), side)),
                "predicted_ms": ms,
                "source": described.source,
            }


def content(frame: pd.DataFrame) -> TextTable:
    lines = []
    for (soc, side), of in frame.groupby(["soc", "processor"], sort=False):
        is_measured = of.measured_ms.notna().all()
        ms = (of.measured_ms if is_measured else of.predicted_ms).to_numpy()
        growth = ms[1:] / ms[:-1] - 1
        per_channel = ms / of.channels.to_numpy()
        cells = (
            side,
            "measured" if is_measured else "predicted",
            ms[0],
            ms[-1],
            f"{(growth < FLAT).mean():.0%}",
            f"{growth[len(growth) // 4 :].max():.0%}",
            per_channel[len(ms) // 4 :].max() / per_channel[len(ms) // 4 :].min(),
        )
        lines.append((soc, *map(plain, cells)))
    heads = (
        "processor",
        "latencies",
        "fewest channels (ms)",
        "most (ms)",
        "steps that cost nothing",
    )
    more = ("largest step", "dearest channel over the cheapest")
    return table("The staircase", (*heads, *more), lines)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", default=OP, help="an op with {channels} in it")
    parser.add_argument("--channels", type=int, default=CHANNELS, help="the most")
    parser.add_argument("--step", type=int, default=STEP, help="channels from one to the next")
    parser.add_argument("--write-ops", type=Path, help="only write the ops, for `codl collect`")


FIGURE = PaperFigure("fig06", "Latency over output channels", rows, content, options)

if __name__ == "__main__":
    FIGURE.main(__doc__)
