"""How balanced plans are, from evaluations; and how long it takes from a file to a running plan.

    codl eval --soc host --models a.onnx,b.onnx --strategies cpu,gpu,codl \\
        --peers ort,openvino -o e.json
    python scripts/bench/unmeasured.py table e.json [more.json] [--json]
    python scripts/bench/unmeasured.py ready a.onnx b.onnx --soc host [--json]

`table` has a row a model and strategy `codl` (or `--strategy`): its gain over the better
processor, its part of the bound 1 / (1/cpu + 1/gpu) of the same run, predicted over measured of the
plan and of either processor alone, and the plan over the fastest library on all cores. Below are
the geometric means, the extremes, and how many predictions are within 10, 15 and 20 %.

`ready` plans and loads each model in a process of its own, as `codl.compile` does, and times two
parts: reading the file (`import_s`), and from there to the first output (`ready_s`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter

from codl.errors import InvalidFileError
from codl.records.results import EvalRow
from codl.report.load import load_result
from codl.report.results import EvalResult

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


@dataclass(frozen=True)
class Ready:
    """Seconds to read a model, and from there to its first output; milliseconds of a run then."""

    model: str
    import_s: float
    ready_s: float
    run_ms: float


def ready(model: str, soc: str) -> Ready:
    """Plan, load and run a model here; `codl` and its libraries are imported before."""
    from codl.engine.engine import Engine
    from codl.jobs.model import ModelJob
    from codl.measure.inputs import random_inputs

    job = ModelJob(model, soc=soc)
    _ = job.context
    start = perf_counter()
    network = job.load()
    read = perf_counter()
    with job.connected() as context:
        engine = Engine(network, job.plan_of(network, context), context.device, context.tuning)
        engine.feed(random_inputs(network))
        engine.run()
        done = perf_counter()
        runs = []
        for _ in range(5):
            begin = perf_counter()
            engine.run()
            runs.append(perf_counter() - begin)
        engine.close()
    return Ready(Path(model).stem, read - start, done - read, 1e3 * median(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("table", "ready", "ready-here"))
    parser.add_argument("files", nargs="+")
    parser.add_argument("--strategy", default="codl")
    parser.add_argument("--soc", default="host")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.what == "ready-here":
        print(json.dumps(asdict(ready(args.files[0], args.soc))))
        return
    if args.what == "table":
        rows = balances(map(Path, args.files), args.strategy)
        if args.json:
            print(json.dumps({"rows": [asdict(row) for row in rows], "summary": summary(rows)}))
        else:
            print_table(rows)
        return
    times = []
    for model in args.files:
        command = [sys.executable, __file__, "ready-here", model, "--soc", args.soc]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        times.append(Ready(**json.loads(ran.stdout.splitlines()[-1])))
        if not args.json:
            row = times[-1]
            print(
                f"{row.model:<24} import {row.import_s:5.2f} s, ready {row.ready_s:5.2f} s,"
                f" then {row.run_ms:.2f} ms a run",
                flush=True,
            )
    seconds = [row.ready_s for row in times]
    if args.json:
        print(json.dumps([asdict(row) for row in times]))
    else:
        print(f"ready: median {median(seconds):.2f} s, largest {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
