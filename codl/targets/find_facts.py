"""Completes a SoC by what is measured on a target: wave size, memory, how the two sides meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

import msgspec

from codl.errors import CodlError
from codl.kernels.tuning import Tuning
from codl.measure.batch import MeasureBatch
from codl.measure.facts import memory_objects, signal
from codl.measure.facts.fact import FACTS, Fact
from codl.measure.timing import Rounds
from codl.records.soc import MEMORY_TYPES, GpuSide
from codl.runtime.placement import LocalSoc
from codl.targets.base import Target
from codl.targets.connect import connect

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
    note(f"Measuring {signal.KEY}")
    facts += _signal_facts(target.serial, with_facts(soc, facts))
    note(f"Measuring {memory_objects.KEY}")
    facts += _memory_facts(target.serial, soc)
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
    gpu, sources = soc.gpu, dict(soc.sources)
    for fact in facts:
        if fact.value is not None:
            gpu = _with(gpu, fact.key, fact.value)
            sources[fact.key] = f"{fact.origin}: {fact.reason}"
        elif fact.key in sources:
            sources[fact.key] += f" (measuring it failed: {fact.reason})"
    return replace(soc, gpu=gpu, sources=sources)


def _with(gpu: GpuSide, key: str, value: Any) -> GpuSide:
    """`key` is that of a field, or of one of its entries: `gpu.preferred_memory.conv2d`."""
    name, _, entry = key.removeprefix("gpu.").partition(".")
    if entry:
        value = {**getattr(gpu, name), entry: value}
    return replace(gpu, **{name: value})


def _signal_facts(serial: str, soc: LocalSoc) -> Sequence[Fact]:
    """How the GPU tells the CPU that it is done; by events where nothing else was seen to work."""
    if soc.gpu.svm_atomics is None:
        return []
    tasks = signal.waits_to_compare(soc)
    if not tasks:
        reason = "there is no memory for a flag that both sides see"
        return [Fact(signal.KEY, signal.EVENT, reason, origin="driver")]
    batch = MeasureBatch(
        tasks=tasks,
        run="",
        rounds=WAITS,
        tuning=Tuning(),
        left_s=WAITS_S,
        reference_ms={},
        tolerance={},
    )
    with closing(connect(serial, soc)) as target, closing(target.fresh()) as fresh:
        try:
            return [signal.choose_signal(fresh.measure(batch).measurements)]
        except CodlError as error:
            return [Fact(signal.KEY, None, str(error))]


def _memory_facts(serial: str, soc: LocalSoc) -> Sequence[Fact]:
    """Which memory object is faster for which ops; buffers where the device has no images."""
    if not soc.gpu.max_image_width:
        return [
            Fact(key, memory_objects.BUFFER, "there are no images", origin="driver")
            for key in memory_objects.preferred_keys()
        ]
    able = replace(soc, gpu=replace(soc.gpu, memory_types=MEMORY_TYPES, element="float32"))
    found = []
    with closing(connect(serial, able)) as target, closing(target.fresh()) as fresh:
        for op in memory_objects.ops_to_compare():
            try:
                rows, _ = fresh.bench(op, Tuning())
            except CodlError:
                continue  # a driver that fails on one op may do others
            found.append((op, memory_objects.best_by_memory(op, rows)))
    return memory_objects.prefer(found)
