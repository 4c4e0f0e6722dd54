"""What memory gives one core and all of them: reading, and copying, arrays larger than any cache.

Decoding a token reads every weight once, so this is what bounds it. Each core has a thread that is
pinned to it; those of all cores work at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import perf_counter

import numpy as np

from codl.provenance import provenance
from codl.records.statistic import level

#: Elements of an array: 256 MB.
ELEMENTS = 1 << 26
WORKS = ("read", "copy")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case, about")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    rows = [
        {"work": work, "cores": len(own), "gb_per_s": rate(work, own, args.seconds)}
        for work in WORKS
        for own in ([cores[0]], cores)
    ]
    if args.json:
        print(json.dumps({**provenance(), "rows": rows}, indent=1))
        return
    for row in rows:
        print(f"{row['work']} on {row['cores']} core(s): {row['gb_per_s']:.1f} GB/s")


def rate(work: str, cores: Sequence[int], seconds: float) -> float:
    """GB/s of all cores together; a copy counts what it reads and what it writes."""
    barrier = Barrier(len(cores))
    with ThreadPoolExecutor(len(cores)) as pool:
        found = [pool.submit(_measured, work, core, seconds, barrier) for core in cores]
        return sum(one.result() for one in found)


def _measured(work: str, core: int, seconds: float, barrier: Barrier) -> float:
    """GB/s of one core, while the others work too; NumPy holds no lock meanwhile."""
    os.sched_setaffinity(0, {core})
    source, target = np.ones(ELEMENTS, np.float32), np.ones(ELEMENTS, np.float32)
    works: dict[str, tuple[int, Callable[[], object]]] = {
        "read": (source.nbytes, source.max),
        "copy": (2 * source.nbytes, lambda: np.copyto(target, source)),
    }
    size, run = works[work]
    barrier.wait()
    samples: list[float] = []
    begin = perf_counter()
    while perf_counter() - begin < seconds:
        start = perf_counter()
        run()
        samples.append(perf_counter() - start)
    return 1e-9 * size / level(samples)


if __name__ == "__main__":
    main()
