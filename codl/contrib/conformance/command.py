"""`codl conformance`: ONNX's node conformance suite on the kernels of the GPU side."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group

from codl.cli.output import JsonOption, OutputOption, emit, progress, tell
from codl.jobs import options as opt
from codl.jobs.devices import DeviceOption
from codl.measure.budget import Budget
from codl.report.text_table import Table
from codl.runtime.placement import LocalSoc
from codl.targets.connect import connect
from codl.targets.detect import detect, load_local

if TYPE_CHECKING:
    from codl.contrib.conformance.suite import CaseResult, ConformanceSummary


def run_conformance(
    soc: Annotated[
        str | None, typer.Option("--soc", help="A SoC; without one this machine is detected.")
    ] = None,
    serial: opt.SerialOption = "local",
    device: DeviceOption = None,
    only: Annotated[str, typer.Option(metavar="REGEX", help="Only cases whose name matches.")] = "",
    everything: Annotated[
        bool,
        typer.Option("--all", help="All cases, those of ops that codl does not know included."),
    ] = False,
    budget_s: opt.BudgetOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Run ONNX's node conformance suite with every op forced onto the GPU side.

    A case passes where ONNX's own check does. What codl cannot run is refused, with the reason.
    Where --budget or Ctrl-C ends it, the cases before are kept.

    [dim]Examples:[/dim]
    codl conformance
    codl conformance --budget 2m
    codl conformance --opencl-device pocl-binary-distribution --only 'resize|pad' --json
    """
    from codl.contrib.conformance import suite as conformance

    limit = Budget(budget_s)
    described = load_local(soc, serial) if soc else _detected(serial, device)
    cases = conformance.select(everything=everything, only=only)
    outcomes: list[CaseResult] = []
    with (
        closing(connect(serial, described)) as target,
        progress(f"Conformance on {described.gpu.name}") as update,
        limit.keeping(outcomes),
    ):
        outcomes.extend(conformance.run(limit.steps(cases, update), target))
    summary, left = conformance.ConformanceSummary(tuple(outcomes)), len(cases) - len(outcomes)
    where = {
        "gpu": described.gpu.name,
        "driver": described.gpu.driver,
        "icd": described.placement.icd,
    }
    ended = {"seconds": round(limit.spent_s, 1), "stopped": limit.ended, "left": left}
    result = {**where, **ended, **summary.to_json()}
    emit(
        "conformance",
        result,
        lambda: _table(summary, result, described.gpu.platform),
        as_json=json,
        output=output,
    )
    if text := limit.left_out(left, "cases"):
        tell(text)
    limit.check("The cases before are kept.")


def _detected(serial: str, device: str | None) -> LocalSoc:
    with closing(connect(serial)) as target:
        return detect(target, "here", device=device)


def _table(summary: ConformanceSummary, result: Mapping[str, Any], platform: str) -> Group:
    """Counts by op, and what they come to."""
    title = f"ONNX {result['onnx']} node cases on {platform}"
    table = Table("op", "passed", "failed", "refused", "why", title=title, title_justify="left")
    for op in summary.ops:
        counts = [summary.count(s, op) for s in ("passed", "failed", "refused")]
        reasons = summary.reasons("failed", op) + summary.reasons("refused", op)
        why = "\n".join(f"{n} x {text}" for text, n in reasons.most_common())
        table.add_row(op, *(str(n or "") for n in counts), why)
    native = result["passed"] - summary.converted
    lines = (
        f"{result['passed']} of {result['cases']} cases passed, {result['failed']} failed, "
        f"{result['refused']} refused, in {result['seconds']:.0f} s.",
        f"Of those that passed, {native} ran in their own type (float32) and "
        f"{summary.converted} were converted at the borders (other floats, integers, bool); "
        f"{summary.renamings} only rename a tensor and left the GPU nothing to do.",
    )
    return Group(table, *lines)
