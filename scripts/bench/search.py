"""How long a search takes that is the first of its process, and the predicted latency it finds.

    python scripts/bench/search.py --soc host [--models retinaface,yolov2] [--runs 5]

Every search is made in a process of its own, in which the network is imported and the predictors
are loaded already; nothing else is made ready before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from codl.frontend.convert import load_network
from codl.frontend.models import MEASURED
from codl.ir import soc as socs
from codl.ir.statistic import level
from codl.plan.search import METHODS, search
from codl.predict.names import DEFAULT, FOLDER
from codl.provenance import provenance
from codl.strategies import Context


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default=",".join(MEASURED))
    parser.add_argument("--search", default="dp", choices=list(METHODS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--predictors", type=Path, default=FOLDER)
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
            "search_ms": level([run["search_ms"] for run in runs]),
            "least_ms": min(run["search_ms"] for run in runs),
        }
        for model, runs in found.items()
    ]
    if options.json:
        print(json.dumps({**provenance(), "runs": options.runs, "rows": rows}, indent=1))
        return
    print(f"{'model':22s} ops  search ms (least)  predicted ms  chains  method")
    for row in rows:
        times = f"{row['search_ms']:9.0f} ({row['least_ms']:.0f})"
        rest = f"{row['predicted_ms']:12.2f}  {row['chains']:6d}  {row['method']}"
        print(f"{row['model']:22s} {row['ops']:3d}  {times:17s}  {rest}")


def once(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """One search of a network, by predictors that have predicted nothing yet."""
    soc, network = socs.load(options.soc), load_network(model)
    cost = Context.of(soc, predictors_folder=options.predictors).cost(DEFAULT)
    start = perf_counter()
    plan = search(network, cost, "codl", method=options.search)
    search_ms = 1e3 * (perf_counter() - start)
    return {
        "ops": len(network.layers),
        "search_ms": search_ms,
        "predicted_ms": plan.predicted_ms,
        "chains": len(plan.chains),
        "method": plan.method,
    }


def in_child(model: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", "--models", model, "--soc", options.soc]
    command += ["--search", options.search, "--predictors", str(options.predictors)]
    result: dict[str, Any] = json.loads(subprocess.check_output(command, text=True))
    return result


if __name__ == "__main__":
    main()
