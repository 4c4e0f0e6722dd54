"""How long a search takes that is the first of its process, and the predicted latency it finds.

    python scripts/bench/search.py --soc host [--models retinaface,model.onnx] [--runs 5]

Every search is made in a process of its own, in which the network is imported and the predictors
are loaded already; nothing else is made ready before the clock starts. What a command waits for
besides is counted apart: the network, and the predictors with their libraries. With `--cpu` time is
the process's own, which other work on the machine lengthens less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from codl.frontend.convert import load_structure
from codl.frontend.models import BUILT_IN
from codl.plan.search import METHODS, search
from codl.predict import DEFAULT, FOLDER
from codl.provenance import provenance
from codl.records import soc as socs
from codl.records.statistic import level
from codl.strategies import Context

#: What a process waits for before a plan is there.
PARTS = ("network_ms", "predictors_ms", "search_ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default=",".join(BUILT_IN))
    parser.add_argument("--search", default="dp", choices=list(METHODS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--predictors", type=Path, default=FOLDER)
    parser.add_argument("--cpu", action="store_true", help="count the process's own time")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(once(options.models, options)))
        return
    models = options.models.split(",")
    found: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
    for _ in range(options.runs):
        for model in models:
            found[model].append(in_child(model, options))
    rows = [
        {
            "model": model,
            **runs[0],
            **{part: level([run[part] for run in runs]) for part in PARTS},
            "least_ms": min(run["search_ms"] for run in runs),
        }
        for model, runs in found.items()
    ]
    if options.json:
        print(json.dumps({**provenance(), "runs": options.runs, "rows": rows}, indent=1))
        return
    print(f"{'model':22s} ops  search ms (least)  network  predictors  predicted ms  chains")
    for row in rows:
        times = f"{row['search_ms']:9.0f} ({row['least_ms']:.0f})"
        others = f"{row['network_ms']:7.0f}  {row['predictors_ms']:10.0f}"
        rest = f"{row['predicted_ms']:12.2f}  {row['chains']:6d}"
        print(f"{Path(row['model']).stem:22s} {row['ops']:3d}  {times:17s}  {others}  {rest}")
    searches = [row["search_ms"] for row in rows]
    print(
        f"{len(rows)} models: {median(searches):.0f} ms in the median, {max(searches):.0f} at most"
    )


def once(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """One search of a network, by predictors that have predicted nothing yet."""
    clock = process_time if options.cpu else perf_counter
    times = [clock()]
    network = load_structure(model)
    times.append(clock())
    cost = Context.of(socs.load(options.soc), predictors_folder=options.predictors).cost(DEFAULT)
    times.append(clock())
    plan = search(network, cost, "codl", method=options.search, may_be_alone=True)
    times.append(clock())
    return {
        "ops": len(network.layers),
        **{
            part: 1e3 * (end - start)
            for part, (start, end) in zip(PARTS, pairwise(times), strict=True)
        },
        "predicted_ms": plan.predicted_ms,
        "chains": len(plan.chains),
        "method": plan.method,
    }


def in_child(model: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", "--models", model, "--soc", options.soc]
    command += ["--method", options.search, "--predictors", str(options.predictors)]
    command += ["--cpu"] if options.cpu else []
    result: dict[str, Any] = json.loads(subprocess.check_output(command, text=True))
    return result


if __name__ == "__main__":
    main()
