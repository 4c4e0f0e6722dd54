"""`codl doctor`: whether a device has what codl needs, and computes what it should.

It imports nothing that an extra brings but the command line's own: a missing one is a finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from codl.cli.output import JsonOption, OutputOption, emit, note, progress
from codl.doctor import BUDGET_S, examine
from codl.jobs.options import SerialOption, option, read_budget
from codl.measure.budget import Budget
from codl.report.text_table import Table
from codl.targets.checks import Finding

QuickOption = Annotated[
    bool, option("--quick", help="Leave out the kernels, which take a minute or more.")
]
BudgetOption = Annotated[
    float,
    option(
        "--budget",
        help="How long all kernels may take, such as 90s or 10m: the rest is quick.",
        read=read_budget,
        text=f"{BUDGET_S:g}s",
    ),
]


def check_device(
    serial: SerialOption = "local",
    quick: QuickOption = False,
    budget_s: BudgetOption = BUDGET_S,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Python, packages, OpenCL drivers, cores, memory and room are looked at, and every kernel
    variant computes small ops that NumPy computes too. Drivers work in processes of their own, so
    that one that crashes is a failed check. Every check that fails says what to do; the exit code
    is 1 then.

    [dim]Examples:[/dim]
    codl doctor
    codl doctor --quick --json
    codl doctor --serial process --budget 2m
    """
    findings: list[Finding] = []
    limit = Budget()
    with limit.keeping(findings):
        for finding in examine(serial, quick=quick, budget_s=budget_s, progress=progress):
            note(f"{finding.name}: {'ok' if finding.ok else 'failed'}")
            findings.append(finding)
    result = {"checks": [asdict(finding) for finding in findings]}
    emit("doctor", result, lambda: _table(findings, serial), as_json=json, output=output)
    limit.check("The checks before are kept.")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _table(findings: Sequence[Finding], serial: str) -> Group:
    table = Table("", "check", "detail", "what to do", title_justify="left")
    table.title = f"Checks of {serial}"
    for finding in findings:
        state = Text("ok", "green") if finding.ok else Text("failed", "bold red")
        table.add_row(state, finding.name, finding.detail, finding.fix)
    failed = sum(not finding.ok for finding in findings)
    return Group(table, f"{len(findings)} checks, {failed} failed.")
