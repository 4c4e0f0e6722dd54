"""What the engine takes for an op that computes next to nothing: a net of many of them.

    python scripts/bench/overhead.py --soc host [--ops 60]

Poolings of one element over 16 channels of one pixel, in a row, on the CPU, on the GPU, and every
second one on each, in turns; microseconds an op.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from time import perf_counter

from codl.engine.engine import Engine
from codl.ir import Layer, Network, Shape
from codl.ir.types import PROCESSORS
from codl.measure.exchanges import TINY
from codl.plan.build_plan import default_plan
from codl.records.statistic import level
from codl.targets.detect import load_local
from codl.targets.local import LocalTarget

ROUNDS, WARM_UP = 400, 50


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--ops", type=int, default=60)
    options = parser.parse_args()
    soc, network = load_local(options.soc), in_a_row(options.ops)
    cpu, gpu = (default_plan(network, soc, side, chained=False).chains for side in PROCESSORS)
    plans = {
        "CPU": default_plan(network, soc, "cpu"),
        "GPU": default_plan(network, soc, "gpu"),
        "by turns, with a transfer each": replace(
            default_plan(network, soc, "cpu"),
            chains=tuple((cpu, gpu)[at % 2][at] for at in range(options.ops)),
        ),
    }
    target = LocalTarget(soc)
    engines = {way: Engine(network, plan, target) for way, plan in plans.items()}
    samples: dict[str, list[float]] = {way: [] for way in engines}
    for turn in range(WARM_UP + ROUNDS):
        for way, engine in engines.items():
            start = perf_counter()
            engine.run()
            if turn >= WARM_UP:
                samples[way].append(perf_counter() - start)
    for way, own in samples.items():
        print(f"{way}: {1e6 * level(own) / options.ops:.2f} us an op")


def in_a_row(count: int) -> Network:
    shape = Shape(*TINY.output)
    layers = [
        Layer(f"op{i}", TINY, ("input" if i == 0 else f"t{i - 1}",), f"t{i}", {})
        for i in range(count)
    ]
    return Network(
        "tiny", tuple(layers), {"input": shape}, {"output": (f"t{count - 1}", tuple(shape))}
    )


if __name__ == "__main__":
    main()
