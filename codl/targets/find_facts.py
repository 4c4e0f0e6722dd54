"""Completes a SoC by what is measured on a target: how the two sides meet.

By which the CPU knows sooner that the GPU is done, an event of OpenCL's or a flag: both waits are
measured as `codl collect` measures them, behind kernels of several lengths, as some drivers poll
for a short kernel and sleep for a long one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import exp, inf, log
from statistics import mean
from typing import Any, get_type_hints

import msgspec

from codl.errors import CodlError
from codl.kernels.tuning import Tuning
from codl.measure.batch import MeasureBatch, Measurement
from codl.measure.dataset import SignalRow
from codl.measure.facts import FACTS, Fact
from codl.measure.measurement_order import signal_tasks
from codl.measure.tasks import SignalTask
from codl.measure.timing import Rounds
from codl.records.soc import GpuSide
from codl.runtime.placement import LocalSoc
from codl.targets.base import Target
from codl.targets.connect import connect

SIGNAL = "gpu.signal"
EVENT, FLAG = "event", "flag"
#: A flag takes the CPU one more launch: its waits take at most this share of an event's.
MOST_SHARE = 0.9
#: A wait may take any time on a machine that others use: it is measured more often than an op.
WAITS = Rounds(visits=12, least=12, long_s=0.05, span_s=5.0)
#: And for so many seconds at most.
WAITS_S = 30.0


@dataclass(frozen=True)
class FoundFacts:
    """A SoC with measured facts, and all that was measured, what failed too."""

    soc: LocalSoc
    facts: tuple[Fact, ...] = ()

    @property
    def unknown(self) -> list[Fact]:
        """Facts that could not be told."""
        return [fact for fact in self.facts if fact.value is None]


def find_facts(
    target: Target, soc: LocalSoc, *, note: Callable[[str], object] = lambda text: None
) -> FoundFacts:
    """Measure the facts of a SoC's OpenCL device; what cannot be measured stays as it is.

    The drivers that are measured are loaded by other processes than the target's. `note` is told
    what comes next.
    """
    facts: list[Fact] = []
    for key in FACTS:
        note(f"Measuring {key}")
        answered = target.measure_facts(soc.placement.icd, soc.gpu.name, [key])
        facts += [_checked(key, answered)]
    note(f"Measuring {SIGNAL}")
    facts += _signal_facts(target.serial, with_facts(soc, facts))
    return FoundFacts(with_facts(soc, facts), tuple(facts))


def _checked(key: str, answered: Sequence[Fact]) -> Fact:
    """The fact that was asked for, of a value that its key can have: a device may say anything."""
    fact = next((own for own in answered if own.key == key), Fact(key, None, "no answer"))
    hint = get_type_hints(GpuSide, include_extras=True)[key.removeprefix("gpu.")]
    try:
        if fact.value is not None:
            msgspec.convert(fact.value, hint)
    except msgspec.ValidationError as error:
        return Fact(key, None, f"a value that cannot be: {error}, got {fact.value!r}")
    return fact


def with_facts(soc: LocalSoc, facts: Sequence[Fact]) -> LocalSoc:
    """The SoC with the values of the facts that have one, and where each is from."""
    values: dict[str, Any] = {}
    sources = dict(soc.sources)
    for fact in facts:
        if fact.value is not None:
            values[fact.key.removeprefix("gpu.")] = fact.value
            sources[fact.key] = f"{fact.origin}: {fact.reason}"
        elif fact.key in sources:
            sources[fact.key] += f" (measuring it failed: {fact.reason})"
    return replace(soc, gpu=replace(soc.gpu, **values), sources=sources)


def _signal_facts(serial: str, soc: LocalSoc) -> Sequence[Fact]:
    """How the GPU tells the CPU that it is done; by events where nothing else was seen to work."""
    if soc.gpu.svm_atomics is None:
        return []
    if not soc.gpu.has_flags:
        reason = "there is no memory for a flag that both sides see"
        return [Fact(SIGNAL, EVENT, reason, origin="driver")]
    batch = MeasureBatch(
        tasks=tuple(task for task in signal_tasks(soc) if task.kind != "first_launch"),
        run="",
        rounds=WAITS,
        tuning=Tuning(),
        left_s=WAITS_S,
        reference_ms={},
        tolerance={},
    )
    with closing(connect(serial, soc)) as target, closing(target.fresh()) as fresh:
        try:
            return [choose_signal(fresh.measure(batch).measurements)]
        except CodlError as error:
            return [Fact(SIGNAL, None, str(error))]


def choose_signal(measured: Iterable[Measurement]) -> Fact:
    """A flag where it is never later than an event, and clearly sooner in the geometric mean.

    None where no length was measured both ways.
    """
    waits_ms: dict[str, dict[float, float]] = {"event_wait": {}, "flag_wait": {}}
    for one in measured:
        task, row = one.task, one.row
        if not isinstance(task, SignalTask) or not isinstance(row, SignalRow):
            continue
        if row.status == "ok" and 0 < row.latency_ms < inf:
            waits_ms[task.kind][task.gap_ms] = row.latency_ms
    events, flags = waits_ms.values()
    ratios = [flags[gap] / events[gap] for gap in sorted({*events} & {*flags})]
    if not ratios:
        return Fact(SIGNAL, None, "no wait could be measured both ways")
    share = exp(mean(map(log, ratios)))
    value = FLAG if max(ratios) <= 1 and share <= MOST_SHARE else EVENT
    reason = f"a wait for a flag takes {share:.2f} of the time that one for an event does"
    return Fact(SIGNAL, value, reason)
