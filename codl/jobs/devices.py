"""What a machine has, and SoC files that describe it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from codl.errors import DeviceError
from codl.files import check_writable, inside
from codl.ir.records import soc as socs
from codl.ir.records.soc import ELEMENT_NAMES, PublishedSoc, Soc
from codl.jobs import options as opt
from codl.jobs.options import Job, option
from codl.machine.hardware import CpuFacts
from codl.machine.placement import LocalSoc, ProbeResult, choose, describe
from codl.targets.connect import connect, prepare
from codl.targets.detect import detect, write


def processors(
    serial: str, *, install: bool = True, tell: Callable[[str], object] = lambda text: None
) -> dict[str, Any]:
    """What `codl devices --json` holds: the processors of a machine.

    A device gets this codl's agent, unless `install` is off, and `tell` gets that. Raises
    `CodlError` where the machine cannot be asked.
    """
    prepare(serial, install=install, tell=tell)
    with closing(connect(serial)) as target:
        probed, info = target.probe(), target.describe()
        try:
            soc, problem = describe("here", choose(probed, None), cpu=info.cpu), ""
        except DeviceError as error:
            soc, problem = None, str(error)
    return {
        "processors": [_cpu(info.cpu, soc), *_gpus(probed, soc)],
        "failed": [{"icd": r.icd, "error": r.error} for r in probed if r.error],
        "problem": problem,
        "energy_sensors": [{"name": name, "part": part} for name, part in info.sensors.items()],
        "unreadable_sensors": info.unreadable_sensors,
    }


def _cpu(cpu: CpuFacts, soc: LocalSoc | None) -> dict[str, Any]:
    cores = soc.placement.cpu_cores if soc else cpu.cores
    return {
        "kind": "cpu",
        "name": cpu.name,
        "driver": "ncnn",
        "cores": list(cores),
        "memory_types": ["host"],
        "used": soc is not None,
    }


def _gpus(probed: Sequence[ProbeResult], soc: LocalSoc | None) -> list[dict[str, Any]]:
    processors = []
    for device in (d for result in probed for d in result.devices):
        used = soc is not None and (device.icd, device.name) == (soc.placement.icd, soc.gpu.name)
        processors.append(
            {
                **asdict(device),
                "kind": "gpu",
                "driver": f"{device.platform} {device.driver}",
                "cores": list(soc.placement.gpu_cores) if soc and used else [],
                "memory_types": list(device.memory_types),
                "used": used,
            }
        )
    return processors


@dataclass(frozen=True, kw_only=True)
class DetectSoc(Job):
    """Describe a machine as a SoC, and write its file.

    Raises `CodlError` for a machine without two sides, and for options that it does not know.
    """

    name: Annotated[str, option("--name", help="The name of the SoC file.")] = opt.HOST
    serial: opt.SerialOption = opt.HERE
    device: Annotated[
        str | None,
        option(
            "--opencl-device", help="The OpenCL device: a driver or device name of `codl devices`."
        ),
    ] = None
    memory: Annotated[
        Sequence[str],
        option(
            "--memory",
            help="Memory of tensors, of {codl.ir.records.soc:MEMORY_TYPES}; may be repeated. By "
            "default all types of a GPU, and buffers on a CPU.",
            read=opt.names_of,
            many=True,
        ),
    ] = ()
    element: Annotated[
        str,
        option("--element", help="Stored type of tensors: {codl.ir.records.soc:ELEMENT_NAMES}."),
    ] = ELEMENT_NAMES[0]
    threads: opt.ThreadsOption = None
    output: Annotated[
        Path | None,
        option(
            "-o",
            "--output",
            help="The file; socs/NAME.yaml by default.",
            read=opt.writable,
        ),
    ] = None
    install: opt.InstallOption = True

    def run(self) -> tuple[LocalSoc, Path]:
        """The SoC, and the file that was written."""
        path = self.output or socs.own_path_of(inside(socs.FOLDER, self.name).name)
        check_writable(path)
        note = self.reporter.note
        prepare(self.serial, install=self.install, tell=self.reporter.tell)
        with closing(connect(self.serial)) as target:
            soc = detect(
                target,
                self.name,
                device=self.device,
                memory_types=self.memory,
                element=self.element,
                cpu_threads=self.threads,
            )
        write(soc, path, tell=note)
        return soc, path


def soc_content(soc: Soc | PublishedSoc) -> dict[str, Any]:
    """A SoC as results have it."""
    return soc.to_json() if isinstance(soc, LocalSoc) else soc.to_dict()
