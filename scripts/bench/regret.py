"""Regret of chosen splits: ops run co-executed at every ratio, against the ratio that codl picks.

Every op runs as a network of one op, its input and its output on the CPU, at every tenth along each
dimension and at the ratio chosen, in turns, each after --warm-up runs that are not timed: without
them it finds in the caches what all the others left. The best ratio is found in one half of the
rounds; both it and the chosen one are timed in the other half, so that the best is not merely the
luckiest.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from codl.engine.engine import Engine
from codl.ir import Dim, Layer, Network, Op, to_text
from codl.measure.tasks import load_ops
from codl.plan.cost_model import CostModel
from codl.plan.greedy import ChainSearch
from codl.predict import DEFAULT, FOLDER
from codl.provenance import provenance
from codl.records.statistic import level
from codl.strategies import Context
from codl.targets.detect import load_local
from codl.targets.local import LocalTarget

MODELS = "mobilenet_v2,resnet50,vgg16,yolov2"
SEED = 11


@dataclass(frozen=True)
class Row:
    """One op: the chosen split, the best measured one, and the latency of each in milliseconds."""

    op: str
    chosen: str
    best: str
    chosen_ms: float
    best_ms: float
    predicted_ms: float
    regret: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default=MODELS, help="whose ops, names or .onnx files")
    parser.add_argument("--ops", type=int, default=30, help="so many of them, at random")
    parser.add_argument("--seed", type=int, default=SEED, help="which ops")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--predictor", default=DEFAULT)
    parser.add_argument("--predictors", type=Path, default=FOLDER)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    soc = load_local(arguments.soc)
    context = Context.of(soc, predictors_folder=arguments.predictors)
    cost = context.cost(arguments.predictor)
    splittable = [op for op in load_ops(arguments.models.split(",")) if op.dims]
    ops = random.Random(arguments.seed).sample(splittable, min(arguments.ops, len(splittable)))
    target = LocalTarget(soc)
    rows = [measured(op, target, cost, arguments) for op in ops]
    regrets = np.array([row.regret for row in rows])
    summary = {
        "ops": len(rows),
        "mean": float(regrets.mean()),
        "p95": float(np.percentile(regrets, 95)),
        "predicted_within_10": float(
            np.mean([abs(r.predicted_ms / r.chosen_ms - 1) <= 0.1 for r in rows])
        ),
    }
    if arguments.json:
        content = {"rows": [asdict(row) for row in rows], "summary": summary}
        print(json.dumps({**provenance(), "soc": soc.name, **content}, indent=1))
        return
    for row in sorted(rows, key=lambda row: -row.regret):
        print(
            f"{100 * row.regret:6.1f} %  {row.chosen:>8} {row.chosen_ms:8.3f} ms, best "
            f"{row.best:>8} {row.best_ms:8.3f} ms, predicted {row.predicted_ms:8.3f}  {row.op}"
        )
    print(f"regret: mean {100 * summary['mean']:.2f} %, p95 {100 * summary['p95']:.2f} %")


def network_of(op: Op) -> Network:
    """A network of one op with small random weights."""
    random_numbers = np.random.default_rng(SEED)
    weights = op.weights_of(
        lambda shape: np.float32(0.1) * random_numbers.standard_normal(shape, np.float32)
    )
    inputs = {f"input{i}": shape for i, shape in enumerate(op.inputs)}
    layer = Layer("op", op, tuple(inputs), "output", weights)
    return Network("one op", (layer,), inputs, {"output": ("output", tuple(op.output))})


def measured(op: Op, target: LocalTarget, cost: CostModel, arguments: argparse.Namespace) -> Row:
    network = network_of(op)
    search = ChainSearch(network, cost)
    layers = network.layers
    pick = search.best(layers).chain
    cuts: list[tuple[Dim, float]] = [("H", 0.0), ("H", 1.0), (pick.dim, pick.gpu_ratio)]
    cuts += [(dim, tenth / 10) for dim in op.dims for tenth in range(1, 10)]
    plans = {}
    for dim, ratio in dict.fromkeys(cuts):
        plans[label(dim, ratio)] = search.plan("regret", [search.at(layers, dim, ratio)])
    engines = {
        name: Engine(network, replace(plan, strategy=name), target, cost.tuning)
        for name, plan in plans.items()
    }
    samples = run(engines, rounds=arguments.rounds, warm_up=arguments.warm_up)
    levels = [{name: level(own[half::2]) for name, own in samples.items()} for half in (0, 1)]
    best, chosen = min(levels[0], key=lambda n: levels[0][n]), label(pick.dim, pick.gpu_ratio)
    chosen_ms, best_ms = levels[1][chosen], levels[1][best]
    return Row(
        op=to_text(op),
        chosen=chosen,
        best=best,
        chosen_ms=chosen_ms,
        best_ms=best_ms,
        predicted_ms=float(plans[chosen].predicted_ms or 0.0),
        regret=chosen_ms / best_ms - 1,
    )


def label(dim: str, ratio: float) -> str:
    return {0.0: "cpu", 1.0: "gpu"}.get(ratio, f"{dim} {ratio:.2f}")


def run(engines: Mapping[str, Engine], *, rounds: int, warm_up: int) -> dict[str, Sequence[float]]:
    """Milliseconds of every plan in every round; each round in another order."""
    samples: dict[str, list[float]] = {name: [] for name in engines}
    order = list(engines)
    for turn in range(rounds + 2):
        random.Random(turn).shuffle(order)
        for name in order:
            for _ in range(warm_up):
                engines[name].run()
            start = perf_counter()
            engines[name].run()
            if turn >= 2:
                samples[name].append(1e3 * (perf_counter() - start))
    for engine in engines.values():
        engine.close()
    return {name: tuple(own) for name, own in samples.items()}


if __name__ == "__main__":
    main()
