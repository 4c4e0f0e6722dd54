"""What an engine that adapts gains where a processor becomes slower, and loses where none does.

    python scripts/bench/adapt.py --soc host --models yolov2,resnet50 [--side cpu] [--json]

Three engines of every model: its plan as it is (`fixed`), the same plan adapting, and the plan that
the same search makes with all predictions of one side doubled (`made`). First the fixed and the
adaptive one run by turns. Then a companion, a process that spins, is pinned to each core of that
side, which leaves it half; the adaptive engine goes on, and then all three run by turns in that
state. `back_after` is after how many inferences five in turn take, in the median, no more than 1.05
of what the plan made for that state takes; `returned_after` the same when the companion has ended,
beside the fixed plan. A side without cores of its own cannot be slowed down this way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.frontend.convert import load_network
from codl.ir import Network, Op
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS, Processor
from codl.measure import dataset as datasets
from codl.measure.inputs import random_inputs
from codl.plan.search import search
from codl.predict import DEFAULT, FOLDER
from codl.provenance import provenance
from codl.records.results import Move
from codl.strategies import Context
from codl.targets.detect import load_local
from codl.targets.local import LocalTarget

#: Runs of a turn; the first one meets the caches that somebody else left.
TURN = 6
#: Inferences that are looked at for whether the best is reached again, and what counts as that.
AROUND, NEAR = 5, 1.05
#: The companion is at work after so many seconds.
STARTS_S = 0.5


@dataclass(frozen=True)
class Row:
    """Ratios of medians; `loss` is of the mean, which what is tried now and then is part of."""

    model: str
    side: Processor
    loss: float
    fixed_over_made: float
    adaptive_over_made: float
    back_after: int | None
    returned_after: int | None
    moves: Sequence[Move]
    memory: float
    source: str = "measured"


@dataclass(frozen=True)
class Slower:
    """Corrections of a cost model: one processor takes twice as long."""

    side: Processor

    def factors(self, target: str, ops: Sequence[Op]) -> NDArray[np.float64]:
        return np.full(len(ops), 2.0 if f"_{self.side}" in target else 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default="yolov2")
    parser.add_argument("--side", choices=PROCESSORS, default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each comparison")
    parser.add_argument("--runs", type=int, default=60, help="watched after each change")
    parser.add_argument("--dataset", type=Path, default=datasets.FOLDER)
    parser.add_argument("--predictors", type=Path, default=FOLDER)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    soc = load_local(args.soc)
    target = LocalTarget(soc)
    context = Context.of(soc, args.dataset, predictors_folder=args.predictors, target=target)
    rows = []
    for model in args.models.split(","):
        rows.append(measured(load_network(model), context, target, args))
        if not args.json:
            print(asdict(rows[-1]), flush=True)
    if args.json:
        print(json.dumps({**provenance(), "soc": soc.name, "rows": list(map(asdict, rows))}))


def measured(
    network: Network, context: Context, target: LocalTarget, args: argparse.Namespace
) -> Row:
    side: Processor = args.side
    place = target.soc.placement
    cores = place.cpu_cores if side == "cpu" else place.gpu_cores
    if not cores:
        raise CodlError(f"The {side} side of {target.soc.name!r} has no cores of its own.")
    plans = {"fixed": plan_of(network, context), "made": plan_of(network, context, slower=side)}
    with ExitStack() as stack:

        def engine(plan: Plan, *, adaptive: bool = False) -> Engine:
            made = Engine(network, plan, target, context.tuning, adaptive=adaptive)
            made.feed(random_inputs(network))
            return stack.enter_context(made)

        engines = {name: engine(plan) for name, plan in plans.items()}
        memory = engines["fixed"].memory.total
        own = engines["adaptive"] = engine(plans["fixed"], adaptive=True)
        calm = by_turns({name: engines[name] for name in ("fixed", "adaptive")}, args.seconds)
        with spinning(cores):
            slowed = [timed(own) for _ in range(args.runs)]
            beside = by_turns(engines, args.seconds)
        returned = [timed(own) for _ in range(args.runs)]
        assert own.adaptation is not None
        medians = {name: float(np.median(times)) for name, times in beside.items()}
        return Row(
            model=network.name,
            side=side,
            loss=float(np.mean(calm["adaptive"]) / np.mean(calm["fixed"])) - 1,
            fixed_over_made=medians["fixed"] / medians["made"],
            adaptive_over_made=medians["adaptive"] / medians["made"],
            back_after=reached(slowed, medians["made"]),
            returned_after=reached(returned, float(np.median(calm["fixed"]))),
            moves=own.adaptation.moves,
            memory=own.memory.total / memory,
        )


def plan_of(network: Network, context: Context, *, slower: Processor | None = None) -> Plan:
    """The best plan found, for a machine as it was measured, or with one side half as fast."""
    cost = context.cost(DEFAULT)
    if slower is not None:
        cost = replace(cost, corrections=Slower(slower).factors)
    return search(network, cost, "codl")


def by_turns(engines: Mapping[str, Engine], seconds: float) -> dict[str, list[float]]:
    """Seconds of every engine's runs, the first of each turn left out."""
    found: dict[str, list[float]] = {name: [] for name in engines}
    begin = perf_counter()
    while perf_counter() - begin < seconds:
        for name, engine in engines.items():
            found[name] += [timed(engine) for _ in range(TURN)][1:]
    return found


def timed(engine: Engine) -> float:
    start = perf_counter()
    engine.run()
    return perf_counter() - start


def reached(times: Sequence[float], wanted: float) -> int | None:
    """After how many runs some in turn take what is wanted, in the median; None where never."""
    for at in range(len(times) - AROUND + 1):
        if np.median(times[at : at + AROUND]) <= NEAR * wanted:
            return at
    return None


@contextmanager
def spinning(cores: Sequence[int]) -> Iterator[None]:
    """A process that does nothing else, on each of these cores."""
    code = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    nice = os.nice(0)
    spinners = [
        subprocess.Popen([sys.executable, "-c", code, str(core)], preexec_fn=lambda: os.nice(-nice))
        for core in cores
    ]
    try:
        sleep(STARTS_S)
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


if __name__ == "__main__":
    main()
