"""What it costs one processor to know of the other's work, counted once.

Three measurements know of it. `dispatch` rows have a first launch and a wait in each count alike:
of them the differences count, what one more launch takes. Rows of data sharing have parts that were
each timed by itself: `sync` is the least that a wait can take, of a queue that has nothing left to
do, and a map or an unmap has a first launch and a wait of its own in it. `first_launch` and
`event_wait` rows have these two alone, and where they are known they take the place of all that.
Where kernels raise flags, `flag_wait` rows have the wait, with the kernel that raises one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from codl.predict.context_terms import EventWait, FirstLaunch, FlagWait, Gap

#: A queue is empty for about so long, and the CPU waits for as long, in networks whose stages take
#: some milliseconds.
GAP_MS = 1.0
#: Parts of data sharing that the queue does.
QUEUED = ("map", "unmap")


class SignalPredictors(Protocol):
    """Of `codl.plan.cost_model.LatencyPredictors` what is asked for here."""

    @property
    def targets(self) -> tuple[str, ...]: ...

    def latency_ms(self, target: str, items: Sequence[Any]) -> Any: ...


@dataclass(frozen=True)
class SignalCosts:
    """Milliseconds from enqueueing on an empty queue to a kernel's beginning, 0 where that was not
    measured; and from a kernel's end to the CPU's knowing it, None where that was not.

    `launches` are how many kernels a transfer to the CPU takes: its own, and one that raises a
    flag. Where waits for flags were not measured, they count as those for events.
    """

    first_launch_ms: float = 0.0
    wait_ms: float | None = None
    launches: int = 1

    @classmethod
    def of(cls, predictors: SignalPredictors, *, raises_flags: bool = False) -> SignalCosts:
        known = frozenset(predictors.targets)

        def predicted_ms(signal: Gap) -> float | None:
            target = f"{signal.kind}_{signal.processor}"
            if target not in known:
                return None
            return float(predictors.latency_ms(target, [signal])[0])

        wait_ms = predicted_ms(FlagWait(GAP_MS)) if raises_flags else None
        return cls(
            first_launch_ms=predicted_ms(FirstLaunch(GAP_MS)) or 0.0,
            wait_ms=predicted_ms(EventWait(GAP_MS)) if wait_ms is None else wait_ms,
            launches=1 + raises_flags,
        )

    def inside(self, parts: Mapping[str, float]) -> Mapping[str, float]:
        """Milliseconds of a transfer's parts by name, inside an executable.

        The CPU waits as was measured; maps and unmaps stand behind other commands, so what an empty
        queue added to them is taken off. Parts are left as they were timed where waits are not
        known, and a transfer that is not known by its parts.
        """
        if self.wait_ms is None or "transform" not in parts:
            return parts
        added_ms = self.first_launch_ms + self.wait_ms
        own = {part: max(0.0, parts[part] - added_ms) for part in QUEUED if part in parts}
        return {**parts, **own, "sync": self.wait_ms}
