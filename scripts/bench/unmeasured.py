"""How balanced plans are, from the files of evaluations.

    codl eval --soc host --models a.onnx,b.onnx --strategies cpu,gpu,codl \\
        --peers ort,openvino -o e.json
    python scripts/bench/unmeasured.py e.json [more.json] [--json]

The table has a row a model and strategy `codl` (or `--strategy`): its gain over the better
processor, its part of the bound 1 / (1/cpu + 1/gpu) of the same run, predicted over measured of the
plan and of either processor alone, and the plan over the fastest library on all cores. Below are
the geometric means, the extremes, and how many predictions are within 10, 15 and 20 %.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean

from codl.errors import InvalidFileError
from codl.ir.records.results import EvalRow
from codl.report.results import EvalResult, load_result

#: Parts by which predictions may be off, of which it is counted how many are.
WITHIN = (0.10, 0.15, 0.20)


@dataclass(frozen=True)
class Balance:
    """One model; ratios, of which None is one that was not measured."""

    model: str
    latency_ms: float
    gain: float
    of_bound: float
    predicted: float | None
    predicted_cpu: float | None
    predicted_gpu: float | None
    over_library: float | None
    library: str
    doubts: int


def balance(rows: Sequence[EvalRow], strategy: str) -> Balance | None:
    """Of one model's rows; None where a processor alone or the strategy has no latency."""
    by_name = {row.strategy: row for row in rows if row.latency_ms is not None}
    if not {"cpu", "gpu", strategy} <= by_name.keys():
        return None
    level = {name: row.latency_ms.level for name, row in by_name.items() if row.latency_ms}
    libraries = {name: level[name] for name, row in by_name.items() if row.peer is not None}
    library = min(libraries, key=lambda name: libraries[name], default="")
    taken_ms = level[strategy]
    predicted = {name: row.predicted_over_measured for name, row in by_name.items()}
    return Balance(
        model=Path(rows[0].model).stem,
        latency_ms=taken_ms,
        gain=min(level["cpu"], level["gpu"]) / taken_ms,
        of_bound=1 / (1 / level["cpu"] + 1 / level["gpu"]) / taken_ms,
        predicted=predicted[strategy],
        predicted_cpu=predicted["cpu"],
        predicted_gpu=predicted["gpu"],
        over_library=taken_ms / libraries[library] if library else None,
        library=library,
        doubts=sum(len(row.doubts) for row in by_name.values()),
    )


def balances(files: Iterable[Path], strategy: str) -> list[Balance]:
    """Of all models in some files of `codl eval`."""
    rows: list[Balance] = []
    for path in files:
        result = load_result(path)
        if not isinstance(result, EvalResult):
            raise InvalidFileError(path, f"holds a result of codl {result.command}, not eval.")
        rows += filter(None, (balance(result.of(model), strategy) for model in result.models))
    return rows


def mean(ratios: Sequence[float]) -> float:
    """Geometric; not a number of none."""
    return geometric_mean(ratios) if ratios else float("nan")


def summary(rows: Sequence[Balance]) -> dict[str, float]:
    """Geometric means, extremes, and the part of predictions within each of `WITHIN`."""
    gains, bounds = [row.gain for row in rows], [row.of_bound for row in rows]
    libraries = [row.over_library for row in rows if row.over_library]
    plans = [row.predicted for row in rows if row.predicted]
    singles = [p for row in rows for p in (row.predicted_cpu, row.predicted_gpu) if p]
    values = {
        "models": len(rows),
        "gain": mean(gains),
        "least gain": min(gains, default=float("nan")),
        "of bound": mean(bounds),
        "least of bound": min(bounds, default=float("nan")),
        "over the fastest library": mean(libraries),
    }
    for name, ratios in (("plans", plans), ("processors alone", singles)):
        for part in WITHIN:
            close = sum(abs(ratio - 1) <= part for ratio in ratios) / max(len(ratios), 1)
            values[f"{name} within {part:.0%}"] = close
    return values


def print_table(rows: Sequence[Balance]) -> None:
    heads = ("model", "ms", "gain", "of bound", "pred", "pred cpu", "pred gpu", "over lib", "lib")
    print(" ".join(f"{head:>9}" for head in heads).replace("    model", f"{'model':<24}", 1))
    for row in rows:
        figures = (
            row.latency_ms, row.gain, row.of_bound, row.predicted, row.predicted_cpu,
            row.predicted_gpu, row.over_library,
        )  # fmt: skip
        shown = " ".join(f"{figure:9.3g}" if figure else f"{'-':>9}" for figure in figures)
        print(f"{row.model:<24}{shown} {row.library:>9}{' doubted' * bool(row.doubts)}")
    for name, value in summary(rows).items():
        print(f"{name}: {value:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--strategy", default="codl")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = balances(args.files, args.strategy)
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "summary": summary(rows)}))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
