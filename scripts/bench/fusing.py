"""Networks on the GPU side alone, with residual adds in the convolutions' kernels and in their own.

Two engines of every model run in turns in one process, each with every layer on the GPU side in its
default variant. On a device that is a CPU, time is what its threads have had on their core;
on any other it is the clock's.

`share` is what an add still takes inside a convolution, of what its own kernel takes: by the
device's clock, over all pairs of a model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

import numpy as np
from networks import device_clock, in_turns, one_core_each

from codl.engine.engine import Engine
from codl.frontend.convert import load_network
from codl.measure.inputs import random_inputs
from codl.plan.build_plan import default_plan
from codl.provenance import provenance
from codl.records.results import TimeSpan
from codl.records.statistic import level
from codl.targets.connect import connect
from codl.targets.detect import detect
from codl.targets.local import LocalTarget

MODELS = ("resnet50", "mobilenet_v2")
#: Profiles of either engine, in turns; each is the middle one of its runs.
PROFILES = 5


@dataclass(frozen=True)
class Row:
    """Milliseconds with and without fusing."""

    model: str
    adds: int
    fused_ms: float
    apart_ms: float
    ratio: float
    share: float
    rounds: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="names or .onnx files")
    parser.add_argument("--device", help="the OpenCL device, by driver or name")
    parser.add_argument("--batch", type=int, help="images at once")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each model")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    soc = one_core_each(detect(connect("local"), "bench", device=args.device))
    target, rows = LocalTarget(soc), []
    for model in args.models.split(","):
        rows.append(measure(model, target, args.seconds, args.batch))
        if not args.json:
            print(line(rows[-1]), flush=True)
    if args.json:
        content = {**provenance(), "device": soc.gpu.name, "rows": [asdict(row) for row in rows]}
        print(json.dumps(content, indent=1))


def measure(model: str, target: LocalTarget, seconds: float, batch: int | None) -> Row:
    network = load_network(model, batch)
    plan, inputs = default_plan(network, target.soc, "gpu"), random_inputs(network)
    engines = {
        name: Engine(network, plan, target, fuse=name == "fused") for name in ("fused", "apart")
    }
    for engine in engines.values():
        engine.feed(inputs)
    clock = device_clock(target.device) if target.soc.gpu.is_cpu else perf_counter
    samples = in_turns(engines, dict.fromkeys(engines, clock), seconds)
    share = share_of_adds(engines)
    fused = engines["fused"].fused
    for engine in engines.values():
        engine.close()
    ms = {name: level(times) for name, times in samples.items()}
    return Row(
        model=network.name,
        adds=len(fused),
        fused_ms=ms["fused"],
        apart_ms=ms["apart"],
        ratio=ms["fused"] / ms["apart"],
        share=share,
        rounds=len(samples["fused"]),
    )


def share_of_adds(engines: Mapping[str, Engine]) -> float:
    """(convolution with add - convolution) / add, of the sums over all pairs."""
    shares = []
    pairs = engines["fused"].fused
    for _ in range(PROFILES):
        own = {name: by_label(engine.profile()) for name, engine in engines.items()}
        together = sum(own["fused"][label] for label in pairs)
        convolutions = sum(own["apart"][first] for first, _ in pairs.values())
        adds = sum(own["apart"][second] for _, second in pairs.values())
        shares.append((together - convolutions) / adds)
    return float(np.median(shares))


def by_label(spans: Sequence[TimeSpan]) -> dict[str, float]:
    found: dict[str, float] = {}
    for span in spans:
        if span.kind == "kernel":
            found[span.label] = found.get(span.label, 0.0) + span.end_ms - span.start_ms
    return found


def line(row: Row) -> str:
    return (
        f"{row.model:14s} {row.adds:2d} adds   fused {row.fused_ms:8.3f} ms   "
        f"apart {row.apart_ms:8.3f} ms   ratio {row.ratio:.3f}   share of an add {row.share:.2f}   "
        f"{row.rounds} rounds"
    )


if __name__ == "__main__":
    main()
