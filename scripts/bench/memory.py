"""The memory that an engine takes, by strategy, as the operating system counts it.

    python scripts/bench/memory.py --soc host --models yolov2,vgg16 [--strategies cpu,gpu,codl]

Every engine is made in a process of its own, from a network that is loaded and a device that is
open already; what the process holds more of after three runs is the engine's: tensors, both sides'
weights as their libraries arrange them, compiled kernels. Where the OpenCL device is a CPU that is
everything; the memory of a real GPU is not in it. Ratios are to the better single processor.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

from codl.engine.engine import Engine
from codl.frontend.convert import load_network
from codl.measure import dataset as datasets
from codl.measure.inputs import random_inputs
from codl.predict import FOLDER
from codl.provenance import provenance
from codl.strategies import Context, find
from codl.targets.detect import load_local
from codl.targets.local import LocalTarget

RUNS = 3
SINGLES = ("cpu", "gpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default="yolov2")
    parser.add_argument("--strategies", default="cpu,gpu,codl-paper,codl")
    parser.add_argument("--dataset", type=Path, default=datasets.FOLDER)
    parser.add_argument("--predictors", type=Path, default=FOLDER)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        context = Context.of(
            load_local(options.soc), options.dataset, predictors_folder=options.predictors
        )
        print(engine_bytes(options.models, options.strategies, context))
        return
    rows = []
    for model in options.models.split(","):
        found = {name: in_child(model, name, options) for name in options.strategies.split(",")}
        single = min((found[name] for name in SINGLES if name in found), default=None)
        for name, size in found.items():
            ratio = size / single if single else None
            rows.append({"model": model, "strategy": name, "bytes": size, "of_single": ratio})
            if not options.json:
                beside = "" if ratio is None else f"   {ratio:.2f} of the single processor's"
                print(f"{model:20s} {name:11s} {size / 1e6:8.1f} MB{beside}", flush=True)
    if options.json:
        print(json.dumps({**provenance(), "soc": options.soc, "rows": rows}, indent=1))


def in_child(model: str, strategy: str, options: argparse.Namespace) -> int:
    command = [sys.executable, __file__, "--child", "--soc", options.soc, "--models", model]
    command += ["--strategies", strategy, "--dataset", str(options.dataset)]
    command += ["--predictors", str(options.predictors)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


def engine_bytes(model: str, strategy: str, context: Context) -> int:
    network = load_network(model)
    plan = find(strategy).plan(network, context)
    inputs = random_inputs(network)
    target = LocalTarget(context.soc)
    target.open()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # so that nothing hides in what was freed
    before = resident_bytes()
    engine = Engine(network, plan, target, context.tuning)
    engine.feed(inputs)
    for _ in range(RUNS):
        engine.run()
    gc.collect()
    return resident_bytes() - before


def resident_bytes() -> int:
    """What this process holds in memory of its own."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("the system does not tell what a process holds")


if __name__ == "__main__":
    main()
