"""The wave size of an OpenCL device, measured, and the staircase that it was read from.

    python scripts/bench/wave_size.py [--serial local] [--device nvidia] [--times 2]

A line for each number of work-items up to twice the wave, and a bar of its latency; then the wave
size, as often as it was asked for.
"""

from __future__ import annotations

import argparse
from contextlib import closing

from codl.measure.facts.fact import Fact
from codl.runtime.detect import choose
from codl.targets.connect import connect

BAR = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--serial", default="local")
    parser.add_argument("--device", help="a driver or device name of `codl devices`")
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    with closing(connect(options.serial)) as target:
        device = choose(target.probe(), options.device)
        print(f"{device.name}, {device.driver}; preferred multiple: {device.wave_size}")
        for _ in range(options.times):
            (fact,) = target.measure_facts(device.icd, device.name, ["gpu.wave_size"])
            show(fact)


def show(fact: Fact) -> None:
    most = 2 * fact.value if isinstance(fact.value, int) else len(fact.points)
    highest = max((point.latency.level for point in fact.points), default=1.0)
    for point in fact.points:
        if point.size <= most or point.size % 16 == 0:
            bar = "#" * round(BAR * point.latency.level / highest)
            print(f"{point.size:4} work-items {1e3 * point.latency.level:9.2f} us {bar}")
    print(f"wave size: {fact.value} ({fact.reason})", flush=True)


if __name__ == "__main__":
    main()
