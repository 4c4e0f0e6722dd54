"""`codl-refined`: profile-guided `codl`: plans run, and their profiles correct predictions.

A predictor knows single ops, not what they take between their neighbours in a network while the
other processor works. So each processor alone and the predicted plan run on the device, the profile
of every net and kernel corrects the predictions, and the search runs again, a few times. Plans are
compared by runs in turns, and the fastest is kept. One processor alone is among them, so a split
that does not pay on this device is never kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from codl.errors import DeviceError, UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS
from codl.measure.inputs import random_inputs
from codl.measure.interleave import Effort
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.profile_feedback import OpRatio, ProfileCorrections, op_ratios
from codl.plan.search import search
from codl.plan.single_processor import one_processor
from codl.predict.names import DEFAULT
from codl.runtime.engine import Engine
from codl.runtime.profiler import totals_ms
from codl.strategies.base import Context, strategy
from codl.targets.base import Target

NAME = "codl-refined"
#: Searches with corrections at the most, and how many in turn may find nothing faster.
ROUNDS, PATIENCE = 8, 2
#: How long two plans are compared, and at the end the best one with one processor alone.
DUEL = Effort(min_rounds=3, min_seconds=2.0)
FINAL = Effort(min_rounds=5, min_seconds=3.0)
#: Runs before a plan is profiled: the first ones allocate and fault pages in.
WARM_UP = 2
#: Two processors must take less than this part of what one takes alone: other programs hit a plan
#: on both more often, and a gain smaller than that is not worth a second processor.
WORTH = 0.97


@strategy(NAME, runs_plans=True)
def codl_refined(network: Network, context: Context) -> Plan:
    """Takes some seconds, and about a minute where an inference takes half a second.

    Raises `UnsupportedError` where plans cannot run, or are to be best in something else.
    """
    if not context.objective.is_latency:
        raise UnsupportedError(
            f"{NAME} compares how long plans take, and knows neither the objective "
            f"{context.objective.goal!r} nor a memory limit: plan with `codl`."
        )
    cost = covered(context.cost(DEFAULT), network)
    with Trials(network, cost, context.device, context.note) as trials:
        for processor in PROCESSORS:
            trials.run(one_processor(network, cost, processor, strategy=NAME))
        single = trials.best
        trials.run(search(network, cost, NAME, method=context.method))
        losses = 0
        for _ in range(ROUNDS):
            corrected = cost.corrected(ProfileCorrections(trials.samples))
            plan = search(network, corrected, NAME, method=context.method)
            if trials.has_run(plan):
                break
            losses = 0 if trials.run(plan) else losses + 1
            if losses == PATIENCE:
                break
        return trials.result(single)


class Trials:
    """Plans that run on the device, what they say of predictions, and the fastest of them."""

    def __init__(
        self, network: Network, cost: CostModel, target: Target, note: Callable[[str], None]
    ) -> None:
        self.samples: list[OpRatio] = []
        self._network, self._cost, self._note = network, cost, note
        self._target = target
        self._run: set[str] = set()
        self._best: Engine | None = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *error: object) -> None:
        if self._best is not None:
            self._best.close()

    @property
    def best(self) -> Plan:
        """The fastest so far."""
        assert self._best is not None
        return self._best.plan

    def has_run(self, plan: Plan) -> bool:
        return repr(plan.chains) in self._run

    def run(self, plan: Plan) -> bool:
        """Whether a plan is faster than all before it."""
        self._run.add(repr(plan.chains))
        engine = self._engine(plan)
        self.samples += observe(engine, self._cost)
        return self._is_best(engine, DUEL)

    def result(self, single: Plan) -> Plan:
        """The fastest, compared once more with one processor alone."""
        if self.best is not single:
            self._is_best(self._engine(single), FINAL, worth=WORTH)
        count = len(self._run)
        return replace(self.best, method=f"{self.best.method}, refined by {count} plans that ran")

    def _engine(self, plan: Plan) -> Engine:
        cost = self._cost
        engine = Engine(self._network, plan, self._target, cost.tuning)
        engine.feed(random_inputs(self._network))
        for _ in range(WARM_UP):
            engine.run()
        return engine

    def _is_best(self, new: Engine, effort: Effort, *, worth: float = 1.0) -> bool:
        """Compare an engine with the best one, and keep the faster of the two.

        The best one must take less than `worth` of what the new one takes to stay. By the fifth of
        runs that is fastest: what other programs do to a plan on two processors and to one on a
        single processor differs, and is neither's doing.
        """
        if self._best is None:
            self._best = new
            return True
        both = {"best": self._best.loaded, "new": new.loaded}
        times = self._target.time(both, effort)
        for reason in times.failed.values():
            raise DeviceError(reason)
        new_ms, best_ms = times.latency_ms["new"].p20, times.latency_ms["best"].p20
        self._note(
            f"{self._network.name}: plan {len(self._run)}, {_summary(new.plan)}, takes "
            f"{new_ms:.2f} ms, the best before {best_ms:.2f} ms"
        )
        faster = worth * new_ms < best_ms
        loser, self._best = (self._best, new) if faster else (new, self._best)
        loser.close()
        return faster


def observe(engine: Engine, cost: CostModel, runs: int = 7) -> list[OpRatio]:
    """Run an engine on what it was fed, and compare each net and kernel with its prediction."""
    profiles = [totals_ms(engine.profile(1)) for _ in range(runs)]
    return op_ratios(engine.executable, profiles, cost)


def _summary(plan: Plan) -> str:
    split = sum(0 < chain.gpu_ratio < 1 for chain in plan.chains)
    return f"{len(plan.chains)} chains, {split} of them split"
