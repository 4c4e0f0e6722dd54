"""Models on one stage, one after the other: the process that `stage.py` starts for it.

    python scripts/bench/stage_models.py --soc left4 --serial stage:4 --models vgg16 -o curve.json

It trains predictors of what was collected, unless told not to, and adds each model to the file as
soon as it is measured. A model that fails has rows that say why, and the next one follows. One that
would begin after --budget seconds is left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from curve_file import STRATEGIES, CurveFile, failed

from codl.errors import CodlError
from codl.ir.records.results import Digests
from codl.jobs.interleaved import evaluate
from codl.jobs.model import digests_of, profiling
from codl.jobs.options import recorded
from codl.machine.placement import LocalSoc
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.measure.timing import Effort
from codl.plan.strategies import Context, find
from codl.predict import DEFAULT
from codl.predict.training import train
from codl.predict.workers import Workers
from codl.registry import load_installed
from codl.report.results import EvalResult, parse_as
from codl.targets.connect import connect
from codl.targets.placed import load_local


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", required=True)
    parser.add_argument("--serial", default="local")
    parser.add_argument("--models", required=True, help="by comma")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring a model, at least")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each strategy, at least")
    parser.add_argument("--budget", type=float, default=180.0, help="seconds for all")
    parser.add_argument("--no-train", action="store_true", help="take the predictors that are here")
    parser.add_argument("--commit", default="", help="codl's, where it is no checkout")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    budget = Budget(options.budget)
    load_installed()
    soc = load_local(options.soc, options.serial)
    if not options.no_train:
        _train(soc)
    effort = Effort(min_rounds=options.rounds, min_seconds=options.seconds)
    context = Context.of(soc, note=_note)
    file = CurveFile(options.output, options.commit)
    models = options.models.split(",")
    done = 0
    with closing(connect(options.serial, soc)) as target:
        context = replace(context, target=target, profiling=profiling(target))
        protocol = {"min_rounds": effort.min_rounds, "min_seconds": effort.min_seconds}
        for model, _ in budget.shared(models):
            rows, of = _rows(model, context, effort)
            recording = recorded(target, of, **protocol)
            file.add(soc.to_json(), options.serial, rows, recording)
            _tell(soc, rows)
            done += 1
    if text := budget.left_out(len(models) - done, "models"):
        _note(f"{text} {', '.join(models[done:])}")


def _train(soc: LocalSoc) -> None:
    """Before the device is opened: that keeps this process to the CPU side's cores."""
    data = Dataset.found(soc.name)
    tuning = tuning_file.read(data, soc)
    workers = Workers(len(os.sched_getaffinity(0)))
    begin = perf_counter()
    report = train(soc, data, tuning, predictors=[DEFAULT], evaluate=False, workers=workers)
    for text in report.notes:
        _note(text)
    _note(f"{soc.name}: trained in {perf_counter() - begin:.1f} s")


def _rows(model: str, context: Context, effort: Effort) -> tuple[list[dict[str, Any]], Digests]:
    """A model's rows, and what they rest on."""
    of = digests_of(context)
    try:
        found = evaluate(model, [find(name) for name in STRATEGIES], context, effort=effort)
        return [asdict(row) for row in found.rows], replace(of, models={model: found.digest})
    except CodlError as error:
        return failed(model, str(error)), of
    except Exception as error:  # a driver's: the other models are still to be measured
        traceback.print_exc()
        return failed(model, f"{type(error).__name__}: {error}"), of


def _tell(soc: LocalSoc, rows: list[dict[str, Any]]) -> None:
    """A line with what was found."""
    result = parse_as(EvalResult, {"soc": soc.to_json(), "rows": rows})
    cells = [
        f"{row.strategy} {row.latency_ms.level:.3f} ms" if row.latency_ms else f"{row.strategy} -"
        for row in result.rows
    ]
    cells += dict.fromkeys(row.reason for row in result.rows if row.reason)
    codl = next((row for row in result.rows if row.strategy == "codl"), None)
    gain = result.speedup(codl) if codl else None
    predicted = codl.predicted_ms if codl else None
    cells += [f"predicted {predicted:.3f}"] if predicted else []
    cells += [f"gain {gain:.3f}"] if gain else []
    print(f"{soc.name:10} {result.models[0]:20} {', '.join(cells)}", flush=True)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
