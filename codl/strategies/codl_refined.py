"""`codl-refined`: profile-guided `codl`: plans run, and their profiles correct predictions.

A predictor knows single ops, not what they take between their neighbours in a network while the
other processor works. So each processor alone and the predicted plan run on the device, the profile
of every net and kernel corrects the predictions, and the search runs again, a few times. Plans are
compared by runs in turns, and the fastest is kept. One processor alone is among them, so a split
that does not pay on this device is never kept.

All of that has a budget of seconds, `Context.budget_s`. Where it is over, the best so far is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from codl.engine.engine import Engine
from codl.errors import DeviceError, UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS
from codl.measure.budget import Budget
from codl.measure.inputs import random_inputs
from codl.measure.timing import Effort
from codl.plan.build_plan import one_processor, unless_alone
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.profile_feedback import OpRatio, ProfileCorrections, op_ratios
from codl.plan.search import search
from codl.predict import DEFAULT
from codl.runtime.loaded import totals_ms
from codl.runtime.placement import check_measured
from codl.strategies.base import Context, strategy
from codl.targets.base import Target

NAME = "codl-refined"
#: Searches with corrections at the most, and how many in turn may find nothing faster.
ROUNDS, PATIENCE = 8, 2
#: How long two plans are compared, and at the end the best one with its rival.
DUEL = Effort(min_rounds=3, min_seconds=2.0)
FINAL = Effort(min_rounds=5, min_seconds=3.0)
#: The most of the budget that one comparison takes, and the one at the end, which is kept free.
DUEL_PART, FINAL_PART = 0.1, 0.2
#: The least runs of a turn, the cold one included.
LEAST_RUNS = 2
#: Runs of a plan that are profiled, at most and at least.
PROFILED, LEAST_PROFILED = 7, 2
#: Runs before a plan is profiled: the first ones allocate and fault pages in.
WARM_UP = 2
#: Two processors must take less than this part of what one takes alone: other programs hit a plan
#: on both more often, and a gain smaller than that is not worth a second processor.
WORTH = 0.97


@strategy(NAME, runs_plans=True)
def codl_refined(network: Network, context: Context) -> Plan:
    """Takes some seconds, and hardly more than the context's budget.

    Raises `UnsupportedError` where plans cannot run, or are to be best in something else.
    """
    if not context.objective.is_latency:
        raise UnsupportedError(
            f"{NAME} compares how long plans take, and knows neither the objective "
            f"{context.objective.goal!r} nor a memory limit: plan with `codl`."
        )
    check_measured(context.soc)
    cost = covered(context.cost(DEFAULT), network)
    budget = Budget(context.budget_s, context.clock)
    with PlanTrials(network, cost, context.device, budget, context.note) as trials:
        plans = [one_processor(network, cost, side, strategy=NAME) for side in PROCESSORS]
        # Each processor alone, the one that is predicted to be faster first.
        singles = sorted(plans, key=lambda plan: plan.predicted_ms or 0.0)
        with budget.keeping(trials):
            _refine(network, cost, trials, budget, singles, context.method)
        if budget.ended == "interrupted":
            context.note("Interrupted: the best plan so far is taken.")
            return trials.result(())
        return trials.result(singles)


def _refine(
    network: Network,
    cost: CostModel,
    trials: PlanTrials,
    budget: Budget,
    singles: Sequence[Plan],
    method: str,
) -> None:
    """Run the plan that is found, and those that are found by what ran, while there is time."""
    predicted = search(network, cost, NAME, method=method)
    for plan in (unless_alone(predicted, network, cost), *singles, predicted):
        if budget.has_time(keep=FINAL_PART) and not trials.has_run(plan):
            trials.run(plan)
    losses = 0
    for _ in range(ROUNDS):
        if not budget.has_time(keep=FINAL_PART):
            break
        corrected = cost.corrected(ProfileCorrections(trials.samples).factors)
        plan = search(network, corrected, NAME, method=method)
        if trials.has_run(plan):
            break
        losses = 0 if trials.run(plan) else losses + 1
        if losses == PATIENCE:
            break


def within(effort: Effort, seconds: float, round_s: float) -> Effort:
    """As much of an effort as takes `seconds`, where everybody's run takes `round_s` in all.

    At least one round of `LEAST_RUNS`.
    """
    runs = seconds / max(round_s, 1e-9)
    rounds = min(effort.min_rounds, max(1, int(runs / effort.turn)))
    warm = min(effort.warm, max(LEAST_RUNS, int(runs)) - 1)
    return Effort(min_rounds=rounds, min_seconds=min(effort.min_seconds, seconds), warm=warm)


@dataclass(frozen=True)
class ReadyPlan:
    """A plan that is ready to run; one run takes about `run_s` seconds."""

    engine: Engine
    run_s: float


class PlanTrials:
    """Plans that run on the device, what they say of predictions, and the fastest of them."""

    def __init__(
        self,
        network: Network,
        cost: CostModel,
        target: Target,
        budget: Budget,
        note: Callable[[str], None],
    ) -> None:
        self.samples: list[OpRatio] = []
        self._network, self._cost, self._note = network, cost, note
        self._target, self._budget = target, budget
        #: Seconds until a plan was ready to run, at most.
        self._ready_s = 0.0
        #: Those that ran, and what each took when it was last compared.
        self._plans: dict[str, Plan] = {}
        self._latency_ms: dict[str, float] = {}
        self._best: ReadyPlan | None = None

    def __enter__(self) -> PlanTrials:
        return self

    def __exit__(self, *error: object) -> None:
        if self._best is not None:
            self._best.engine.close()

    @property
    def best(self) -> Plan:
        """The fastest so far."""
        assert self._best is not None
        return self._best.engine.plan

    def __len__(self) -> int:
        """The plans of which the best is known: none before the first one ran."""
        return len(self._plans) if self._best is not None else 0

    def has_run(self, plan: Plan) -> bool:
        return _key(plan) in self._plans

    def run(self, plan: Plan) -> bool:
        """Whether a plan is faster than all before it."""
        self._plans[_key(plan)] = plan
        new = self._candidate(plan)
        share_s = DUEL_PART * self._budget.limit_s
        runs = max(LEAST_PROFILED, min(PROFILED, int(share_s / max(new.run_s, 1e-9))))
        self.samples += observe(new.engine, self._cost, runs)
        return self._is_best(new, DUEL, share_s)

    def result(self, singles: Sequence[Plan]) -> Plan:
        """The fastest, compared once more with its rival where there is time.

        The rival of a plan on both processors is the faster one alone, and the other way round:
        what lost while the machine was disturbed has a second look.
        """
        alone = {_key(plan) for plan in singles}
        is_alone = _key(self.best) in alone
        rivals = [key for key in self._plans if (key in alone) != is_alone]
        if rivals and self._budget.left_s > self._ready_s:
            key = min(rivals, key=lambda key: self._latency_ms.get(key, inf))
            rival, best = self._candidate(self._plans[key]), self._best
            share_s = min(FINAL_PART * self._budget.limit_s, self._budget.left_s)
            # Where a round fits in what is left.
            if best is not None and share_s >= LEAST_RUNS * (best.run_s + rival.run_s):
                self._is_best(rival, FINAL, share_s, worth=1 / WORTH if is_alone else WORTH)
            else:
                rival.engine.close()
        took = f"{self._budget.spent_s:.0f} of {self._budget.limit_s:g} s"
        method = f"{self.best.method}, refined by {len(self._plans)} plans that ran in {took}"
        return replace(self.best, method=method)

    def _candidate(self, plan: Plan) -> ReadyPlan:
        begin, run_s = self._budget.spent_s, 0.0
        engine = Engine(self._network, plan, self._target, self._cost.tuning)
        engine.feed(random_inputs(self._network))
        for _ in range(WARM_UP):
            start = self._budget.spent_s
            engine.run()
            run_s = self._budget.spent_s - start
        self._ready_s = max(self._ready_s, self._budget.spent_s - begin)
        return ReadyPlan(engine, run_s)

    def _is_best(
        self, new: ReadyPlan, effort: Effort, share_s: float, *, worth: float = 1.0
    ) -> bool:
        """Compare with the best one, for at most `share_s` seconds, and keep the faster of the two.

        The best one must take less than `worth` of what the new one takes to stay.
        """
        if self._best is None:
            self._best = new
            return True
        best = self._best
        both = {"best": best.engine.loaded, "new": new.engine.loaded}
        times = self._target.time(both, within(effort, share_s, best.run_s + new.run_s))
        for reason in times.failed.values():
            raise DeviceError(reason)
        new_ms, best_ms = times.latency_ms["new"].level, times.latency_ms["best"].level
        self._latency_ms[_key(new.engine.plan)] = new_ms
        self._latency_ms[_key(best.engine.plan)] = best_ms
        chains = new.engine.plan.chains
        split = sum(0 < chain.gpu_ratio < 1 for chain in chains)
        self._note(
            f"{self._network.name}: plan {len(self._plans)}, {len(chains)} chains, {split} of them "
            f"split, takes {new_ms:.2f} ms, the best before {best_ms:.2f} ms "
            f"({self._budget.spent_s:.0f} of {self._budget.limit_s:g} s)"
        )
        faster = worth * new_ms < best_ms
        loser, self._best = (best, new) if faster else (new, best)
        loser.engine.close()
        return faster


def observe(engine: Engine, cost: CostModel, runs: int) -> list[OpRatio]:
    """Run an engine on what it was fed, and compare each net and kernel with its prediction."""
    profiles = [totals_ms(engine.profile(1)) for _ in range(runs)]
    return op_ratios(engine.executable, profiles, cost)


def _key(plan: Plan) -> str:
    """Tells plans apart that run something else."""
    return repr((plan.chains, plan.sums))
