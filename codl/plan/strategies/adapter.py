"""Adapts the plan of a serving engine where one processor waits for the other.

One inference is profiled now and then. If the processors end split stages apart in two successive
profiles, the improver rebalances the ratios of the running plan, by the latest runs only: older
runs are no evidence for a processor that became slower. Both plans are timed in turns, and the
faster one is kept. Kernel variants stay, because their outputs were checked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.ir import Network
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.ir.records.results import Adaptation, PlanChange
from codl.plan.corrections import Improver, waiting
from codl.plan.coverage import covered
from codl.plan.price import ProfiledTimes, StageTimes, stage_times
from codl.plan.strategies.base import Context
from codl.plan.strategies.device_loop import ObservedParts, comparing
from codl.predict import DEFAULT
from codl.runtime.loaded import totals_ms

#: Inferences before the first profile, and the most between two profiles; pauses double.
FIRST, MOST = 10, 800
#: Plans change if one processor waits for more than this part of the split stages' time.
APART = 0.1
#: After a plan did not pay, another is tried once a processor's time changed by this part.
CHANGED = 0.1
#: A new plan must take less than this part of the running plan's latency.
WORTH = 0.98
#: Profiles of the running plan for the improver, each with and without the layers of nets.
PROFILED = 3
#: The largest distance of two plans' outputs, relative to their norm.
CLOSE = 0.02
#: The most recorded changes.
REMEMBERED = 256


@dataclass
class PlanAdapter:
    """Adapts an engine of a network on the context's target."""

    context: Context
    network: Network
    runs: int = 0
    changes: deque[PlanChange] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _next: int = FIRST
    _pause: int = FIRST
    #: True where one processor waited in the last profile.
    _waited: bool = False
    #: Milliseconds of each processor when the last plan did not pay.
    _unpaid_ms: tuple[float, float] | None = None
    #: The last profiled executable, and the predicted times of its stages.
    _predicted: tuple[Executable, Sequence[StageTimes]] | None = None

    def __post_init__(self) -> None:
        self._cost = covered(self.context.cost(DEFAULT), self.network)

    @property
    def adaptation(self) -> Adaptation:
        return Adaptation(self.runs, tuple(self.changes))

    def after_run(self, engine: Engine) -> None:
        """Count an inference, and profile the next if due; plans of one processor stay."""
        self.runs += 1
        if self.runs < self._next or not engine.plan.is_split:
            return
        stages = self._measured(engine)
        cpu_ms, gpu_ms = (sum(ms) for ms in zip(*(s.works_ms for s in stages), strict=True))
        then_ms, now_ms = self._unpaid_ms, (cpu_ms, gpu_ms)
        is_unpaid = then_ms is not None and np.allclose(now_ms, then_ms, rtol=CHANGED, atol=0)
        waits = waiting(stages) > APART and not is_unpaid
        if waits and not self._waited:
            self._waited, self._next = True, self.runs + FIRST
            return
        self._waited = False
        if waits:
            has_paid = self._improves(engine)
            self._unpaid_ms = None if has_paid else now_ms
            self._pause = FIRST if has_paid else self._pause
        self._next = self.runs + self._pause
        self._pause = min(2 * self._pause, MOST)

    def _measured(self, engine: Engine) -> list[StageTimes]:
        """The measured times of stages in one inference."""
        totals = totals_ms(engine.profile(1))
        if self._predicted is None or self._predicted[0] is not engine.executable:
            self._predicted = engine.executable, stage_times(engine.executable, self._cost)
        profiled = ProfiledTimes.of_totals(engine.executable, totals)
        return profiled.put_in(self._predicted[1], "nets_ms", "kernels_ms")

    def _improves(self, engine: Engine) -> bool:
        """Change to a balanced plan if it is faster; True if changed."""
        parts = ObservedParts.of(engine, PROFILED)
        if engine.gpu_failure:
            return False
        device, tuning = self.context.device, self.context.tuning
        try:
            improver = Improver(self.network, self._cost, self.context.local)
            improver.observe([parts.run(engine.plan, parts.length_ms)])
            plan = _with_ratios_of(engine.plan, improver.balanced(engine.plan))
            if plan.fingerprint == engine.plan.fingerprint:
                return False
            with Engine(self.network, plan, device, tuning) as other:
                for name, array in engine.loaded.inputs.items():
                    np.copyto(other.loaded.inputs[name], array)
                models = {"before": engine.loaded, "after": other.loaded}
                times = device.time(models, comparing(2e-3 * parts.length_ms))
                if times.failed or not _are_close(engine, other):
                    return False
                before_ms, after_ms = (times.latency_ms[name].level for name in models)
                if after_ms >= WORTH * before_ms:
                    return False
                engine.exchange(other)
        except CodlError as error:
            self.context.note(f"{self.network.name}: no balanced plan runs: {error}")
            return False
        ratios = tuple(chain.gpu_ratio for chain in plan.chains)
        self.changes.append(PlanChange(self.runs, before_ms, after_ms, ratios))
        return True


def _with_ratios_of(plan: Plan, other: Plan) -> Plan:
    """The plan with the ratios of another plan with the same chains."""
    chains = tuple(
        replace(chain, gpu_ratio=moved.gpu_ratio)
        for chain, moved in zip(plan.chains, other.chains, strict=True)
    )
    return replace(plan, chains=chains, predicted_ms=other.predicted_ms, predicted_mj=None)


def _are_close(engine: Engine, other: Engine) -> bool:
    """True where the last outputs of two engines are equal up to rounding."""
    pairs = [(array, other.loaded.outputs[name]) for name, array in engine.loaded.outputs.items()]
    return all(np.linalg.norm(a - b) <= CLOSE * np.linalg.norm(a) for a, b in pairs)
