"""What `codl validate` answers: its keys in JSON, and a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.text import Text

from codl.report.terminal import Table
from codl.validate.remedy import Remedy, reason_of
from codl.validate.validation import Validation


def result_of(found: Validation, remedy: Remedy | None) -> dict[str, Any]:
    bad = found.first_bad
    return {
        "model": found.plan.model,
        "strategy": found.plan.strategy,
        "ok": found.ok,
        "diagnosis": found.diagnosis,
        "left": {
            "ops": [one.use.label for one in found.ops.checks if not one.is_reached],
            "samples": found.samples_left,
        },
        "first_bad": None if bad is None else bad.use.layer.name,
        "fallback": [] if remedy is None else [asdict(one) for one in remedy.fallbacks],
        "remedy": None if remedy is None else _remedy(remedy),
        "reference": found.reference,
        "references": None if found.references is None else asdict(found.references),
        "outputs": asdict(found.whole.worst),
        "cosine": found.whole.worst.cosine,
        "max_rel_err": found.whole.worst.max_rel_err,
        "accumulated_lost": found.ops.lost,
        "fallbacks": [asdict(one) for one in found.whole.refused],
        "placement": [asdict(one) for one in found.placed],
        "ops": found.rows(),
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    """How right the plan is with its fallbacks."""
    return {
        "ok": remedy.ok,
        "outputs": None if remedy.whole is None else asdict(remedy.whole),
        "unmet": [one.use.layer.name for one in remedy.unmet],
        "plans_tried": remedy.tried,
        "predicted_ms": remedy.plan.predicted_ms,
    }


def tables_of(result: Mapping[str, Any], found: Validation, remedy: Remedy | None) -> Group:
    """Two lines and more to an op, so that no word is broken in a terminal of 80 columns."""
    columns = ("", "op, where it runs, and why there", "cosine\nlargest", "error\nso far")
    table = Table(*columns, title=f"Ops of {found.plan.model}", title_justify="left")
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
    lines = (*_lines(found), *samples, *_fallback_lines(remedy))
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
    found, lowest = result["agreement"], result["lowest"]
    if found is None:
        return []
    line = (
        f"Of {found['samples']} samples the largest value is the reference's in "
        f"{found['top1']:.1%}, and the reference's is among the five largest in "
        f"{found['top5']:.1%}; the lowest cosine is {lowest['cosine']:.7f}, of {lowest['file']}."
    )
    if found["accuracy"] is None:
        return [line]
    right = f"{found['accuracy']:.1%} are at their label, {found['reference_accuracy']:.1%}"
    return [line, f"{right} of the reference's."]


def _lines(found: Validation) -> list[str]:
    outputs = found.whole.worst
    lines = [
        f"{one.use.label} on the {one.use.processor} in {one.use.variant} is {reason_of(one)}"
        for one in found.bad
    ]
    lines += map(str, found.whole.refused)
    lines.append(
        f"Outputs beside those of {found.reference}: cosine {outputs.cosine:.7f}, max_rel_err "
        f"{outputs.max_rel_err:.2e}. {found.diagnosis}"
    )
    return lines


def _fallback_lines(remedy: Remedy | None) -> list[str]:
    """What is changed, and what that leads to."""
    if remedy is None:
        return []
    lines = [f"Fallback: {one}" for one in remedy.fallbacks]
    lines += [
        f"Nothing was found that stands in for {one.use.label}."
        if one.is_reached
        else f"{one.use.label} with the fallbacks was not reached in time."
        for one in remedy.unmet
    ]
    if remedy.whole is None:
        return [*lines, "The plan does not run with it."]
    right = "right" if remedy.is_right else "still wrong"
    return [
        *lines,
        f"With that the outputs are {right}: cosine {remedy.whole.cosine:.7f}, max_rel_err "
        f"{remedy.whole.max_rel_err:.2e}, the best of {remedy.tried} plans that ran.",
    ]
