"""Two checkouts of codl side by side: the same plans in the engine of either, in turns.

    python scripts/bench/trees.py --other ../codl-before --soc host --models vgg16,resnet50

Some processes of each checkout keep an engine of every plan; they run one after the other, a few
inferences at a time. Three plans a model: the CPU alone, the GPU alone, and every op that can be
cut in rows split in the middle, each shared anew. Printed are the ratios of latencies, this
checkout over the other, and the slowest of the other's processes over its fastest, which shows the
noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from codl.frontend.convert import load_network
from codl.ir import soc as socs
from codl.ir.network import Network
from codl.ir.plan import Chain, Plan
from codl.ir.soc import Soc
from codl.ir.statistic import level
from codl.kernels import registry
from codl.plan.build_plan import default_plan

#: A child keeps engines and runs what it is told to; it knows older names of modules too.
CHILD = """
import json, sys, time, warnings
from dataclasses import replace
sys.path = [path for path in sys.path if path]  # without the working folder, also a checkout
import numpy as np
try:
    from codl.runtime.engine import Engine
    from codl.targets.detect import load_local as load_soc
    from codl.ir.plan import load_plan
    from codl.frontend.convert import load_network
    from codl.targets.local import LocalTarget
except ImportError:
    from codl.execute.engine import Engine
    from codl.soc import load as load_soc
    from codl.ops.plan import load_plan
    from codl.ops import load_network
    LocalTarget = None
from pathlib import Path
warnings.simplefilter("ignore")
soc = load_soc(sys.argv[1])
where = soc if LocalTarget is None else LocalTarget(soc)
engines, model = {}, ""
for line in sys.stdin:
    ask = json.loads(line)
    key = ask["plan"]
    if ask["model"] != model:
        model, engines = ask["model"], {}  # two models' engines may be more than fits
    if key not in engines:
        network = load_network(ask["model"])
        plan = replace(load_plan(Path(key)), digest=network.digest)
        engines[key] = engine = Engine(network, plan, where)
        random = np.random.default_rng(0)
        engine.feed({n: random.random(s, np.float32) for n, s in network.inputs.items()})
    samples = []
    for _ in range(ask["runs"] + 2):
        start = time.perf_counter()
        engines[key].run()
        samples.append(time.perf_counter() - start)
    print(json.dumps(samples[2:]), flush=True)
"""


class Checkout:
    """A process that runs engines of one checkout."""

    def __init__(self, folder: Path, soc: str) -> None:
        others = os.environ.get("PYTHONPATH", "")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), others])}
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD, soc],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, model: str, plan: Path, runs: int) -> list[float]:
        """Seconds of some inferences."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        ask = {"model": model, "plan": str(plan), "runs": runs}
        print(json.dumps(ask), file=self._process.stdin, flush=True)
        samples: list[float] = json.loads(self._process.stdout.readline())
        return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--other", type=Path, required=True, help="the other checkout's folder")
    parser.add_argument("--this", type=Path, help="another folder in the place of this checkout")
    parser.add_argument("--soc", default="host")
    parser.add_argument("--other-soc", type=Path, help="a SoC file as the other checkout reads it")
    parser.add_argument("--models", default="retinaface,yolov2,vgg16,posenet,mobilenet_v2,resnet50")
    parser.add_argument("--plans", default="cpu,gpu,split")
    parser.add_argument("--processes", type=int, default=3, help="of each checkout")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    soc, own = socs.load(given.soc), given.this or Path(__file__).resolve().parents[2]
    with TemporaryDirectory() as folder:
        other_soc = str(given.other_soc or given.soc)
        sides = {
            "this": (own.resolve(), other_soc if given.this else given.soc),
            "other": (given.other.resolve(), other_soc),
        }
        checkouts = {n: [Checkout(*s) for _ in range(given.processes)] for n, s in sides.items()}
        print("| model | plan | this, ms | other, ms | this / other | other / other |")
        print("| --- | --- | --- | --- | --- | --- |")
        for model in given.models.split(","):
            for name, plan in plans(load_network(model), soc).items():
                if name not in given.plans.split(","):
                    continue
                path = plan.save(Path(folder) / f"{model}-{name}.json")
                compare(f"| {model} | {name}", model, path, checkouts, given)


def compare(
    label: str, model: str, plan: Path, checkouts: dict[str, list[Checkout]], given: Any
) -> None:
    samples: dict[str, list[list[float]]] = {n: [[] for _ in own] for n, own in checkouts.items()}
    for turn in range(given.turns + 1):
        for at in range(given.processes):
            for name, own in checkouts.items():
                taken = own[at].run(model, plan, given.runs)
                if turn:
                    samples[name][at] += taken
    every = (list(chain.from_iterable(samples[name])) for name in ("this", "other"))
    this, other = (1e3 * level(found) for found in every)
    each = [level(found) for found in samples["other"]]
    noise = max(each) / min(each)
    print(f"{label} | {this:.3f} | {other:.3f} | {this / other:.3f} | {noise:.3f} |", flush=True)


def plans(network: Network, soc: Soc) -> dict[str, Plan]:
    """Plans that need no predictions; of a processor that has not all ops there is none."""
    chosen: dict[str, Plan] = {}
    for side in ("cpu", "gpu"):
        chosen[side] = default_plan(network, soc, side)
    chains = []
    for layer in network.layers:
        names = {
            side: registry.variants(layer.op, side, soc)[0].name  # type: ignore[arg-type]
            for side in ("cpu", "gpu")
        }
        ratio = 0.5 if "H" in layer.op.dims else 0.0
        chains.append(Chain((layer.name,), "H", ratio, {layer.name: names}))
    chosen["split"] = replace(chosen["cpu"], chains=tuple(chains), sharing="missing")
    return chosen


if __name__ == "__main__":
    main()
