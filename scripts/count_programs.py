"""How many OpenCL programs each built-in model compiles on a phone's GPU, before anything is tuned.

    python scripts/count_programs.py [--for adreno630] [--models A,B] [--list]

A program is a source with its macros: a phone takes 0.1 to 1 s for each. Columns are buffers at
float32, buffers at half, and images at half; `--list` names the programs of the second and third.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from codl.frontend.convert import load_structure
from codl.frontend.models import BUILT_IN
from codl.ir.executable import Program
from codl.ir.network import Network
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.plan.build_plan import default_plan
from codl_phone_compilers import gpus

CASES = (("float32", "buffer"), ("half", "buffer"), ("half", "image2d"))


def programs(network: Network, gpu: str, precision: str, memory: str) -> Sequence[Program]:
    """What a network on the GPU alone compiles, by no predictions."""
    soc = gpus.soc_of(gpu, precision)
    soc = replace(soc, gpu=replace(soc.gpu, memory_types=(memory,)))
    return lower(network, default_plan(network, soc, "gpu"), soc, Tuning()).programs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--for", dest="gpu", default="adreno630")
    parser.add_argument("--models", default=",".join(BUILT_IN))
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    print("| model | layers | " + " | ".join(f"{p}, {m}" for p, m in CASES) + " |")
    print("| --- | ---: " + "| ---: " * len(CASES) + "|")
    for name in asked.models.split(","):
        network = load_structure(name)
        found = [programs(network, asked.gpu, *case) for case in CASES]
        counts = " | ".join(str(len(each)) for each in found)
        print(f"| `{name}` | {len(network.layers)} | {counts} |")
        if asked.list:
            lines = {f"{p.name} {p.options}" for each in found[1:] for p in each}
            print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
