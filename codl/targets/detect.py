"""Describes a target as a SoC, adds measured facts, and finds the SoC of a file on a target.

No driver reports whether an OpenCL event or a flag tells the CPU sooner that the GPU is done. Both
waits are measured as `codl collect` measures them, behind kernels of several lengths: some drivers
poll for a short kernel and sleep for a long one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import exp, inf, log
from pathlib import Path
from statistics import mean
from typing import Any, get_type_hints

import msgspec
import numpy as np

from codl.errors import CodlError, CodlWarning, DeviceError, InvalidFileError
from codl.kernels.tuning import Tuning
from codl.measure.batch import MeasureBatch, Measurement
from codl.measure.dataset import SignalRow
from codl.measure.facts import FACTS, Fact
from codl.measure.measurement_order import signal_tasks
from codl.measure.tasks import SignalTask
from codl.measure.timing import Rounds
from codl.records import soc as socs
from codl.records.soc import ELEMENT_NAMES, GpuSide, Soc
from codl.records.soc_facts import Chip, SensorFact
from codl.runtime.detect import choose, describe, place
from codl.runtime.placement import LocalSoc, beside, check_measured, read
from codl.targets.base import Target
from codl.targets.connect import connect, machine_of, transport_of
from codl.targets.requests import TargetInfo


def detect(
    target: Target,
    name: str,
    *,
    device: str | None = None,
    memory_types: Sequence[str] = (),
    element: str = ELEMENT_NAMES[0],
    cpu_threads: int | None = None,
) -> LocalSoc:
    """Describe the machine of a target as a SoC.

    `device` names the OpenCL device or its driver; by default a real GPU goes before a CPU.
    `memory_types` and `element` are as in `GpuSide`; by default the device's own types, and
    float32. `cpu_threads` is by default one for each core of the CPU side. Raises `DeviceError`
    where there is no OpenCL device, only one core, no such memory type, or a fact that is not
    possible, `CodlError` for more threads than cores, and `UnsupportedError` where the target is
    no machine.
    """
    if target.replays is not None:
        machine_of(target.serial, f"be described as the SoC {name!r}")
    seen = target.examine()
    if seen.confinement:
        warnings.warn(f"{seen.confinement} {seen.release}", CodlWarning, 2)
    if seen.quota:
        warnings.warn(seen.quota, CodlWarning, 2)
    chosen = choose(target.probe(), device)
    info = target.describe()
    soc = describe(
        name,
        chosen,
        cpu=info.cpu,
        memory_types=memory_types,
        element=element,
        cpu_threads=cpu_threads,
    )
    described = replace(
        soc,
        chip=info.chip if info.chip != Chip() else None,
        sensors=sensors_of(info),
        sources={
            "gpu.wave_size": "driver: on a CPU work-items run one after another"
            if soc.gpu.is_cpu
            else "driver: the multiple of a work-group's size that it prefers",
            **_registers_source(soc.gpu),
        },
    )
    try:
        socs.from_dict(described.to_dict(), socs.own_path_of(name))
    except InvalidFileError as error:
        raise DeviceError(
            f"{target.serial!r} reported facts that are not possible: {error}"
        ) from error
    return described


def _registers_source(gpu: GpuSide) -> dict[str, str]:
    """Source of the number of vector registers, where it is known."""
    if gpu.vector_registers is None:
        return {}
    floats = gpu.vector_width
    return {"gpu.vector_registers": f"system: its instruction set with vectors of {floats} floats"}


def sensors_of(info: TargetInfo) -> tuple[SensorFact, ...]:
    """The readable sensors of a machine."""
    energy = (SensorFact(sensor.name, "energy", sensor.part) for sensor in info.sensors)
    return (*energy, *(SensorFact(name, "temperature") for name in info.thermometers))


def load_local(name: str | Path, serial: str = "local", precision: str | None = None) -> LocalSoc:
    """Load a SoC with its placement, by name or from a `.yaml` file.

    `precision` is as in `Soc.at`; by default that of the file. Where the placement file is missing,
    the SoC's device is looked for on the target. Raises as `codl.records.soc.load` and
    `codl.runtime.placement.read`, `UnsupportedError` for a replayed SoC or a serial that is no
    machine, and `DeviceError` where the target does not have its device.
    """
    soc, path = socs.load(name, precision), socs.path_of(name)
    transport = machine_of(serial, f"run anything on the SoC {soc.name!r}")
    check_measured(soc)
    placed = read(soc, path, is_here=transport.shell is None)
    if placed is not None:
        return placed
    with closing(connect(serial)) as target:
        return _placed(soc, path, target)


def load_measured(name: str | Path, serial: str = "local", precision: str | None = None) -> Soc:
    """Load a SoC to measure: as `load_local`, but without placement for a replay."""
    if transport_of(serial).is_machine:
        return load_local(name, serial, precision)
    return socs.load(name, precision)


def _placed(soc: Soc, path: Path, target: Target) -> LocalSoc:
    """The SoC with its placement on a target, by the rules of `detect`."""
    fix = f"`codl soc detect --serial {target.serial} --name {soc.name}` writes it."
    missing = f"There is no {beside(path)}, which says where the SoC {soc.name!r} is"
    devices = [device for result in target.probe() for device in result.devices]
    wanted = (soc.gpu.platform, soc.gpu.name)
    matching = [device for device in devices if (device.platform, device.name) == wanted]
    if not matching:
        names = ", ".join(repr(device.name) for device in devices) or "none"
        raise DeviceError(
            f"{missing}, and its OpenCL device {soc.gpu.name!r} of {soc.gpu.platform!r} is not "
            f"here (there are: {names}). {fix}"
        )
    try:
        local = LocalSoc.of(soc, place(matching[0], target.describe().cpu))
    except CodlError as error:
        raise type(error)(f"{missing}. {error} {fix}") from error
    warnings.warn(f"{missing}; it was found by asking every driver. {fix}", CodlWarning, 2)
    return local


# Facts that are measured.

SIGNAL = "gpu.signal"
EVENT, FLAG = "event", "flag"
PINNED = "cpu_pinned"
#: Largest ratio of a flag's wait to an event's where the flag is chosen: it costs one more launch.
MOST_SHARE = 0.9
#: Waits scatter on a shared machine, so they are measured more often than ops.
WAITS = Rounds(visits=12, least=12, long_s=0.05, span_s=5.0)
#: Most seconds to measure waits.
WAITS_S = 30.0


@dataclass(frozen=True)
class FoundFacts:
    """A SoC with measured facts, and all measurements, also failed ones."""

    soc: LocalSoc
    facts: tuple[Fact, ...] = ()

    @property
    def unknown(self) -> list[Fact]:
        """Facts without a value."""
        return [fact for fact in self.facts if fact.value is None]


def find_facts(
    target: Target, soc: LocalSoc, *, note: Callable[[str], object] = lambda text: None
) -> FoundFacts:
    """Measure the facts of a SoC's OpenCL device; a fact that cannot be measured is kept.

    Other processes than the target's load the drivers. `note` gets what comes next.
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
    """The fact of a key from a device's answer, with a value that the key can have."""
    fact = next(
        (candidate for candidate in answered if candidate.key == key), Fact(key, None, "no answer")
    )
    hint = get_type_hints(GpuSide, include_extras=True)[key.removeprefix("gpu.")]
    try:
        if fact.value is not None:
            msgspec.convert(fact.value, hint)
    except msgspec.ValidationError as error:
        return Fact(key, None, f"a value that is not possible: {error}, got {fact.value!r}")
    return fact


def with_facts(soc: LocalSoc, facts: Sequence[Fact]) -> LocalSoc:
    """The SoC with the values of these facts, and their sources."""
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
    """How the GPU signals its end to the CPU: by events where flags are not known to work."""
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
    """Choose a flag where it is never later than an event, and clearly sooner in the mean.

    The mean is geometric. The value is None where no length was measured both ways.
    """
    waits_ms: dict[str, dict[float, float]] = {"event_wait": {}, "flag_wait": {}}
    for measurement in measured:
        task, row = measurement.task, measurement.row
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


def find_pinning(
    target: Target, found: FoundFacts, *, note: Callable[[str], object] = lambda text: None
) -> FoundFacts:
    """Add the fact whether threads of the CPU side are pinned, measured in turns.

    Where the side has all cores, half of its threads are measured: this decides for runs with
    fewer threads.
    """
    soc, own = found.soc, found.soc.placement
    cores = [core for core in target.describe().cpu.cores if core not in own.gpu_cores]
    count = own.threads if own.threads < len(cores) else own.threads // 2
    if count == 0:
        return found
    neighbours = replace(own, cpu_cores=own.cpu_cores[:count], cpu_threads=0)
    few = replace(soc, placement=neighbours)
    note(f"Measuring {PINNED}")
    try:
        with closing(connect(target.serial, few)) as placed, closing(placed.fresh()) as fresh:
            fact = choose_pinning(fresh.unpinned_ratios(cores))
    except CodlError as error:
        fact = Fact(PINNED, None, str(error))
    place = replace(own, cpu_pinned=None if fact.value is None else bool(fact.value))
    if fact.value is not None:
        place = place.with_threads(own.threads, None if fact.value else cores)
    return FoundFacts(replace(soc, placement=place), (*found.facts, fact))


def choose_pinning(ratios: Iterable[float]) -> Fact:
    """Choose unpinned threads, unless pinned ones are faster by more than the spread of all turns.

    A GPU's driver and Python have threads that take a pinned thread's core, and that this
    measurement does not have: VGG-16 beside an H100 takes 1.2 times as long with 4 threads on 4
    cores as with 4 on 16. The value is None where no turn was measured.
    """
    valid = [ratio for ratio in ratios if 0 < ratio < inf]
    if not valid:
        return Fact(PINNED, None, "no turn could be measured")
    low, middle, high = np.percentile(valid, (20, 50, 80))
    reason = (
        f"unpinned threads take {middle:.2f} of the time that pinned ones do "
        f"(p20 {low:.2f}, p80 {high:.2f})"
    )
    return Fact(PINNED, bool(middle - (high - low) > 1), reason)
