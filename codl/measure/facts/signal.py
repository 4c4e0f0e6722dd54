"""By which the CPU knows sooner that the GPU is done: an event of OpenCL's, or a flag.

Both waits are measured as `codl collect` measures them, behind kernels of several lengths: some
drivers poll for a short kernel and sleep for a long one. A flag takes the CPU one more launch, so
it has to be clearly better.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, inf, log
from statistics import mean

from codl.measure.batch import Measurement
from codl.measure.dataset import SignalRow
from codl.measure.facts.fact import Fact, Point
from codl.measure.sampling import signal_tasks
from codl.measure.tasks import SignalTask
from codl.records.results import Latency
from codl.records.soc import Soc

KEY = "gpu.signal"
EVENT, FLAG = "event", "flag"
#: A flag's waits take at most this share of an event's.
MOST_SHARE = 0.9


def waits_to_compare(soc: Soc) -> tuple[SignalTask, ...]:
    """Waits of both kinds; none where the SoC has no flags."""
    if not soc.gpu.has_flags:
        return ()
    return tuple(task for task in signal_tasks(soc) if task.kind != "first_launch")


def choose_signal(measured: Iterable[Measurement]) -> Fact:
    """The fact, with its latencies: points in microseconds of the kernel waited for.

    A flag where it is never later, and clearly sooner in the geometric mean; None where no length
    was measured both ways.
    """
    rows: dict[str, dict[float, SignalRow]] = {"event_wait": {}, "flag_wait": {}}
    for own in measured:
        if not isinstance(own.task, SignalTask) or not isinstance(own.row, SignalRow):
            continue
        if own.row.status == "ok" and 0 < own.row.latency_ms < inf:
            rows[own.task.kind][own.task.gap_ms] = own.row
    events, flags = rows.values()
    both = sorted({*events} & {*flags})
    if not both:
        return Fact(KEY, None, "no wait could be measured both ways")
    ratios = [flags[gap].latency_ms / events[gap].latency_ms for gap in both]
    share = exp(mean(map(log, ratios)))
    value = FLAG if max(ratios) <= 1 and share <= MOST_SHARE else EVENT
    reason = f"a wait for a flag takes {share:.2f} of the time that one for an event does"
    return Fact(KEY, value, reason, (*_points(EVENT, events, both), *_points(FLAG, flags, both)))


def _points(name: str, rows: dict[float, SignalRow], gaps: Sequence[float]) -> Iterable[Point]:
    for gap in gaps:
        row, ms = rows[gap], rows[gap].latency_ms
        latency = Latency(ms, min(row.p20_ms, ms), max(row.p80_ms, ms), row.runs)
        yield Point(f"wait for {name}", round(1e3 * gap), latency)
