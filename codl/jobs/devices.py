"""What a machine has, and SoC files that describe it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from codl.errors import DeviceError
from codl.files import check_writable, inside, set_aside
from codl.jobs import options as opt
from codl.jobs.job import Job
from codl.jobs.options import option
from codl.records import soc as socs
from codl.records.soc import ELEMENT_NAMES, Soc
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


NameOption = Annotated[str, option("--name", help="The name of the SoC file.")]
DeviceOption = Annotated[
    str | None,
    option("--opencl-device", help="The OpenCL device: a driver or device name of `codl devices`."),
]
MemoryOption = Annotated[
    Sequence[str],
    option(
        "--memory",
        help="What tensors lie in, of {codl.records.soc:MEMORY_TYPES}; may be repeated. "
        "By default all that a GPU has, on a CPU buffers.",
        read=opt.names_of,
        many=True,
    ),
]
ElementOption = Annotated[
    str, option("--element", help="What tensors are stored as: {codl.records.soc:ELEMENT_NAMES}.")
]
ThreadsOption = Annotated[
    int | None, option("--threads", help="Threads of the CPU side; one a core by default.")
]
MeasureOption = Annotated[
    bool,
    option(
        "--measure/--no-measure",
        help="Measure what no driver tells truly: how the two sides meet, and whether threads "
        "of the CPU side are faster pinned.",
    ),
]
FileOption = Annotated[
    Path | None,
    option(
        "-o",
        "--output",
        help="The file; socs/NAME.yaml by default.",
        read=lambda text: opt.writable(Path(text)),
    ),
]


@dataclass(frozen=True, kw_only=True)
class DetectSoc(Job):
    """Describe a machine as a SoC, and write its file.

    Raises `CodlError` for a machine without two sides, and for options that it does not know.
    """

    name: NameOption = opt.HOST
    serial: opt.SerialOption = opt.HERE
    device: DeviceOption = None
    memory: MemoryOption = ()
    element: ElementOption = ELEMENT_NAMES[0]
    threads: ThreadsOption = None
    measure: MeasureOption = True
    output: FileOption = None

    def run(self) -> tuple[LocalSoc, Path]:
        """The SoC, and the file that was written."""
        path = self.output or socs.own_path_of(inside(socs.FOLDER, self.name).name)
        check_writable(path)
        note = self.reporter.note
        with closing(connect(self.serial)) as target:
            soc = detect(
                target,
                self.name,
                device=self.device,
                memory_types=self.memory,
                element=self.element,
                cpu_threads=self.threads,
            )
            facts = FoundFacts(soc)
            if self.measure:
                facts = find_pinning(target, find_facts(target, soc, note=note), note=note)
        if kept := set_aside(path):
            note(f"What {path} held before is kept as {kept}")
        facts.soc.save(path)
        for fact in facts.unknown:
            note(f"{fact.key} could not be measured: {fact.reason}")
        note(f"Wrote {path}, and {beside(path)}: where its parts are on this machine")
        return facts.soc, path


def soc_content(soc: Soc | PublishedSoc) -> dict[str, Any]:
    """A SoC as results have it."""
    return soc.to_json() if isinstance(soc, LocalSoc) else soc.to_dict()
