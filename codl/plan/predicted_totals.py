"""All totals of a waterfall that need no run, from the lossless bound to the predicted latency.

By the names of the terms that end with them; `codl.plan.computing_totals` has the first six:

- `bound`: every op on both processors without loss, 1 / (1 / CPU + 1 / GPU);
- `cuts`: every op by itself at its best cut, whichever processor is slower;
- `steps`: at the best of the ratios that a search tries;
- `chains`: every chain at the best cut for all of its ops, with nothing computed twice;
- `choices`: every chain at the plan's cut, in the plan's kernel variants;
- `halo`: with what both processors compute;
- `fusion`: of the executable's stages in turn, with what running ops together saves;
- `layouts`: with packing, and copies between storages;
- `overlap`: a walk over the executable's commands, in which nobody waits for the end of a stage;
- `sharing`: the walk with data sharing;
- `launches`: the walk with launches;
- `contention`: the walk with what processors slow each other down, which is the price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from codl.ir import Network
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.ir.waterfall import Total
from codl.plan.computing_totals import computing_totals
from codl.plan.cost_model import CostModel
from codl.plan.price import Price, StageTimes, stage_times, walk
from codl.plan.switched_off import without


def predicted_totals(
    network: Network, plan: Plan, executable: Executable, cost: CostModel
) -> list[Total]:
    """The totals of computing, and those of the executable that the plan was lowered to.

    Of the latter all but the first two are walks over its commands, with one term of the cost model
    after the other; the last one is its price. Raises as `computing_totals` does.
    """
    chains = ChainTotals(plan, executable)
    fused = stage_times(executable, without(cost, "packing", "relayouts", "contention"))
    launched = stage_times(executable, without(cost, "contention"))
    shared = [_at_once(own) for own in launched]
    laid = [_for_nothing(own) for own in shared]
    return [
        *computing_totals(network, plan, cost),
        chains.in_turn("fusion", fused),
        chains.in_turn("layouts", laid),
        chains.walked("overlap", walk(executable, laid)),
        chains.walked("sharing", walk(executable, shared)),
        chains.walked("launches", walk(executable, launched)),
        chains.walked("contention", walk(executable, stage_times(executable, cost))),
    ]


def _at_once(times: StageTimes) -> StageTimes:
    """If launches took no time, neither the CPU's nor on their way to the GPU."""
    return replace(times, flushes_ms=(0.0,) * len(times.flushes_ms), first_launch_ms=0.0)


def _for_nothing(times: StageTimes) -> StageTimes:
    """If what one processor has made were there for the other at once."""
    return replace(times, transfers_ms={number: {} for number in times.transfers_ms})


class ChainTotals:
    """Totals of an executable's stages, by the chains of its plan.

    The last entry is of the stage in which the CPU gets the results.
    """

    def __init__(self, plan: Plan, executable: Executable) -> None:
        self._count = len(plan.chains) + 1
        self._stages = _chain_numbers(plan, executable)

    def in_turn(self, name: str, times: Sequence[StageTimes]) -> Total:
        """If no stage began before both processors were done with the one before."""
        return self.total(name, [max(own.works_ms) for own in times])

    def walked(self, name: str, price: Price) -> Total:
        """From the end of one stage to the end of the next, whichever processor is later."""
        return self.ending(name, [max(stage.ends_ms) for stage in price.stages])

    def ending(self, name: str, ends_ms: Sequence[float]) -> Total:
        """Of stages that end at such times since the start."""
        return self.total(name, [end - before for before, end in pairwise([0.0, *ends_ms])])

    def total(self, name: str, stages_ms: Sequence[float]) -> Total:
        """Of stages that take so long; a chain without a stage does nothing."""
        chains_ms = [0.0] * self._count
        for chain, ms in zip(self._stages, stages_ms, strict=True):
            chains_ms[chain] += ms
        return Total(name, tuple(chains_ms))


def _chain_numbers(plan: Plan, executable: Executable) -> list[int]:
    """The number of every stage's chain, by their labels: chains that do nothing have no stage."""
    labels = [chain.label for chain in plan.chains]
    numbers, first = [], 0
    for stage in executable.stages:
        found = labels[first:].index(stage.label) if stage.label in labels[first:] else None
        numbers.append(len(labels) if found is None else first + found)
        first = min(numbers[-1] + 1, len(labels))
    return numbers
