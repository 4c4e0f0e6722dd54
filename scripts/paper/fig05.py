"""Fig. 5: what the parts of one op take on each processor, by the ratio of the cut.

Measured are the parts that the SoC's dataset has, predicted all of them. To measure all of them,
write the op to a file, and run the command that is printed:

    python scripts/paper/fig05.py --soc host --write-ops op.csv
    python scripts/paper/fig05.py --soc epyc2
    python scripts/paper/fig05.py --soc host -o docs/results/paper-fig05-host.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from figure import PaperFigure, Row, plain, table, write_ops

import codl
from codl.errors import CodlError
from codl.ir import Dim, parse, to_text
from codl.ir.records import soc as socs
from codl.ir.types import PROCESSORS
from codl.measure.tasks import part_of
from codl.plan.coverage import without
from codl.plan.strategies import Context
from codl.predict import DEFAULT
from codl.predict.in_network_cost import NOTHING
from codl.report.text_table import TextTable

#: A layer of YOLOv2, and the paper's example of what data sharing takes.
OPS = ("conv2d in=1x128x52x52 oc=256 kernel=3x3 pad=1", "conv2d in=1x256x52x52 oc=128 kernel=1x1")
STEPS = 16


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if options.write_ops:
        shares = ",".join(f"{step / options.steps:g}" for step in range(1, options.steps + 1))
        write_ops(options.write_ops, map(parse, options.op), options.soc, f"--shares {shares}")
    for op in options.op:
        yield from parts(options.soc, op, ("H", "OC"), options.steps)


def parts(soc: str, text: str, dims: Sequence[Dim], steps: int) -> Iterator[Row]:
    """What each processor takes for so many shares of an op; `measured_ms` where it was measured.

    Raises `CodlError` where nothing of the op was measured and nothing can be predicted.
    """
    described, op = socs.load(soc), parse(text)
    cost = without(Context.of(described).cost(DEFAULT), inside=asdict(NOTHING))
    measured = measured_ms(soc)
    shares = [step / steps for step in range(1, steps + 1)]
    for dim in dims:
        for side in PROCESSORS:
            cut = {share: part_of(op, side, dim, share, described) for share in shares}
            whole = {share: part for share, part in cut.items() if part is not None}
            for (share, part), ms in zip(
                whole.items(), cost.fastest_ms(whole.values(), side), strict=True
            ):
                yield {
                    "op": to_text(op),
                    "dim": dim,
                    "processor": side,
                    "share": share,
                    "channels": part.output.c,
                    "rows": part.output.h,
                    "measured_ms": measured.get((to_text(part), side)),
                    "predicted_ms": ms,
                    "source": described.source,
                }


def measured_ms(soc: str) -> dict[tuple[str, str], float]:
    """The least milliseconds of every part in any kernel variant, by its text and processor."""
    frame = codl.dataset(soc)
    frame = frame[(frame.status == "ok") & frame.table.str.contains("_cpu_|_gpu_")]
    side = frame.table.astype(str).str.extract("_(cpu|gpu)_")[0]
    return frame.groupby(["part", side]).p20_ms.min().to_dict()


def best(frame: pd.DataFrame, column: str) -> tuple[float, float, float]:
    """The ratio at which both are done soonest, what that takes, and what a straight line loses.

    The line goes through what the processors take for the whole op.
    """
    sides = {
        side: of.dropna(subset=[column]).set_index("share")[column]
        for side, of in frame.groupby("processor")
    }
    cpu, gpu = sides["cpu"], sides["gpu"]
    both = {ratio: max(cpu[1 - ratio], gpu[ratio]) for ratio in gpu.index if 1 - ratio in cpu.index}
    if not both or 1.0 not in cpu.index or 1.0 not in gpu.index:
        raise CodlError(f"{frame.op.iloc[0]}: no ratio of it has both of its parts measured.")
    ratio = min(both, key=lambda at: both[at])
    straight = cpu[1.0] / (cpu[1.0] + gpu[1.0])
    chosen = min(both, key=lambda at: abs(at - straight))
    return ratio, both[ratio], both[chosen] / both[ratio] - 1


def content(frame: pd.DataFrame) -> TextTable:
    lines = []
    for (soc, op, dim), of in frame.groupby(["soc", "op", "dim"], sort=False):
        column = "measured_ms" if _is_measured(of) else "predicted_ms"
        whole = of[of.share == 1].set_index("processor")[column]
        ratio, both_ms, loss = best(of, column)
        gain = min(whole) / both_ms
        what = column.partition("_")[0]
        cells = (
            op,
            dim,
            what,
            whole["cpu"],
            whole["gpu"],
            both_ms,
            ratio,
            gain,
            f"{100 * loss:.1f}",
        )
        lines.append((soc, *map(plain, cells)))
    heads = (
        "op",
        "cut along",
        "latencies",
        "CPU (ms)",
        "GPU (ms)",
        "both (ms)",
        "best ratio",
        "gain",
    )
    return table("Latency over the ratio", (*heads, "a straight line loses (%)"), lines)


def _is_measured(frame: pd.DataFrame) -> bool:
    try:
        best(frame, "measured_ms")
    except (CodlError, KeyError):
        return False
    return True


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", nargs="+", default=OPS, help="as `codl bench --op` takes it")
    parser.add_argument("--steps", type=int, default=STEPS, help="shares between 0 and 1")
    parser.add_argument("--write-ops", type=Path, help="only write the op, for `codl collect`")


FIGURE = PaperFigure("fig05", "An op's parts over the ratio", rows, content, options)

if __name__ == "__main__":
    FIGURE.main(__doc__)
