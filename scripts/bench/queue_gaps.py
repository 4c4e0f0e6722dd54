"""How long a plan leaves the GPU's queue empty, and how much of that lowering could avoid.

    python scripts/bench/queue_gaps.py --soc epyc2 [--models mobilenet_v1,resnet50]

The CPU enqueues the GPU's shard of a chain once it is done with its own shard of the chain before.
Where the GPU is done sooner, its queue is empty until then: needlessly where the shard needs
nothing that the CPU has. By the price of each plan's executable, stage by stage; no device is used.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from codl.frontend.convert import load_network
from codl.ir.network import Network
from codl.lower import lower
from codl.lower.partition import partition_plan
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.price import price
from codl.plan.search import search
from codl.predict import DEFAULT
from codl.records import soc as socs
from codl.records.soc import Soc
from codl.strategies import Context

MODELS = "mobilenet_v1,mobilenet_v2,resnet50,resnet50_v2,yolov2,posenet"


@dataclass(frozen=True)
class Gap:
    """Milliseconds for which the queue is empty before a stage, and whether for nothing."""

    ms: float
    is_needless: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default=MODELS)
    options = parser.parse_args()
    soc = socs.load(options.soc)
    cost = Context.of(soc).cost(DEFAULT)
    print(f"{'model':20} {'predicted':>10} {'empty':>9} {'needlessly':>11}  (ms)")
    for name in options.models.split(","):
        network = load_network(name)
        latency_ms, gaps = gaps_of(network, soc, covered(cost, network))
        empty_ms = sum(gap.ms for gap in gaps)
        needless = [gap.ms for gap in gaps if gap.is_needless and gap.ms > 0]
        share = 100 * sum(needless) / latency_ms
        print(
            f"{name:20} {latency_ms:10.3f} {empty_ms:9.3f} {sum(needless):11.3f}  "
            f"{share:.2f} %, {len(needless)} stages",
            flush=True,
        )


def gaps_of(network: Network, soc: Soc, cost: CostModel) -> tuple[float, list[Gap]]:
    """The latency of the plan that is searched, and the gaps before its stages."""
    plan = search(network, cost, "codl")
    priced = price(lower(network, plan, soc, cost.tuning), cost)
    ends = {stage.times.label: stage.ends_ms for stage in priced.stages}

    def found() -> Iterator[Gap]:
        for before, segment in pairwise(partition_plan(network, plan, soc).segments):
            if segment.gpu.parts and before.chain.label in ends:
                cpu, gpu = ends[before.chain.label]
                needs = any(move.direction == "to_gpu" for move in segment.transfers)
                yield Gap(max(0.0, cpu - gpu), not needs)

    return priced.latency_ms, list(found())


if __name__ == "__main__":
    main()
