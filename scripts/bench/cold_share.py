"""Which part of what ops take longer cold a network takes: `COLD_INSIDE` of the cost model.

    python scripts/bench/cold_share.py --soc host [--models alexnet,mobilenet_v1,resnet50_v2]

Every network runs on each processor alone, all in turns. Its latency lies between the sum of its
ops' predicted latencies warm, a share of 0, and cold, 1. Use networks that nothing is reported of.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from time import perf_counter

import codl
from codl.ir.statistic import level
from codl.ir.types import PROCESSORS, Processor
from codl.measure.inputs import random_inputs
from codl.plan import cost_model
from codl.plan.cost_model import CostModel
from codl.plan.price import price
from codl.predict.model_set import load
from codl.predict.names import DEFAULT, FOLDER
from codl.runtime.engine import Engine
from codl.targets.detect import load_local

MODELS, ROUNDS = "alexnet,mobilenet_v1,resnet50_v2", 14


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default=MODELS)
    options = parser.parse_args()
    soc = load_local(options.soc)
    engines: dict[tuple[str, Processor], Engine] = {}
    for model in options.models.split(","):
        for side in PROCESSORS:
            engine = codl.compile(model, soc=options.soc, strategy=side)
            engine.feed(random_inputs(engine.network))
            engines[model, side] = engine
    taken = in_turns(engines)
    predictors = load(soc, DEFAULT, FOLDER)
    for (model, side), engine in engines.items():
        sums = []
        for share in (0.0, 1.0):
            cost_model.COLD_INSIDE = dict.fromkeys(PROCESSORS, share)
            sums.append(predicted_ms(engine, side, CostModel(soc, predictors)))
        warm, cold = sums
        share = (taken[model, side] - warm) / (cold - warm)
        print(
            f"{model} {side}: {taken[model, side]:.2f} ms, predicted warm {warm:.2f}, "
            f"cold {cold:.2f}: a share of {share:.2f}"
        )


def in_turns(engines: Mapping[tuple[str, Processor], Engine]) -> dict[tuple[str, Processor], float]:
    """Milliseconds; every timed run comes after two that are not timed."""
    samples: dict[tuple[str, Processor], list[float]] = {key: [] for key in engines}
    for _ in range(ROUNDS):
        for key, engine in engines.items():
            engine.run()
            engine.run()
            start = perf_counter()
            engine.run()
            samples[key].append(perf_counter() - start)
    return {key: 1e3 * level(own) for key, own in samples.items()}


def predicted_ms(engine: Engine, side: Processor, cost: CostModel) -> float:
    """The shards of one processor, without sharing."""
    stages = price(engine.executable, cost).stages
    return sum(stage.times.alone_ms[PROCESSORS.index(side)] for stage in stages)


if __name__ == "__main__":
    main()
