"""How much a CPU latency depends on where its memory lies: the same op in several new nets.

    python scripts/bench/pages.py
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python scripts/bench/pages.py     # huge pages

Prints the median of the nets' latencies in ms, and how far they are from it in the mean.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np

from codl.ir import parse
from codl.ir.statistic import level
from codl.kernels import registry
from codl.measure.op_runner import cpu_work
from codl.runtime import threads
from codl.targets.detect import load_local

OPS = (
    ("conv2d in=1x64x112x112 oc=64 kernel=3x3 pad=1", "cpu_winograd"),
    ("conv2d in=1x3x113x224 oc=64 kernel=3x3 pad=0,1,1,1", "cpu_winograd"),
    ("conv2d in=1x128x56x56 oc=128 kernel=3x3 pad=1", "cpu_winograd"),
    ("conv2d in=1x256x28x28 oc=256 kernel=3x3 pad=1", "cpu_winograd"),
    ("conv2d in=1x64x56x56 oc=256 kernel=1x1", "cpu_gemm"),
)
NETS, WARM_UP, SAMPLES = 7, 3, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    soc = load_local(parser.parse_args().soc)
    threads.pin([0], soc.placement.cpu_cores)
    for text, variant in OPS:
        op, kept, found = parse(text), [], []
        for _ in range(NETS):
            work = cpu_work(op, registry.find(op, variant), soc)  # type: ignore[arg-type]
            kept.append(work)  # the next net gets other memory
            work(WARM_UP)
            samples = []
            for _ in range(SAMPLES):
                start = perf_counter()
                work(1)
                samples.append(perf_counter() - start)
            found.append(1e3 * level(samples))
        middle = float(np.median(found))
        spread = 100 * float(np.mean(np.abs(np.array(found) / middle - 1)))
        print(f"{variant} {text}: {middle:.3f} ms, {spread:.1f} %")


if __name__ == "__main__":
    main()
