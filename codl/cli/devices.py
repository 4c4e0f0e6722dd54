"""`codl devices` and `codl soc`: what this machine has, and the SoC files that describe it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Annotated, Any

import yaml
from rich.console import Group
from rich.syntax import Syntax

from codl.cli.output import JsonOption, OutputOption, emit, note
from codl.jobs import options as opt
from codl.jobs.devices import DetectSoc, processors, soc_content
from codl.records import soc as socs
from codl.records.soc import Soc
from codl.records.soc_facts import PublishedSoc
from codl.report.text_table import Table
from codl.runtime.placement import LocalSoc
from codl.runtime.placement import read as read_placement
from codl.targets.connect import connect
from codl.targets.detect import load_local

PowerTimeOption = Annotated[float, opt.time_option("3s", help="For each of the four.")]
SocArgument = Annotated[str, opt.argument(f"{opt.SOCS}.")]


def list_devices(
    serial: opt.SerialOption = "local",
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Every OpenCL driver is probed in a process of its own, so that one that crashes is reported
    and nothing else happens. The observed cores are those on which each side's threads were seen at
    work.

    [dim]Example:[/dim] codl devices --json
    """
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


def list_socs(json: JsonOption = False, output: OutputOption = None) -> None:
    """The source is measured where codl measures a SoC, replayed where somebody else did, and
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


def show_soc(
    name: SocArgument,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """[dim]Example:[/dim] codl soc show sdm855"""
    soc = socs.read(name)
    if isinstance(soc, socs.Soc):
        soc = read_placement(soc, socs.path_of(name)) or soc
    emit("soc show", soc_content(soc), lambda: soc_yaml(soc), as_json=json, output=output)


def detect_soc(job: DetectSoc, json: JsonOption = False) -> None:
    """The CPU side gets the fast cores of one NUMA node, one of each physical core. With --threads
    N it gets N of them, which share a cache where possible. On a machine without a GPU the cores
    are divided between the CPU side and an OpenCL runtime that works on a CPU.

    With several memory types, `codl collect` measures kernels over each of them, and the planner
    takes the faster one for every op. --element is for models that ask for no --precision: float16
    is half_storage, the GPU still computes and accumulates in float32.

    What is measured takes some seconds, in processes that a driver may take down.
    docs/reference/soc.md explains every key.

    [dim]Example:[/dim] codl soc detect --serial local --name host
    codl soc detect --serial process --name quick --no-measure
    """
    soc, path = job.run()
    content = {**soc_content(soc), "file": str(path)}
    emit("soc detect", content, lambda: soc_yaml(soc), as_json=json)


def measure_soc_power(
    name: SocArgument,
    serial: opt.SerialOption = "local",
    time: PowerTimeOption = 3.0,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Objectives that count energy need it. It needs a sensor; `codl devices` lists them.

    [dim]Example:[/dim] codl soc power host
    """
    soc = load_local(name, serial)
    with closing(connect(serial, soc)) as target:
        measured = replace(soc, power_w=target.power(time))
    note(f"Wrote {measured.save(socs.own_path_of(name))}")
    content = soc_content(measured)
    emit("soc power", content, lambda: soc_yaml(measured), as_json=json, output=output)


def soc_yaml(soc: Soc | PublishedSoc) -> Syntax:
    """A SoC as its files say it."""
    text = soc.to_yaml()
    if isinstance(soc, LocalSoc):
        text += yaml.safe_dump({"placement": soc.placement.to_dict()}, sort_keys=False)
    return Syntax(text.rstrip(), "yaml", background_color="default")
