"""What an engine takes through pyopencl and through its stand-in by ctypes, in turns.

    python scripts/bench/bindings.py --soc host --models mobilenet_v2,yolov2 [--runs 5]

Each has a process of its own, and so has pyopencl a second time, which tells what two processes
differ by alone. All have the same plans: every op on the GPU, and every op that can be cut in half
along H and along OC, one a chain. A turn is some inferences of one, timed over there; a run's ratio
is of the 20th percentiles of its turns, which other programs disturb least. Told are the median of
runs, each with new processes, and their range.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from check_target import halves

from codl.engine.engine import Engine
from codl.frontend.convert import load_network
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.measure.inputs import random_inputs
from codl.measure.timing import Effort
from codl.plan.build_plan import default_plan
from codl.runtime.drivers import BINDING
from codl.targets.client import COMMAND
from codl.targets.placed import load_local
from codl.targets.remote import RemoteTarget

#: Inferences of one before it is another's turn, in seconds.
TURN_S = 0.06
#: What each process calls OpenCL by; the ratios are to the first.
PROCESSES = {"pyopencl": "pyopencl", "pyopencl again": "pyopencl", "ctypes": "ctypes"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default="mobilenet_v2")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each plan in a run")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    soc, dice = load_local(args.soc), Random(0)
    for model in args.models.split(","):
        network = load_network(model)
        for name, plan in plans(network, soc).items():
            runs = [taken(network, plan, soc, args.seconds, dice) for _ in range(args.runs)]
            base, *others = PROCESSES
            told = [f"{base} {median(run[base] for run in runs):.3f} ms"]
            for other in others:
                ratios = sorted(run[other] / run[base] for run in runs)
                told.append(f"{other} {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")
            print(f"{model} {name}: {', '.join(told)}", flush=True)


def plans(network: Network, soc: Soc) -> dict[str, Plan]:
    cut = {f"cut in half along {dim}": halves(network, soc, dim) for dim in ("H", "OC")}
    return {"on the GPU": default_plan(network, soc, "gpu"), **cut}


def taken(network: Network, plan: Plan, soc: Soc, seconds: float, dice: Random) -> dict[str, float]:
    """Milliseconds of an inference in each of new processes."""
    with ExitStack() as stack:
        engines = {}
        for name in shuffled(dice):
            command = ("env", f"{BINDING}={PROCESSES[name]}", *COMMAND)
            target = stack.enter_context(closing(RemoteTarget(name, command, soc)))
            engines[name] = target, stack.enter_context(Engine(network, plan, target))
            engines[name][1].feed(random_inputs(network))
        turns: dict[str, list[float]] = {name: [] for name in PROCESSES}
        end = perf_counter() + seconds
        while perf_counter() < end:
            for name in shuffled(dice):
                target, engine = engines[name]
                times = target.time({name: engine.loaded}, Effort(min_rounds=3, min_seconds=TURN_S))
                turns[name].append(times.latency_ms[name].median)
        return {name: quantiles(each, n=5)[0] for name, each in turns.items()}


def shuffled(dice: Random) -> list[str]:
    return dice.sample(list(PROCESSES), len(PROCESSES))


if __name__ == "__main__":
    main()
