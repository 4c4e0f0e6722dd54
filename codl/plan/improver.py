"""Proposes the next plan of a network to run, from the measured parts of plans that ran.

The improver touches no device. Its caller runs plans and passes the measurements (`observe`). The
improver corrects the cost model and proposes the plan that is then predicted fastest: the best one
with balanced ratios, or a new one from a search.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from codl.ir import Network, Op
from codl.ir.plan import Plan
from codl.ir.types import Processor
from codl.lower import lower
from codl.plan.corrections import Evidence, corrected
from codl.plan.cost_model import CostModel, Factors, Milliseconds
from codl.plan.cpu_libraries import in_each_library
from codl.plan.price import StageTimes, price, stage_times
from codl.plan.profile_feedback import ProfiledTimes
from codl.plan.search import recut, search
from codl.records.profile import PlanRun
from codl.records.soc import Soc

#: A new plan must be predicted to take less than this part of the balanced best plan's latency:
#: predictions of chains that ran are better.
NEW_CHAINS = 0.99
#: Libraries within this factor of the best one are searched again.
PROMISING = 1.1
#: The standard deviation of the random log factors of an exploring proposal.
EXPLORED = 0.15


@dataclass
class Improver:
    """Proposes plans of one network on one SoC.

    `cost` has no corrections, `soc` is the one that plans are lowered for, `strategy` is the name
    in plans, and `method` is the search method.
    """

    network: Network
    cost: CostModel
    soc: Soc
    strategy: str = "codl"
    method: str = "dp"
    runs: dict[str, PlanRun] = field(default_factory=dict)
    _evidence: dict[str, Evidence] = field(default_factory=dict)
    _corrected: CostModel | None = None
    #: The predicted latency of the best plan in each library, from the last searches.
    _found_ms: list[float] = field(default_factory=list)

    def observe(self, runs: Iterable[PlanRun]) -> None:
        """Learn from plans that ran; the last run of a plan counts."""
        for run in runs:
            name = run.plan.fingerprint
            if self.runs.get(name) != run:
                self.runs[name], self._corrected = run, None
                self._evidence[name] = Evidence.of(self.network, run, self.cost, self.soc)

    @property
    def corrected(self) -> CostModel:
        """The cost model with corrections from the runs."""
        if self._corrected is None:
            self._corrected = corrected(self.cost, self._evidence.values())
        return self._corrected

    @property
    def best(self) -> PlanRun | None:
        """The fastest run on both processors, if any."""
        split = (run for run in self.runs.values() if run.plan.is_split)
        return min(split, key=lambda run: run.latency_ms, default=None)

    def proposals(self, tried: Collection[str] = ()) -> Iterator[Plan]:
        """Plans that have not run, the one predicted fastest first.

        `tried` are fingerprints of further plans to skip.
        """
        done = {*self.runs, *tried}
        balanced_ms = inf
        if self.best is not None:
            balanced = self.balanced(self.best.plan)
            if balanced.fingerprint not in done:
                done.add(balanced.fingerprint)
                balanced_ms = balanced.predicted_ms or inf
        found = sorted(self._searched(), key=lambda plan: plan.predicted_ms or inf)
        is_due = balanced_ms < inf
        for plan in found:
            if is_due and (plan.predicted_ms or inf) > NEW_CHAINS * balanced_ms:
                is_due = False
                yield balanced
            if plan.fingerprint not in done:
                done.add(plan.fingerprint)
                yield plan
        if is_due:
            yield balanced

    def balanced(self, plan: Plan) -> Plan:
        """The plan with its ratios moved to where both processors end together.

        Chains and dimensions stay. One step moves ratios a little, so steps repeat until they gain
        nothing.
        """
        moved, before = replace(plan, predicted_ms=None), ""
        while moved.fingerprint != before:
            before, moved = moved.fingerprint, recut(moved, self.network, self.corrected)
        return moved

    def explored(self, seed: int, tried: Collection[str] = ()) -> Plan | None:
        """The best plan under a random error of each variant's predictions; None if it ran."""
        cost = self.corrected
        factors = _Perturbed(cost.corrections, seed)
        plans = self._searched(cost.corrected(factors, cost.stage_ms))
        plan = min(plans, key=lambda plan: plan.predicted_ms or inf)
        return None if plan.fingerprint in {*self.runs, *tried} else plan

    def _searched(self, cost: CostModel | None = None) -> list[Plan]:
        """The best plan with the CPU in each library, and in several.

        Libraries that were not within `PROMISING` of the best one last time are skipped.
        """
        costs = in_each_library(self.network, cost or self.corrected)
        known = self._found_ms if len(self._found_ms) == len(costs) else [0.0] * len(costs)
        limit_ms, plans = PROMISING * min(known), []
        for at, each in enumerate(costs):
            if known[at] <= limit_ms:
                plan = search(self.network, each, self.strategy, method=self.method)
                plans.append(plan)
                known[at] = plan.predicted_ms or 0.0
        self._found_ms = known
        return plans

    def predicted_ms(self, plan: Plan) -> float:
        """The latency of a plan by the corrected cost model, in milliseconds."""
        executable = lower(self.network, plan, self.soc, self.cost.tuning)
        return price(executable, self.corrected).latency_ms

    def imbalance(self, run: PlanRun) -> float:
        """The part of the split stages' time in which one processor waits for the other, 0 to 1."""
        executable = lower(self.network, run.plan, self.soc, self.cost.tuning)
        profiled = ProfiledTimes.of_totals(executable, run.totals)
        return waiting(profiled.with_all(stage_times(executable, self.corrected)))


def waiting(stages: Sequence[StageTimes]) -> float:
    """The part of the time of stages with work on both processors in which one of them waits."""
    both = [stage.works_ms for stage in stages if all(stage.works_ms)]
    longest_ms = sum(max(works) for works in both)
    return sum(max(works) - min(works) for works in both) / longest_ms if longest_ms else 0.0


@dataclass(frozen=True)
class _Perturbed:
    """Correction factors, multiplied with a random factor for each target."""

    factors: Factors | None
    seed: int

    def __call__(self, processor: Processor, target: str, ops: Sequence[Op]) -> Milliseconds:
        known = np.ones(len(ops)) if self.factors is None else self.factors(processor, target, ops)
        key = zlib.crc32(f"{self.seed} {processor} {target}".encode())
        factor = np.exp(EXPLORED * np.random.default_rng(key).standard_normal())
        return np.asarray(factor * known)
