"""Adapter: an engine that serves gets a balanced plan where one processor waits for the other.

Now and then one inference is profiled. Where the sides of split stages end apart in two profiles in
a row, the improver of plans moves the ratios of the running plan, by the latest runs alone: what a
processor took before it became slower is no evidence any more. Both plans are timed in turns, and
the faster one goes on. Kernel variants stay, since the outputs of these were checked.
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
from codl.plan.coverage import covered
from codl.plan.improver import Improver, waiting
from codl.plan.price import StageTimes, stage_times
from codl.plan.profile_feedback import ProfiledTimes
from codl.predict import DEFAULT
from codl.records.results import Adaptation, PlanChange
from codl.runtime.loaded import totals_ms
from codl.strategies.base import Context
from codl.strategies.device_loop import ObservedParts, comparing

#: Inferences before the first profile, and the most between two: they double each time.
FIRST, MOST = 10, 800
#: The part of the split stages' time that one processor waits for which plans change.
APART = 0.1
#: A plan that did not pay is tried again where a processor takes this part more or less than then.
CHANGED = 0.1
#: A new plan must take less than this part of what the running one takes.
WORTH = 0.98
#: Profiles of the running plan of which the improver learns, with the layers of nets and without.
PROFILED = 3
#: How far outputs of two plans may lie apart, as a part of their length.
CLOSE = 0.02
#: Changes that are remembered.
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
    #: Whether one processor waited in the last profile.
    _waited: bool = False
    #: Milliseconds of each processor when a plan did not pay.
    _unpaid_ms: tuple[float, float] | None = None
    #: What stages are predicted to take in the executable that was profiled last.
    _predicted: tuple[Executable, Sequence[StageTimes]] | None = None

    def __post_init__(self) -> None:
        self._cost = covered(self.context.cost(DEFAULT), self.network)

    @property
    def adaptation(self) -> Adaptation:
        return Adaptation(self.runs, tuple(self.changes))

    def after_run(self, engine: Engine) -> None:
        """Count an inference, and profile another one where that is due.

        Plans without split chains stay.
        """
        self.runs += 1
        is_split = any(0 < chain.gpu_ratio < 1 for chain in engine.plan.chains)
        if self.runs < self._next or not is_split:
            return
        stages = self._measured(engine)
        cpu_ms, gpu_ms = (sum(ms) for ms in zip(*(s.works_ms for s in stages), strict=True))
        waits = waiting(stages) > APART and not self._is_unpaid(cpu_ms, gpu_ms)
        if waits and not self._waited:
            self._waited, self._next = True, self.runs + FIRST
            return
        self._waited = False
        if waits:
            has_paid = self._improves(engine)
            self._unpaid_ms = None if has_paid else (cpu_ms, gpu_ms)
            self._pause = FIRST if has_paid else self._pause
        self._next = self.runs + self._pause
        self._pause = min(2 * self._pause, MOST)

    def _measured(self, engine: Engine) -> list[StageTimes]:
        """What stages take in one inference."""
        totals = totals_ms(engine.profile(1))
        if self._predicted is None or self._predicted[0] is not engine.executable:
            self._predicted = engine.executable, stage_times(engine.executable, self._cost)
        profiled = ProfiledTimes.of_totals(engine.executable, totals)
        return profiled.with_kernels(profiled.with_nets(self._predicted[1]))

    def _is_unpaid(self, *now_ms: float) -> bool:
        """Whether a plan did not pay when processors took what they take now."""
        then = self._unpaid_ms
        return then is not None and np.allclose(now_ms, then, rtol=CHANGED, atol=0)

    def _improves(self, engine: Engine) -> bool:
        """Change to a balanced plan if it is faster."""
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
    """A plan with the ratios of another one, of the same chains."""
    chains = tuple(
        replace(chain, gpu_ratio=moved.gpu_ratio)
        for chain, moved in zip(plan.chains, other.chains, strict=True)
    )
    return replace(plan, chains=chains, predicted_ms=other.predicted_ms, predicted_mj=None)


def _are_close(engine: Engine, other: Engine) -> bool:
    """Whether the last runs of two engines had the same outputs, but for rounding."""
    pairs = [(array, other.loaded.outputs[name]) for name, array in engine.loaded.outputs.items()]
    return all(np.linalg.norm(a - b) <= CLOSE * np.linalg.norm(a) for a, b in pairs)
