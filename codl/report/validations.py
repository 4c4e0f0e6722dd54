"""Tables of validations: the ops of one plan, and many models in a line each."""

from __future__ import annotations

from collections.abc import Sequence

from codl.report.results import CheckedOp, ValidatedModel, ValidateResult, ValidationsResult
from codl.report.tables import origin_lines, soc_lines
from codl.report.text_table import (
    NONE,
    Column,
    TextRow,
    TextSection,
    TextTable,
    count,
    digits,
    nearness,
)


def validation_content(result: ValidateResult) -> TextTable:
    """Every part of the ops of one plan."""
    headers = ("op", "processor", "variant", "stored", "verdict")
    columns = (
        *(Column(name, numeric=False) for name in headers),
        *map(Column, ("cosine", "error", "so far")),
        Column("why there", numeric=False),
    )
    rows = tuple(TextRow(_cells(op)) for op in result.ops)
    caption = (
        "Error: the largest difference over the largest value, of the op alone on the reference's "
        "inputs; so far: the same in the whole plan up to there.",
        *soc_lines(result.soc),
    )
    title = f"Ops of {result.model} by {result.strategy or NONE}"
    return TextTable(title, columns, (TextSection("", rows),), caption)


def _cells(op: CheckedOp) -> tuple[str, ...]:
    return (
        op.op,
        op.processor,
        op.variant,
        " ".join(filter(None, (op.layout, op.precision.get("stored", "")))) or NONE,
        f"{op.verdict}: {op.reason}" if op.reason else op.verdict,
        nearness(op.cosine),
        digits(op.max_rel_err),
        digits(op.accumulated_max_rel_err),
        op.placed or NONE,
    )


def findings(result: ValidateResult) -> tuple[str, ...]:
    """What it came to, and what runs instead."""
    return (result.diagnosis, *(f"Fallback: {fallback}" for fallback in result.fallback))


def validations_content(results: Sequence[ValidationsResult]) -> TextTable:
    """Many models on several devices: a line for each model on each."""
    columns = (
        Column("model", numeric=False),
        Column("on", numeric=False),
        *map(Column, ("parts of ops", "variants", "not ok")),
        Column("lowest cosine", group="of one op"),
        Column("error of its limit", group="of one op"),
        Column("cosine", group="outputs"),
        Column("error", group="outputs"),
    )
    sections = tuple(
        TextSection(_device(result), tuple(map(_line, result.rows))) for result in results
    )
    caption = (
        "Error of its limit: the largest error of an op over what is rounding in its variant, so "
        "below 1 where all are ok.",
        *(line for result in results for line in _wrong(result)),
        *(line for result in results for line in origin_lines(result)),
    )
    return TextTable("Validated models", columns, sections, caption)


def _device(result: ValidationsResult) -> str:
    """By its platform, where that is known: a CPU has several."""
    platform = result.environment.platform if result.environment else ""
    return f"{platform or result.gpu}, {result.driver}"


def _line(row: ValidatedModel) -> TextRow:
    if row.reason:
        return TextRow((row.model,), failure=row.reason)
    where = row.processor if row.processor == "cpu" else f"{row.processor}, {row.stored}"
    counts = (row.parts, row.variants, len(row.wrong) + row.left)
    figures = (nearness(row.op_cosine), digits(row.op_err))
    outputs = (nearness(row.cosine), digits(row.max_rel_err))
    return TextRow((row.model, where, *map(count, counts), *figures, *outputs))


def _wrong(result: ValidationsResult) -> list[str]:
    return [
        f"Not ok in {row.model} on {_device(result)}: {', '.join(row.wrong)}."
        for row in result.rows
        if row.wrong
    ]
