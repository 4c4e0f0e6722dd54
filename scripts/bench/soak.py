"""Many inferences from several threads, then many engines opened and closed: does anything grow?

    python scripts/bench/soak.py --soc host [--inferences 10000] [--threads 4] [--engines 1000]

A small network whose convolutions are cut by rows and by channels. All threads call one engine,
each with inputs of its own, and every output is compared with that of the CPU alone. Then engines
are made, called once and closed, on one device, or each on one that is opened for it (`--apart`).
Prints the resident memory in MiB, the open files and the threads of this process, ten times in each
part. The exit code is 1 where an output was wrong, or where files, threads or more than `--slack`
MiB of memory were left by the second half of a part.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from codl.engine.engine import Engine
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network
from codl.ir.plan import Plan
from codl.machine.placement import LocalSoc
from codl.machine.threads import thread_ids
from codl.plan.build_plan import default_plan
from codl.targets.local import LocalTarget
from codl.targets.placed import load_local

PROC = Path("/proc/self")
LOOKS = 10
#: How the network's layers are cut: dimension and ratio.
CUTS = (("H", 0.5), ("OC", 0.5), ("H", 0.4), ("H", 0.0), ("H", 1.0))


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    mib: float
    files: int
    threads: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        pages = int((PROC / "statm").read_text().split()[1])
        files = len(os.listdir(PROC / "fd"))
        return cls(pages * resource.getpagesize() / 2**20, files, len(thread_ids()))

    def __str__(self) -> str:
        return f"{self.mib:8.1f} MiB {self.files:4d} files {self.threads:4d} threads"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--inferences", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--engines", type=int, default=1_000)
    parser.add_argument("--slack", type=float, default=4.0, help="MiB that a part may grow by.")
    parser.add_argument("--apart", action="store_true", help="Open the device for each engine.")
    options = parser.parse_args()
    soc, network = load_local(options.soc), small()
    plan = cut(network, soc)
    inputs = [np.random.default_rng(seed).random((1, 16, 32, 32), np.float32) for seed in range(8)]
    with Engine(network, default_plan(network, soc, "cpu"), LocalTarget(soc)) as alone:
        expected = [alone(x) for x in inputs]
    wrong = 0

    def call(engine: Engine, number: int) -> None:
        nonlocal wrong
        found, right = engine(inputs[number % 8]), expected[number % 8]
        if not np.allclose(found, right, rtol=1e-3, atol=1e-4):
            wrong += 1

    def inferences() -> Iterator[Held]:
        with Engine(network, plan, LocalTarget(soc)) as engine:
            for numbers in parts(options.inferences):
                with ThreadPoolExecutor(options.threads) as pool:
                    list(pool.map(lambda number: call(engine, number), numbers))
                yield Held.now()

    def engines() -> Iterator[Held]:
        shared = LocalTarget(soc)
        for numbers in parts(options.engines):
            for number in numbers:
                target = LocalTarget(soc) if options.apart else shared
                with Engine(network, plan, target) as engine:
                    call(engine, number)
            yield Held.now()

    flat = [
        watched(f"{options.inferences} inferences from {options.threads} threads", inferences),
        watched(f"{options.engines} engines opened and closed", engines),
    ]
    grown = [mib for mib, handles in flat if mib > options.slack or handles]
    print(f"{wrong} wrong outputs")
    return 1 if wrong or grown else 0


def small() -> Network:
    """Three convolutions, a pooling and an activation's convolution."""
    b = ModelBuilder("small")
    x = b.input("x", (1, 16, 32, 32))
    for _ in range(3):
        x = b.relu(b.conv(x, 16, 3, pad=1))
    b.output(b.conv(b.max_pool(x, 2, 2), 16, 3, pad=1))
    return convert(simplify(import_onnx(b.build(), "small")))


def cut(network: Network, soc: LocalSoc) -> Plan:
    """Every layer in a chain of its own, by `CUTS`."""
    cpu, gpu = (default_plan(network, soc, side, chained=False) for side in ("cpu", "gpu"))
    chains = []
    for one, other, (dim, ratio) in zip(cpu.chains, gpu.chains, CUTS, strict=True):
        (name,) = one.ops
        both = {name: {**one.variants[name], **other.variants[name]}}
        chains.append(replace(one, dim=dim, gpu_ratio=ratio, variants=both))
    return replace(cpu, strategy="soak", sharing="missing", chains=tuple(chains))


def parts(count: int) -> list[range]:
    """The numbers up to `count`, in as many parts as there are looks."""
    ends = [count * look // LOOKS for look in range(LOOKS + 1)]
    return [range(first, last) for first, last in pairwise(ends)]


def watched(title: str, run: Callable[[], Iterator[Held]]) -> tuple[float, int]:
    """What the second half left: MiB, and files and threads."""
    print(title)
    looks = []
    for held in run():
        print(f"  {held}", flush=True)
        looks.append(held)
    middle, last = looks[LOOKS // 2 - 1], looks[-1]
    handles = max(0, last.files - middle.files) + max(0, last.threads - middle.threads)
    return last.mib - middle.mib, handles


if __name__ == "__main__":
    sys.exit(main())
