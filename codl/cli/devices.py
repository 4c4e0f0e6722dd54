"""`codl devices` and `codl soc`: what this machine has, and the SoC files that describe it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Group
from rich.syntax import Syntax

from codl.cli import options as opt
from codl.cli.output import emit, note
from codl.errors import DeviceError
from codl.files import check_writable, inside, set_aside
from codl.records import soc as socs
from codl.records.soc import ELEMENT_NAMES, MEMORY_TYPES, Soc
from codl.records.soc_facts import PublishedSoc
from codl.report.text_table import Table
from codl.runtime.detect import choose, describe
from codl.runtime.hardware import CpuFacts
from codl.runtime.placement import LocalSoc, beside
from codl.runtime.placement import read as read_placement
from codl.runtime.probe import ProbeResult
from codl.targets.base import TargetInfo
from codl.targets.connect import connect, transport_of
from codl.targets.detect import FoundFacts, detect, find_facts, load_local

soc_app = typer.Typer(
    help="""SoC files: the pair of processors under study.

[dim]Examples:[/dim]
codl soc detect --serial local --name host
codl soc list
codl soc show host""",
    no_args_is_help=True,
)


def list_devices(
    serial: opt.SerialOption = "local",
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """List the processors of this machine, and where their threads really run.

    Every OpenCL driver is probed in a process of its own, so that one that crashes is reported and
    nothing else happens. The observed cores are those on which each side's threads were seen at
    work.

    [dim]Example:[/dim] codl devices --json
    """
    target = connect(serial)
    probed, info = target.probe(), target.describe()
    failures = [{"icd": r.icd, "error": r.error} for r in probed if r.error]
    try:
        soc, problem = describe("here", choose(probed, None), cpu=info.cpu), ""
    except DeviceError as error:
        soc, problem = None, str(error)
    target.close()
    seen = _observed(serial, soc) if soc and transport_of(serial).is_machine else {}
    processors = [_cpu(info.cpu, soc, seen), *_gpus(probed, soc, seen)]
    sensors = [asdict(sensor) for sensor in info.sensors]
    result = {
        "processors": processors,
        "failed": failures,
        "problem": problem,
        "energy_sensors": sensors,
        "unreadable_sensors": info.unreadable_sensors,
    }

    def render() -> Group:
        table = Table(title="Processors", title_justify="left")
        for column in ("kind", "name", "driver", "cores", "observed on", "memory", "used"):
            table.add_column(column)
        for p in processors:
            cells = ("cores", "observed_cores", "memory_types")
            lists = [", ".join(str(v) for v in p[key]) or "-" for key in cells]
            table.add_row(p["kind"], p["name"], p["driver"], *lists, "yes" if p["used"] else "")
        lines = [f"{f['icd']} failed: {f['error']}" for f in failures]
        lines.append(_energy_line(info))
        return Group(table, *lines, *([problem] if problem else []))

    emit("devices", result, render, as_json=json, output=output)


def _observed(serial: str, soc: Soc) -> dict[str, list[int]]:
    with closing(connect(serial, soc)) as target:
        return target.observe_cores()


def _energy_line(info: TargetInfo) -> str:
    sensors = ", ".join(f"{s.name} ({s.part})" for s in info.sensors)
    unreadable = info.unreadable_sensors.items()
    refused = [f"{name} cannot be read: {reason}" for name, reason in unreadable]
    return "; ".join([f"Energy sensors: {sensors or 'none'}", *refused]) + "."


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


@soc_app.command("list")
def list_socs(json: opt.JsonOption = False, output: opt.OutputOption = None) -> None:
    """List the SoC files in ./socs, and those that come with codl.

    The source is measured where codl measures a SoC, replayed where somebody else did, and
    published where only facts are known.

    [dim]Example:[/dim] codl soc list
    """
    described = [socs.read(name) for name in socs.names()]

    def render() -> Table:
        table = Table("name", "source", "description", title="SoCs", title_justify="left")
        for soc in described:
            table.add_row(soc.name, soc.source, soc.description)
        if not any(socs.own_path_of(soc.name).is_file() for soc in described):
            table.caption = "All come with codl; `codl soc detect --name host` describes this one."
        return table

    content = {"socs": [soc.to_dict() for soc in described]}
    emit("soc list", content, render, as_json=json, output=output)


@soc_app.command("show")
def show_soc(
    name: opt.SocArgument,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Show one SoC; of published facts, also where they are from.

    [dim]Example:[/dim] codl soc show sdm855
    """
    soc = socs.read(name)
    if isinstance(soc, Soc):
        soc = read_placement(soc, socs.path_of(name)) or soc
    emit("soc show", _content(soc), lambda: soc_yaml(soc), as_json=json, output=output)


@soc_app.command("detect")
def detect_soc(
    name: Annotated[str, typer.Option(help="The name of the SoC file.")] = "host",
    serial: opt.SerialOption = "local",
    device: opt.DeviceOption = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What tensors lie in, of {', '.join(MEMORY_TYPES)}; may be repeated. "
            "By default all that a GPU has, on a CPU buffers."
        ),
    ] = None,
    element: Annotated[
        str, typer.Option(help=f"What tensors are stored as: {' or '.join(ELEMENT_NAMES)}.")
    ] = ELEMENT_NAMES[0],
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="Measure what no driver tells truly: how the two sides meet.",
        ),
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The file; socs/NAME.yaml by default.",
            callback=opt.writable,
        ),
    ] = None,
    json: opt.JsonOption = False,
) -> None:
    """Describe a device as a SoC and write its file, and beside it where its parts are here.

    On a machine without a GPU the cores are divided between the CPU side and an OpenCL runtime that
    works on a CPU.

    With several memory types, `codl collect` measures kernels over each of them, and the planner
    takes the faster one for every op. --element is for models that ask for no --precision: float16
    is half_storage, the GPU still computes and accumulates in float32.

    What is measured takes some seconds, in processes that a driver may take down.
    docs/reference/soc.md explains every key.

    [dim]Example:[/dim] codl soc detect --serial local --name host
    codl soc detect --serial process --name quick --no-measure
    """
    chosen = [part for text in memory or () for part in text.split(",")]
    path = output or socs.own_path_of(inside(socs.FOLDER, name).name)
    check_writable(path)
    with closing(connect(serial)) as target:
        soc = detect(target, name, device=device, memory_types=chosen, element=element)
        facts = find_facts(target, soc, note=note) if measure else FoundFacts(soc)
    soc = facts.soc
    if kept := set_aside(path):
        note(f"What {path} held before is kept as {kept}")
    soc.save(path)
    for fact in facts.unknown:
        note(f"{fact.key} could not be measured: {fact.reason}")
    note(f"Wrote {path}, and {beside(path)}: where its parts are on this machine")
    emit("soc detect", {**_content(soc), "file": str(path)}, lambda: soc_yaml(soc), as_json=json)


@soc_app.command("power")
def measure_soc_power(
    name: opt.SocArgument,
    serial: opt.SerialOption = "local",
    time: Annotated[
        str, typer.Option("--time", help="For each of the four.", callback=opt.duration)
    ] = "3s",
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Measure the power of a SoC (idle, each processor alone, both) and write it to its file.

    Objectives that count energy need it. It needs a sensor; `codl devices` lists them.

    [dim]Example:[/dim] codl soc power host
    """
    soc = load_local(name, serial)
    with closing(connect(serial, soc)) as target:
        measured = replace(soc, power_w=target.power(opt.read_budget(time, "--time")))
    note(f"Wrote {measured.save(socs.own_path_of(name))}")
    emit("soc power", _content(measured), lambda: soc_yaml(measured), as_json=json, output=output)


def _content(soc: Soc | PublishedSoc) -> dict[str, Any]:
    return soc.to_json() if isinstance(soc, LocalSoc) else soc.to_dict()


def soc_yaml(soc: Soc | PublishedSoc) -> Syntax:
    text = soc.to_yaml()
    if isinstance(soc, LocalSoc):
        text += yaml.safe_dump({"placement": soc.placement.to_dict()}, sort_keys=False)
    return Syntax(text.rstrip(), "yaml", background_color="default")
