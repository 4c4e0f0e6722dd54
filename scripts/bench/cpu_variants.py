"""Every kernel variant of the CPU side on convolutions, in turns.

An op runs alone in a net on one core, from planar memory to ncnn's own layout. Time is the
thread's on its core, so that neighbours on a shared machine hardly count.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from time import perf_counter, thread_time

import numpy as np

from codl.ir import Op, to_text
from codl.kernels import registry
from codl.measure.op_runner import row_of_ops
from codl.measure.tasks import read_csv
from codl.records.statistic import level
from codl.runtime.placement import LocalSoc
from codl.targets.connect import connect
from codl.targets.detect import detect

OPS = Path(__file__).with_suffix(".csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", type=Path, default=OPS, help="as `codl collect --ops` reads it")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each op")
    args = parser.parse_args()
    soc = detect(connect("local"), "bench")
    os.sched_setaffinity(0, soc.placement.cpu_cores[:1])
    ratios: dict[str, list[float]] = {}
    for op in dict.fromkeys(read_csv(args.ops)):
        ms = measure(op, soc, args.seconds)
        usual = min(ms[v.name] for v in registry.variants(op, "cpu", soc))
        for name, value in ms.items():
            ratios.setdefault(name, []).append(value / usual)
        print(
            to_text(op), " ".join(f"{name}={value:.3f}" for name, value in ms.items()), flush=True
        )
    print("\nLatency over the best of the variants that are collected: best, median, worst")
    for name, values in ratios.items():
        low, middle, high = np.quantile(values, (0, 0.5, 1))
        print(f"{name:28s} {low:.2f} {middle:.2f} {high:.2f}   of {len(values)}")


def measure(op: Op, soc: LocalSoc, seconds: float) -> dict[str, float]:
    """Milliseconds of every variant that does the op."""
    found = registry.variants(op, "cpu", soc, include_unfit=True)
    nets = {variant.name: row_of_ops([op], variant, soc) for variant in found}
    samples: dict[str, list[float]] = {name: [] for name in nets}
    begin = perf_counter()
    while perf_counter() - begin < seconds or len(samples[found[0].name]) < 5:
        for name, net in nets.items():
            net()  # brings its weights back into the caches
            start = thread_time()
            net()
            samples[name].append(1e3 * (thread_time() - start))
    return {name: level(times) for name, times in samples.items()}


if __name__ == "__main__":
    main()
