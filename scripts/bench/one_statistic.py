"""How far the same ops differ when they are measured again and again, by several statistics.

    python scripts/bench/one_statistic.py --soc host [--batches 10] [--seconds 6] [--json]

Five ops on either processor are measured in batches as a collection does it, with its anchors.
Every batch builds them anew and gives each a latency by each statistic, of the very same samples.
Printed is the 90th percentile of a latency over batches over its 10th: 1 where nothing moves.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from codl.ir import parse, statistic, to_text
from codl.ir.types import PROCESSORS, Processor
from codl.measure import drift, timing
from codl.measure.drift import Anchors
from codl.measure.runner import Bench, Prepared
from codl.measure.tasks import OpTask, op_tasks
from codl.measure.timing import WHOLE, Rounds
from codl.provenance import provenance
from codl.runtime.opencl import OpenClDevice
from codl.targets.detect import load_local

OPS = (
    "conv2d in=1x64x56x56 oc=64 kernel=3x3 pad=1",
    "conv2d in=1x256x14x14 oc=256 kernel=1x1",
    "conv2d in=1x512x7x7 oc=512 kernel=3x3 pad=1",
    "fc in=1x2048x1x1 oc=1000",
    "pooling in=1x64x112x112 kernel=2x2 stride=2x2",
)
#: What was used before for ops, and for whole models, and what is used now.
STATISTICS = ("three fastest", "median", "20th percentile", "drift divided out")
Key = tuple[str, Processor]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    gpu = OpenClDevice(load_local(options.soc))
    bench = Bench(gpu, "", replace(Rounds(), span_s=options.seconds))
    known = Anchors()
    found: dict[Key, dict[str, list[float]]] = {}
    for _ in range(options.batches):
        for key, levels in batch(bench, known).items():
            own = found.setdefault(key, {name: [] for name in STATISTICS})
            for name in STATISTICS:
                own[name].append(levels[name])
    spreads = {key: {n: spread(ms) for n, ms in own.items()} for key, own in found.items()}
    if options.json:
        rows = [{"op": op, "processor": side, **own} for (op, side), own in spreads.items()]
        print(json.dumps({**provenance(), "rows": rows}, indent=1))
        return
    print(f"{'':58}" + "".join(f"{name:>20}" for name in STATISTICS))
    for (op, side), each in spreads.items():
        print(f"{side} {op:54}" + "".join(f"{each[name]:20.3f}" for name in STATISTICS))
    means = (np.exp(np.mean([np.log(own[n]) for own in spreads.values()])) for n in STATISTICS)
    print(f"{'geometric mean':58}" + "".join(f"{mean:20.3f}" for mean in means))


def batch(bench: Bench, known: Anchors) -> dict[Key, dict[str, float]]:
    """Milliseconds of every op, by each statistic; `known` gets the levels of the anchors."""
    tasks = [op_tasks(parse(op), side, bench.soc, [1.0])[0] for op in OPS for side in PROCESSORS]
    ready = [one for task in tasks if isinstance(one := bench.prepare(task), Prepared)]
    anchors = drift.prepare(bench)
    timing.measure([one.timed for one in (*anchors, *ready)], bench.rounds)
    drifts = {side: drift.drift_of(anchors, side, known.reference_ms) for side in PROCESSORS}
    quiet = {side: own.scatter <= known.tolerance[side] for side, own in drifts.items()}
    known.add([drift.row_of(anchor) for anchor in anchors])
    factors = {side: own.factor if quiet[side] else 1.0 for side, own in drifts.items()}
    return {key_of(one): levels(one, factors) for one in ready}


def levels(one: Prepared, factors: Mapping[Processor, float]) -> dict[str, float]:
    samples = 1e3 * np.array(one.timed.found[WHOLE])
    return {
        "three fastest": float(np.mean(np.sort(samples)[:3])),
        "median": float(np.median(samples)),
        "20th percentile": statistic.level(samples),
        "drift divided out": statistic.level(samples, factors[key_of(one)[1]]),
    }


def key_of(one: Prepared) -> Key:
    assert isinstance(one.task, OpTask)
    return to_text(one.task.op), one.task.processor


def spread(latencies_ms: Sequence[float]) -> float:
    low, high = np.percentile(latencies_ms, (10, 90))
    return float(high / low)


if __name__ == "__main__":
    main()
