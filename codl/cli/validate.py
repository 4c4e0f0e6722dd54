"""`codl validate`: whether every op of a plan, and the whole of it, computes what it should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Group
from rich.text import Text

from codl.cli.output import JsonOption, OutputOption, emit
from codl.errors import CodlError
from codl.jobs.validate import Validate
from codl.report.text_table import Table
from codl.validate.remedy import Remedy, reason_of
from codl.validate.validation import Validation


def validate_plan(job: Validate, json: JsonOption = False, output: OutputOption = None) -> None:
    """Each part of an op runs alone in the kernel variant that the plan has for it, on the inputs
    that the reference has there, so that errors do not add up. Then the plan runs as it is, and the
    error that has added up is told layer by layer. So an op that is wrong and a model that drifts
    look different. Where no predictors are trained and --plan is not given, all ops are checked on
    the GPU that it has kernels for; with --strategy cpu on the CPU.

    Where something is wrong, the smallest change is looked for with which it is right: ops run in
    another variant, in one that stores float32, or on the other processor. That is the `fallback`;
    --write-plan and --write-soc keep it for the next run. The exit code is 1 where there is none,
    or --strict forbids it.

    --budget is the time of all of that. What it did not reach is told, and the exit code is 1 then.
    Without it everything is checked, and a fallback is looked for for two minutes.

    [dim]Examples:[/dim]
    codl validate yolov2 --soc host
    codl validate deploy.yaml --soc host --inputs images --labels labels.txt --budget 10m
    codl validate yolov2 --soc host --precision half --write-plan half.json
    codl validate model.onnx --soc host --plan plan.json --inputs in.npz --json
    codl validate mobilenet_v2 --soc host --strategy gpu --serial process --seed 3
    """
    result, done = job.run()
    validation, remedy = done.validation, done.remedy

    def render() -> Group:
        return tables_of(result, validation, remedy)

    emit("validate", result, render, as_json=json, output=output)
    if job.strict and validation.whole.refused:
        raise CodlError(f"--strict: {'; '.join(map(str, validation.whole.refused))}")
    if validation.left or (validation.is_wrong and not (remedy and remedy.ok)):
        raise typer.Exit(1)


def tables_of(result: Mapping[str, Any], validation: Validation, remedy: Remedy | None) -> Group:
    """Two lines and more to an op, so that no word is broken in a terminal of 80 columns."""
    columns = ("", "op, where it runs, and why there", "cosine\nlargest", "error\nso far")
    table = Table(*columns, title=f"Ops of {validation.plan.model}", title_justify="left")
    for row in result["ops"]:
        so_far = row["accumulated_max_rel_err"]
        table.add_row(
            _verdict(row),
            _described(row),
            f"{row['cosine']:.7f}\n{row['largest_expected']:.3g}",
            f"{row['max_rel_err']:.1e}\n" + ("" if so_far is None else f"{so_far:.1e}"),
        )
    for numbers in table.columns[2:]:
        numbers.justify, numbers.no_wrap = "right", True
    table.caption = (
        "largest: the largest value that is expected; error: the largest difference over it, of "
        "the op alone; so far: the same in the whole plan up to here. Everything is computed and "
        "accumulated in float32."
    )
    samples = _sample_lines(result)
    lines = (*_lines(validation), *samples, *_fallback_lines(remedy))
    return Group(table, *lines)


def _described(row: Mapping[str, Any]) -> str:
    """The op; below that what computes it, and why."""
    label = row["op"] if row["with"] is None else f"{row['op']} + {row['with']}"
    stored = f"{row['layout']} {row['precision']['stored']}"
    why = f"; {row['placed']}" if row["placed"] else ""
    return f"{label}\n{row['processor']}: {row['variant']}, {stored}{why}"


def _verdict(row: Mapping[str, Any]) -> Text:
    colors = {True: "green", False: "bold red", None: "yellow"}
    return Text(row["verdict"], style=colors[row["ok"]])


def _sample_lines(result: Mapping[str, Any]) -> list[str]:
    """How often classes agree, of several samples."""
    classes, lowest = result["agreement"], result["lowest"]
    if classes is None:
        return []
    line = (
        f"Of {classes['samples']} samples the largest value is the reference's in "
        f"{classes['top1']:.1%}, and the reference's is among the five largest in "
        f"{classes['top5']:.1%}; the lowest cosine is {lowest['cosine']:.7f}, of {lowest['file']}."
    )
    if classes["accuracy"] is None:
        return [line]
    right = f"{classes['accuracy']:.1%} are at their label, {classes['reference_accuracy']:.1%}"
    return [line, f"{right} of the reference's."]


def _lines(validation: Validation) -> list[str]:
    outputs = validation.whole.worst
    lines = [
        f"{check.part.label} on the {check.part.processor} in {check.part.variant} is "
        f"{reason_of(check)}"
        for check in validation.bad
    ]
    lines += map(str, validation.whole.refused)
    lines.append(
        f"Outputs beside those of {validation.reference}: cosine {outputs.cosine:.7f}, max_rel_err "
        f"{outputs.max_rel_err:.2e}. {validation.diagnosis}"
    )
    return lines


def _fallback_lines(remedy: Remedy | None) -> list[str]:
    """What is changed, and what that leads to."""
    if remedy is None:
        return []
    lines = [f"Fallback: {fallback}" for fallback in remedy.fallbacks]
    lines += [
        f"Nothing was found that stands in for {check.part.label}."
        if check.is_reached
        else f"{check.part.label} with the fallbacks was not reached in time."
        for check in remedy.unmet
    ]
    if remedy.whole is None:
        return [*lines, "The plan does not run with it."]
    right = "right" if remedy.is_right else "still wrong"
    return [
        *lines,
        f"With that the outputs are {right}: cosine {remedy.whole.cosine:.7f}, max_rel_err "
        f"{remedy.whole.max_rel_err:.2e}, the best of {remedy.tried} plans that ran.",
    ]
