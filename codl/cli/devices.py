"""`codl devices` and `codl soc`: what this machine has, and the SoC files that describe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
import yaml
from rich.syntax import Syntax

from codl.cli.output import TERMINAL, JsonOutput, Output, note, tell
from codl.ir.records import soc as socs
from codl.ir.records.soc import PublishedSoc, Soc
from codl.jobs import options as opt
from codl.jobs.devices import DetectSoc, processors, soc_content
from codl.jobs.doctor import BUDGET_S, examine
from codl.jobs.options import InstallOption, SerialOption, budget_option, option
from codl.machine.placement import LocalSoc
from codl.machine.placement import read as read_placement
from codl.measure.budget import Budget
from codl.report.text_table import TextTable
from codl.targets.checks import Finding


def check_device(
    out: Output,
    serial: SerialOption = "local",
    quick: Annotated[
        bool, option("--quick", help="Skip the kernels, which take a minute or more.")
    ] = False,
    install: InstallOption = True,
    budget_s: Annotated[
        float,
        budget_option("Time limit of the kernels, such as 90s.", f"{BUDGET_S:g}s"),
    ] = BUDGET_S,
) -> None:
    """Checks Python, packages, OpenCL drivers, cores, memory, disk space, and every kernel variant
    against NumPy. Drivers run in their own processes: a crash is a failed check. A failed check
    names its fix; the exit code is then 1.

    [dim]Examples:[/dim]
    codl doctor
    codl doctor --quick --json
    codl doctor --serial process --budget 2m
    """
    findings: list[Finding] = []
    limit = Budget()
    with limit.keeping(findings):
        for finding in examine(
            serial, quick=quick, budget_s=budget_s, install=install, reporter=TERMINAL
        ):
            note(f"{finding.name}: {'ok' if finding.ok else 'failed'}")
            findings.append(finding)
    result = {"checks": [asdict(finding) for finding in findings]}
    out.emit("doctor", result, lambda: _table(findings, serial))
    limit.check("The checks before are kept.")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _table(findings: Sequence[Finding], serial: str) -> TextTable:
    rows = [("ok" if f.ok else "failed", f.name, f.detail, f.fix) for f in findings]
    failed = sum(not finding.ok for finding in findings)
    caption = f"{len(findings)} checks, {failed} failed."
    heads = ("", "check", "detail", "what to do")
    return TextTable.plain(f"Checks of {serial}", heads, rows, [caption])


SocArgument = Annotated[str, opt.argument(f"{opt.SOCS}.")]


def list_devices(
    out: Output, serial: opt.SerialOption = "local", install: opt.InstallOption = True
) -> None:
    """Each OpenCL driver is probed in its own process, so a crash is reported and ends nothing.

    [dim]Example:[/dim] codl devices --json
    """
    result = processors(serial, install=install, tell=tell)
    out.emit("devices", result, lambda: _processors(result))


def _processors(result: Mapping[str, Any]) -> TextTable:
    lists = ("cores", "memory_types")
    rows = [
        (p["kind"], p["name"], p["driver"], *(", ".join(map(str, p[key])) for key in lists),
         "yes" if p["used"] else "no")
        for p in result["processors"]
    ]  # fmt: skip
    sensors = ", ".join(f"{s['name']} ({s['part']})" for s in result["energy_sensors"])
    caption = [f"{failure['icd']} failed: {failure['error']}" for failure in result["failed"]]
    caption.append(f"Energy sensors: {sensors or 'none'}.")
    unreadable = result["unreadable_sensors"].items()
    caption += [f"{name} cannot be read: {reason}." for name, reason in unreadable]
    caption += filter(None, [result["problem"]])
    heads = ("kind", "name", "driver", "cores", "memory", "used")
    spare = ("memory", "driver")
    return TextTable.plain("Processors", heads, rows, caption, spare=spare)


def list_socs(out: Output) -> None:
    """The source is `measured` by codl, `replayed` from other people's measurements, or
    `published`: facts without latencies.

    [dim]Example:[/dim] codl soc list
    """
    described = [socs.read(name) for name in socs.names()]

    def render() -> TextTable:
        rows = [(soc.name, soc.source, soc.description) for soc in described]
        are_shipped = not any(socs.own_path_of(soc.name).is_file() for soc in described)
        how = "All come with codl; `codl soc detect --name host` describes this one."
        heads = ("name", "source", "description")
        return TextTable.plain("SoCs", heads, rows, [how] if are_shipped else ())

    content = {"socs": [soc.to_dict() for soc in described]}
    out.emit("soc list", content, render)


def show_soc(out: Output, name: SocArgument) -> None:
    """[dim]Example:[/dim] codl soc show sdm855"""
    soc = socs.read(name)
    if isinstance(soc, socs.Soc):
        soc = read_placement(soc, socs.path_of(name)) or soc
    out.emit("soc show", soc_content(soc), lambda: soc_yaml(soc))


def detect_soc(job: DetectSoc, out: JsonOutput) -> None:
    """The CPU side gets the fast physical cores of one NUMA node; with --threads N it has N threads
    on them, or on all cores if N is more. Without a GPU the cores are divided between the CPU side
    and an OpenCL runtime for CPUs.

    With several memory types `codl collect` measures kernels over each. --element is the stored
    type without --precision: float16 is half_storage. docs/reference/soc.md lists the keys.

    [dim]Example:[/dim] codl soc detect --serial local --name host
    codl soc detect --serial process --name quick
    """
    soc, path = job.run()
    content = {**soc_content(soc), "file": str(path)}
    out.emit("soc detect", content, lambda: soc_yaml(soc))


def soc_yaml(soc: Soc | PublishedSoc) -> Syntax:
    text = yaml.safe_dump(soc.to_dict(), sort_keys=False, width=100, allow_unicode=True)
    if isinstance(soc, LocalSoc):
        text += yaml.safe_dump({"placement": soc.placement.to_dict()}, sort_keys=False)
    return Syntax(text.rstrip(), "yaml", background_color="default")
