"""What a machine has, and SoC files that describe it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from codl.api.reporter import SILENT, Reporter
from codl.errors import DeviceError
from codl.files import check_writable, set_aside
from codl.records.soc import Soc
from codl.records.soc_facts import PublishedSoc
from codl.runtime.detect import choose, describe
from codl.runtime.hardware import CpuFacts
from codl.runtime.placement import LocalSoc, beside
from codl.runtime.probe import ProbeResult
from codl.targets.connect import connect, transport_of
from codl.targets.detect import FoundFacts, detect, find_facts, find_pinning


def processors(serial: str) -> dict[str, Any]:
    """What `codl devices --json` holds: the processors of a machine, and where their threads run.

    Raises `CodlError` where the machine cannot be asked.
    """
    with closing(connect(serial)) as target:
        probed, info = target.probe(), target.describe()
        try:
            soc, problem = describe("here", choose(probed, None), cpu=info.cpu), ""
        except DeviceError as error:
            soc, problem = None, str(error)
    seen = _observed(serial, soc) if soc and transport_of(serial).is_machine else {}
    return {
        "processors": [_cpu(info.cpu, soc, seen), *_gpus(probed, soc, seen)],
        "failed": [{"icd": r.icd, "error": r.error} for r in probed if r.error],
        "problem": problem,
        "energy_sensors": [asdict(sensor) for sensor in info.sensors],
        "unreadable_sensors": info.unreadable_sensors,
    }


def _observed(serial: str, soc: Soc) -> dict[str, list[int]]:
    with closing(connect(serial, soc)) as target:
        return target.observe_cores()


def _cpu(cpu: CpuFacts, soc: LocalSoc | None, seen: dict[str, list[int]]) -> dict[str, Any]:
    cores = soc.placement.cpu_cores if soc else cpu.cores
    return {
        "kind": "cpu",
        "name": cpu.name,
        "driver": "ncnn",
        "cores": list(cores),
        "observed_cores": seen.get("cpu", []),
        "memory_types": ["host"],
        "used": soc is not None,
    }


def _gpus(
    probed: Sequence[ProbeResult], soc: LocalSoc | None, seen: dict[str, list[int]]
) -> list[dict[str, Any]]:
    processors = []
    for device in (d for result in probed for d in result.devices):
        used = soc is not None and (device.icd, device.name) == (soc.placement.icd, soc.gpu.name)
        processors.append(
            {
                **asdict(device),
                "kind": "gpu",
                "driver": f"{device.platform} {device.driver}",
                "cores": list(soc.placement.gpu_cores) if soc and used else [],
                "observed_cores": seen.get("gpu", []) if used else [],
                "memory_types": list(device.memory_types),
                "used": used,
            }
        )
    return processors


def describe_soc(
    serial: str,
    name: str,
    path: Path,
    *,
    device: str | None = None,
    memory: Sequence[str] = (),
    element: str,
    cpu_threads: int | None = None,
    measure: bool = True,
    reporter: Reporter = SILENT,
) -> LocalSoc:
    """Describe a machine as a SoC, and write its file; the words are those of `codl soc detect`.

    Raises `CodlError` for a machine without two sides, and for words that it does not know.
    """
    check_writable(path)
    note = reporter.note
    with closing(connect(serial)) as target:
        soc = detect(
            target,
            name,
            device=device,
            memory_types=memory,
            element=element,
            cpu_threads=cpu_threads,
        )
        facts = FoundFacts(soc)
        if measure:
            facts = find_pinning(target, find_facts(target, soc, note=note), note=note)
    if kept := set_aside(path):
        note(f"What {path} held before is kept as {kept}")
    facts.soc.save(path)
    for fact in facts.unknown:
        note(f"{fact.key} could not be measured: {fact.reason}")
    note(f"Wrote {path}, and {beside(path)}: where its parts are on this machine")
    return facts.soc


def soc_content(soc: Soc | PublishedSoc) -> dict[str, Any]:
    """A SoC as results have it."""
    return soc.to_json() if isinstance(soc, LocalSoc) else soc.to_dict()
