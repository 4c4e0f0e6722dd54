"""`codl devices` and `codl soc`: what this machine has, and the SoC files that describe it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.syntax import Syntax

from codl.cli import options as opt
from codl.cli.output import TERMINAL, emit, note
from codl.files import inside
from codl.report.text_table import Table

if TYPE_CHECKING:
    from codl.records.soc import Soc
    from codl.records.soc_facts import PublishedSoc

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
    from codl.api.devices import processors

    result = processors(serial)
    emit("devices", result, lambda: _processors(result), as_json=json, output=output)


def _processors(result: Mapping[str, Any]) -> Group:
    columns = ("kind", "name", "driver", "cores", "observed on", "memory", "used")
    table = Table(*columns, title="Processors", title_justify="left")
    for p in result["processors"]:
        cells = ("cores", "observed_cores", "memory_types")
        lists = [", ".join(str(v) for v in p[key]) or "-" for key in cells]
        table.add_row(p["kind"], p["name"], p["driver"], *lists, "yes" if p["used"] else "")
    lines = [f"{failure['icd']} failed: {failure['error']}" for failure in result["failed"]]
    lines.append(_energy_line(result))
    return Group(table, *lines, *filter(None, [result["problem"]]))


def _energy_line(result: Mapping[str, Any]) -> str:
    sensors = ", ".join(f"{s['name']} ({s['part']})" for s in result["energy_sensors"])
    unreadable = result["unreadable_sensors"].items()
    refused = [f"{name} cannot be read: {reason}" for name, reason in unreadable]
    return "; ".join([f"Energy sensors: {sensors or 'none'}", *refused]) + "."


@soc_app.command("list")
def list_socs(json: opt.JsonOption = False, output: opt.OutputOption = None) -> None:
    """List the SoC files in ./socs, and those that come with codl.

    The source is measured where codl measures a SoC, replayed where somebody else did, and
    published where only facts are known.

    [dim]Example:[/dim] codl soc list
    """
    from codl.records import soc as socs

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
    from codl.api.devices import soc_content
    from codl.records import soc as socs
    from codl.runtime.placement import read as read_placement

    soc = socs.read(name)
    if isinstance(soc, socs.Soc):
        soc = read_placement(soc, socs.path_of(name)) or soc
    emit("soc show", soc_content(soc), lambda: soc_yaml(soc), as_json=json, output=output)


@soc_app.command("detect")
def detect_soc(
    name: Annotated[str, typer.Option(help="The name of the SoC file.")] = "host",
    serial: opt.SerialOption = "local",
    device: opt.DeviceOption = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            help="What tensors lie in, of {codl.records.soc:MEMORY_TYPES}; may be repeated. "
            "By default all that a GPU has, on a CPU buffers."
        ),
    ] = None,
    element: Annotated[
        str, typer.Option(help="What tensors are stored as: {codl.cli.help_words:elements}.")
    ] = "float32",
    threads: opt.ThreadsOption = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="Measure what no driver tells truly: how the two sides meet, and whether threads "
            "of the CPU side are faster pinned.",
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

    The CPU side gets the fast cores of one NUMA node, one of each physical core. With --threads N
    it gets N of them, which share a cache where possible. On a machine without a GPU the cores are
    divided between the CPU side and an OpenCL runtime that works on a CPU.

    With several memory types, `codl collect` measures kernels over each of them, and the planner
    takes the faster one for every op. --element is for models that ask for no --precision: float16
    is half_storage, the GPU still computes and accumulates in float32.

    What is measured takes some seconds, in processes that a driver may take down.
    docs/reference/soc.md explains every key.

    [dim]Example:[/dim] codl soc detect --serial local --name host
    codl soc detect --serial process --name quick --no-measure
    """
    from codl.api.devices import describe_soc, soc_content
    from codl.records import soc as socs

    path = output or socs.own_path_of(inside(socs.FOLDER, name).name)
    soc = describe_soc(
        serial,
        name,
        path,
        device=device,
        memory=opt.names_of(memory),
        element=element,
        cpu_threads=threads,
        measure=measure,
        reporter=TERMINAL,
    )
    content = {**soc_content(soc), "file": str(path)}
    emit("soc detect", content, lambda: soc_yaml(soc), as_json=json)


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
    from codl.api.devices import soc_content
    from codl.records import soc as socs
    from codl.targets.connect import connect
    from codl.targets.detect import load_local

    soc = load_local(name, serial)
    with closing(connect(serial, soc)) as target:
        measured = replace(soc, power_w=target.power(opt.read_budget(time, "--time")))
    note(f"Wrote {measured.save(socs.own_path_of(name))}")
    content = soc_content(measured)
    emit("soc power", content, lambda: soc_yaml(measured), as_json=json, output=output)


def soc_yaml(soc: Soc | PublishedSoc) -> Syntax:
    """A SoC as its files say it."""
    import yaml

    from codl.runtime.placement import LocalSoc

    text = soc.to_yaml()
    if isinstance(soc, LocalSoc):
        text += yaml.safe_dump({"placement": soc.placement.to_dict()}, sort_keys=False)
    return Syntax(text.rstrip(), "yaml", background_color="default")
