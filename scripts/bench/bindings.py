"""What an engine takes through pyopencl and through its stand-in by ctypes, in turns.

    python scripts/bench/bindings.py --soc host --models mobilenet_v2,yolov2 [--seconds 12]

Each has a process of its own, with the same plans: every op on the GPU, and every op that can be
cut in half along H, one a chain. A turn is some inferences of the one, then of the other, timed
over there; the ratio is of the 20th percentiles of all turns, which other processes disturb least.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import quantiles
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from check_target import halves

from codl.engine.engine import Engine
from codl.frontend.convert import load_network
from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure.inputs import random_inputs
from codl.measure.timing import Effort
from codl.plan.build_plan import default_plan
from codl.records.soc import Soc
from codl.runtime.drivers import BINDING, BINDINGS
from codl.targets.client import COMMAND
from codl.targets.detect import load_local
from codl.targets.remote import RemoteTarget

#: Inferences of one before it is the other's turn, in seconds.
TURN_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default="mobilenet_v2")
    parser.add_argument("--seconds", type=float, default=12.0, help="for each plan")
    args = parser.parse_args()
    soc = load_local(args.soc)
    with ExitStack() as stack:
        targets = {
            name: stack.enter_context(
                closing(RemoteTarget(name, ("env", f"{BINDING}={name}", *COMMAND), soc))
            )
            for name in BINDINGS
        }
        for model in args.models.split(","):
            network = load_network(model)
            for plan_name, plan in plans(network, soc).items():
                taken = compared(network, plan, targets, args.seconds)
                ms = {name: quantiles(each, n=5)[0] for name, each in taken.items()}
                ratio = ms["ctypes"] / ms["pyopencl"]
                listed = ", ".join(f"{name} {value:.3f} ms" for name, value in ms.items())
                print(f"{model} {plan_name}: {listed}, ratio {ratio:.3f}", flush=True)


def plans(network: Network, soc: Soc) -> dict[str, Plan]:
    return {
        "on the GPU": default_plan(network, soc, "gpu"),
        "cut in half": halves(network, soc, "H"),
    }


def compared(
    network: Network, plan: Plan, targets: dict[str, RemoteTarget], seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of each in every turn."""
    with ExitStack() as stack:
        loaded = {}
        for name, target in targets.items():
            engine = stack.enter_context(Engine(network, plan, target))
            engine.feed(random_inputs(network))
            loaded[name] = engine.loaded
        taken: dict[str, list[float]] = {name: [] for name in targets}
        end = perf_counter() + seconds
        while perf_counter() < end:
            for name, target in targets.items():
                effort = Effort(min_rounds=3, min_seconds=TURN_S)
                times = target.time({name: loaded[name]}, effort)
                taken[name].append(times.latency_ms[name].median)
    return taken


if __name__ == "__main__":
    main()
