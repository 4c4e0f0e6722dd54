"""Tables of validations: the ops of one plan, and many models in a line each."""

from __future__ import annotations

from collections.abc import Sequence

from codl.report.results import CheckedOp, ValidatedModel, ValidateResult, ValidationsResult
from codl.report.tables import origin_lines, soc_lines
from codl.report.text_table import NONE, Cell, Column, TextTable, count, digits, nearness, words


def validation_content(result: ValidateResult) -> TextTable:
    """Every part of the ops of one plan."""
    cells: list[Cell[CheckedOp]] = [
        (words("op"), lambda op: op.op),
        (words("processor"), lambda op: op.processor),
        (words("variant"), lambda op: op.variant),
        (
            words("stored"),
            lambda op: f"{op.layout} {op.precision.get('stored', '')}".strip() or NONE,
        ),
        (words("verdict"), lambda op: f"{op.verdict}: {op.reason}" if op.reason else op.verdict),
        (Column("cosine"), lambda op: nearness(op.cosine)),
        (Column("error"), lambda op: digits(op.max_rel_err)),
        (Column("so far"), lambda op: digits(op.accumulated_max_rel_err)),
        (words("why there"), lambda op: op.placed or NONE),
    ]
    caption = (
        "Error: the largest difference over the largest value, of the op alone on the reference's "
        "inputs; so far: the same in the whole plan up to there.",
        *soc_lines(result.soc),
    )
    return TextTable.of(
        f"Ops of {result.model} by {result.strategy or NONE}", result.ops, cells, caption
    )


def findings(result: ValidateResult) -> tuple[str, ...]:
    """What it came to, and what runs instead."""
    return (result.diagnosis, *(f"Fallback: {fallback}" for fallback in result.fallback))


def validations_content(results: Sequence[ValidationsResult]) -> TextTable:
    """Many models on several devices: a line for each model on each."""
    cells: list[Cell[ValidatedModel]] = [
        (words("model"), lambda row: row.model),
        (words("on"), _where),
        (Column("parts of ops"), lambda row: count(row.parts)),
        (Column("variants"), lambda row: count(row.variants)),
        (Column("not ok"), lambda row: count(len(row.wrong) + row.left)),
        (Column("lowest cosine", group="of one op"), lambda row: nearness(row.op_cosine)),
        (Column("error of its limit", group="of one op"), lambda row: digits(row.op_err)),
        (Column("cosine", group="outputs"), lambda row: nearness(row.cosine)),
        (Column("error", group="outputs"), lambda row: digits(row.max_rel_err)),
    ]
    rows = {_device(result): result.rows for result in results}
    caption = (
        "Error of its limit: the largest error of an op over what is rounding in its variant, so "
        "below 1 where all are ok.",
        *(line for result in results for line in _wrong(result)),
        *(line for result in results for line in origin_lines(result)),
    )
    return TextTable.of("Validated models", rows, cells, caption, failure=lambda row: row.reason)


def _device(result: ValidationsResult) -> str:
    """By its platform, where that is known: a CPU has several."""
    platform = result.environment.platform if result.environment else ""
    return f"{platform or result.gpu}, {result.driver}"


def _where(row: ValidatedModel) -> str:
    return row.processor if row.processor == "cpu" else f"{row.processor}, {row.stored}"


def _wrong(result: ValidationsResult) -> list[str]:
    return [
        f"Not ok in {row.model} on {_device(result)}: {', '.join(row.wrong)}."
        for row in result.rows
        if row.wrong
    ]
