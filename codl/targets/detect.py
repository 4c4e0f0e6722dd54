"""Detection of a target's SoC, with measured facts, and completion of published SoCs.

No driver reports whether an OpenCL event or a flag signals the GPU's end to the CPU sooner. Both
waits are measured as in `codl collect`, after kernels of several lengths: some drivers poll for a
short kernel and sleep for a long one.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from math import exp, inf, log
from pathlib import Path
from shlex import quote
from statistics import mean
from typing import Any

import numpy as np

from codl.errors import CodlError, CodlWarning, DeviceError, InvalidFileError, MismatchError
from codl.files import check_writable, set_aside
from codl.ir.records import soc as socs
from codl.ir.records.soc import ELEMENT_NAMES, AnySoc, Chip, GpuSide, PublishedSoc, Soc
from codl.kernels.tuning import Tuning
from codl.machine.placement import LocalSoc, beside, choose, describe
from codl.measure.dataset import SignalRow
from codl.measure.facts import SVM_ATOMICS, Fact
from codl.measure.measurement_order import signal_tasks
from codl.measure.tasks import MeasureBatch, Measurement, SignalTask
from codl.measure.timing import Rounds
from codl.targets.base import Target
from codl.targets.connect import Tell, connect, machine_of, plugged_in, silent, transport_of


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

    `device` names the OpenCL device or its driver; by default a GPU is preferred to a CPU.
    `memory_types` and `element` are those of `GpuSide`, by default the device's types and float32.
    `cpu_threads` is by default one per core of the CPU side. Raises `DeviceError` for a machine
    without OpenCL device, with one core, without the memory type, or with impossible facts;
    `CodlError` for more threads than cores; and `UnsupportedError` for a target that is no machine.
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
    """Source of the number of vector registers, if known."""
    if gpu.vector_registers is None:
        return {}
    floats = gpu.vector_width
    return {"gpu.vector_registers": f"system: its instruction set with vectors of {floats} floats"}


def complete(
    published: PublishedSoc, name: str | Path, serial: str, *, tell: Tell = silent
) -> LocalSoc:
    """Complete a SoC of published facts with a device's facts, and write its files.

    Writes to the user's own folder, or to the named file. Raises the errors of `detect`, and
    `MismatchError` for a device with another chip, without writing.
    """
    path = socs.own_path_of(name)
    check_writable(path)
    tell(f"Of the SoC {published.name!r} only published facts are known: {serial!r} tells the rest")
    with closing(connect(serial)) as target:
        found = detect(target, published.name)
        if problem := contradiction(published, found, serial):
            raise MismatchError(f"{problem} {_fix_of_other_chip(serial)}")
        if published.cpu.threads not in (None, found.cpu.threads):
            found = detect(target, published.name, cpu_threads=published.cpu.threads)
        facts = find_pinning(target, find_facts(target, found))
    done = replace(facts, soc=completed(published, facts.soc))
    if differing := "; ".join(differences(published, done.soc)):
        tell(f"The device's values are kept: {differing}")
    write(done, path, tell=tell)
    return done.soc


def _fix_of_other_chip(serial: str) -> str:
    """The remedy for a wrong chip; names connected devices if this machine was examined."""
    names = plugged_in() if transport_of(serial).shell is None else []
    if names:
        return f"Connected devices are {', '.join(names)}: name one by --serial."
    return f"`codl soc detect --serial {quote(serial)} --name NAME` describes it as one of its own."


def write(found: FoundFacts, path: Path, *, tell: Tell = silent) -> None:
    """Write the files of a SoC; keeps a former SoC file beside the new one."""
    if kept := set_aside(path):
        tell(f"What {path} held before is kept as {kept}")
    found.soc.save(path)
    for fact in found.unknown:
        tell(f"{fact.key} could not be measured: {fact.reason}")
    tell(f"Wrote {path}, and {beside(path)}: where its parts are on the device")


# Measured facts.

SIGNAL = "gpu.signal"
EVENT, FLAG = "event", "flag"
PINNED = "cpu_pinned"
#: Largest ratio of a flag's wait to an event's at which a flag is chosen; it costs one more launch.
MOST_SHARE = 0.9
#: Rounds for waits, which vary on a shared machine and need more samples than ops.
WAITS = Rounds(visits=12, least=12, long_s=0.05, span_s=5.0)
#: Most seconds for measuring waits.
WAITS_S = 30.0


@dataclass(frozen=True)
class FoundFacts:
    """A SoC with measured facts, and all facts, including failed ones."""

    soc: LocalSoc
    facts: tuple[Fact, ...] = ()

    @property
    def unknown(self) -> list[Fact]:
        """Facts without a value."""
        return [fact for fact in self.facts if fact.value is None]


def find_facts(target: Target, soc: LocalSoc, *, note: Tell = silent) -> FoundFacts:
    """Measure the facts of a SoC's OpenCL device; a failed one keeps its reason.

    Drivers are loaded in other processes than the target's. `note` receives a line per fact.
    """
    note(f"Measuring {SVM_ATOMICS}")
    facts = [_checked(target.measure_atomics(soc.placement.icd, soc.gpu.name))]
    note(f"Measuring {SIGNAL}")
    facts += _signal_facts(target.serial, with_facts(soc, facts))
    return FoundFacts(with_facts(soc, facts), tuple(facts))


def _checked(fact: Fact) -> Fact:
    """A device's answer, without an impossible value."""
    if fact.key == SVM_ATOMICS and isinstance(fact.value, bool | None):
        return fact
    return Fact(SVM_ATOMICS, None, f"a value that is not possible: {fact.value!r}")


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
    """How the GPU signals its end to the CPU: events, unless flags are known to work."""
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
    """Choose a flag if it is never later than an event, and clearly sooner in the geometric mean.

    The value is None if no kernel length was measured both ways.
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


def find_pinning(target: Target, found: FoundFacts, *, note: Tell = silent) -> FoundFacts:
    """Add the fact whether to pin threads of the CPU side, measured in turns.

    If the side has all cores, half of its threads are measured, for runs with fewer threads.
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
    """Choose unpinned threads unless pinned ones are faster by more than the spread of all turns.

    A GPU's driver and Python have threads that compete for a pinned thread's core, and that this
    measurement excludes: VGG-16 beside an H100 takes 1.2 times as long with 4 threads on 4 cores as
    with 4 on 16. The value is None without a measured turn.
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


# Published facts beside a device's. A device with another GPU or chip than the published one is a
# contradiction. In other differences its value wins: published ones often belong to a sibling chip.

#: The maker's word in a GPU's name, and its model, such as G72 in "Mali-G72 MP12".
MAKER, MODEL = re.compile(r"[a-z]+"), re.compile(r"[a-z]?\d{2,}")
#: Values that mean "not reported by the device".
UNTOLD: tuple[Any, ...] = (None, "", (), 0)


def contradiction(published: PublishedSoc, found: Soc, serial: str) -> str:
    """A sentence with the published and the found chip if they differ; else empty."""
    has_same_chip = _has_same_chip(published, found)
    if has_same_chip and _has_same_gpu(published, found):
        return ""
    names = "" if has_same_chip else f", which systems call {' or '.join(published.chips)},"
    wanted = f"{published.description}{names} with the GPU {published.gpu.name or 'unknown'}"
    chip = (
        f"chip {found.chip.name!r}" if found.chip and found.chip.name else f"CPU {found.cpu.name!r}"
    )
    version = f" ({found.gpu.opencl_version})" if found.gpu.opencl_version else ""
    return (
        f"The SoC {published.name!r} is {wanted}, and the device {serial!r} has the {chip} and "
        f"the OpenCL device {found.gpu.name!r}{version}."
    )


def _has_same_gpu(published: PublishedSoc, found: Soc) -> bool:
    """False only if the GPU's type, maker or model (Adrenos': in the version) differs."""
    gpu, name = published.gpu, (published.gpu.name or "").lower()
    stated = f"{found.gpu.name} {found.gpu.opencl_version}".lower()
    maker, model = MAKER.search(name), MODEL.search(name)
    return (
        gpu.type in (None, found.gpu.type)
        and (maker is None or maker[0] in stated)
        and (model is None or MODEL.search(stated) is None or model[0] in MODEL.findall(stated))
    )


def _has_same_chip(published: PublishedSoc, found: Soc) -> bool:
    """Whether a name of the chip is a published one; True if either has no names."""
    chip = found.chip
    stated = " ".join((chip.name, *chip.compatible)).lower() if chip else ""
    return not stated or not published.chips or any(n.lower() in stated for n in published.chips)


def completed(published: PublishedSoc, found: AnySoc) -> AnySoc:
    """The found SoC with the published description, and published values for unreported ones."""
    values: dict[str, dict[str, Any]] = {"cpu": {}, "gpu": {}}
    sources = dict(found.sources)
    for side, key, value in _values(published):
        stated = getattr(getattr(found, side), key)
        if stated in UNTOLD and stated is not False:
            values[side][key] = value
            source = published.sources.get(f"{side}.{key}") or published.sources[side]
            sources[f"{side}.{key}"] = f"published: {source}"
    return replace(
        found,
        description=published.description,
        cpu=replace(found.cpu, **values["cpu"]),
        gpu=replace(found.gpu, **values["gpu"]),
        sources=sources,
    )


def differences(published: PublishedSoc, found: Soc) -> Iterator[str]:
    """Numbers of a completed SoC that differ from published ones, such as of `gpu.wave_size`."""
    for side, key, value in _values(published):
        stated = getattr(getattr(found, side), key)
        if isinstance(value, int) and stated != value:
            yield f"{side}.{key} is {stated} (published: {value})"


def _values(published: PublishedSoc) -> Iterator[tuple[str, str, Any]]:
    """The published values, each with its side and key."""
    for side in ("cpu", "gpu"):
        facts = getattr(published, side)
        for key in asdict(facts):
            if (value := getattr(facts, key)) not in (None, ()):
                yield side, key, value
