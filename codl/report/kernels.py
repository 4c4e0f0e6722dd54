"""Tables of what phones' compilers make of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from codl.ir.types import PRECISIONS
from codl.records.kernel_figures import KernelFigures, KernelSummary
from codl.report.results import KernelsResult
from codl.report.text_table import NONE, Cell, Column, TextTable, count, words


def kernels_content(result: KernelsResult) -> TextTable:
    """A row for every kernel of every program on one GPU."""
    cells: list[Cell[KernelFigures]] = [
        (words("variant"), lambda row: row.variant),
        (words("kernel", spare=1), lambda row: row.kernel),
        (words("op, and a choice that is not the default"), _op),
        (Column("ops", spare=2), lambda row: count(row.ops)),
        (Column("instructions"), lambda row: count(row.instructions)),
        (Column("registers"), _registers),
        (Column("private bytes"), lambda row: _some(row.private_bytes)),
        (Column("all", group="spills"), lambda row: _some(row.spills)),
        (Column("hot", group="spills"), lambda row: _some(row.hot_spills)),
        (Column("waves"), _waves),
        (Column("barriers", spare=3), lambda row: _some(row.barriers)),
        (Column("loops", spare=4), lambda row: _some(row.loops)),
        (Column("slots for 100 MACs"), _slots),
        (Column("lanes %"), _lanes),
    ]
    caption = (_in_words(result.summary),)
    title = f"Kernels of {result.label}, {result.compiler}"
    return TextTable.of(title, result.kernels, cells, caption, failure=lambda row: row.error)


def _compiler(result: KernelsResult) -> str:
    told = "mesa-opencl-icd"  # whose version the driver says itself
    others = (f"{name} {version}" for name, version in result.packages.items() if name != told)
    return ", ".join([result.compiler, *others])


def gpus_content(results: Sequence[KernelsResult]) -> TextTable:
    """A row for every GPU."""
    cells: list[Cell[KernelsResult]] = [
        (words("GPU"), lambda result: result.label),
        (words("compiler"), _compiler),
        (Column("programs"), lambda result: count(result.summary.programs)),
        (Column("failed"), lambda result: count(result.summary.failed)),
        (Column("all", group="pairs of variant and kernel"), lambda r: count(r.summary.pairs)),
        (
            Column("with private memory", group="pairs of variant and kernel"),
            lambda result: count(len(result.summary.pairs_in_memory)),
        ),
        (
            Column("in their hot loop", group="pairs of variant and kernel"),
            lambda result: count(len(result.summary.pairs_hot)),
        ),
        *(
            (
                Column(precision.replace("_", " "), group="slots for 100 MACs"),
                lambda result, precision=precision: _mean(result.summary, precision),
            )
            for precision in PRECISIONS
        ),
    ]
    return TextTable.of("Default choices by GPU", results, cells)


def variants_content(results: Sequence[KernelsResult]) -> TextTable:
    """A row for every variant and kernel, with a column for each GPU; not for those that only
    store halves, which are like the ones in float32.
    """
    by_gpu = {r.label: {row.name: row for row in r.kernels if row.is_default} for r in results}
    every = [row for rows in by_gpu.values() for row in rows.values()]
    names = sorted({row.name for row in every if not _stores(row)})
    cells: list[Cell[str]] = [
        (words("variant, kernel"), lambda name: name),
        *((words(label), partial(_of, rows)) for label, rows in by_gpu.items()),
    ]
    caption = (
        "Instructions, registers and, if any, accesses of private memory (those in the hot loop "
        "behind a slash); after a semicolon issue slots of the hot loop for 100 multiply-adds. Of "
        "several programs the worst. Adreno's registers are of four floats, at most 48; Mali's of "
        "one, where more than 32 halve the threads. Variants that only store halves are left out "
        "where they have no private memory.",
    )
    return TextTable.of("Kernels by GPU", names, cells, caption)


def _stores(row: KernelFigures) -> bool:
    """Whether a kernel stores halves and computes in float32, without private memory."""
    return row.variant.endswith("_fp16") and not row.spills and not row.error


def _of(rows: Mapping[str, KernelFigures], name: str) -> str:
    row = rows.get(name)
    if row is None:
        return NONE
    if row.error:
        return "failed"
    memory = f", **{row.spills}/{row.hot_spills}**" if row.spills else ""
    slots = f"; {row.slots_per_100_macs:.0f}" if row.slots_per_100_macs else ""
    return f"{row.instructions}, {row.registers}{memory}{slots}"


def _op(row: KernelFigures) -> str:
    choice = "" if row.is_default else ", ".join(f"{k}={v}" for k, v in row.choice.items())
    return f"{row.op} [{choice}]" if choice else row.op


def _registers(row: KernelFigures) -> str:
    halves = f" + {row.half_registers} half" if row.half_registers else ""
    return f"{row.registers}{halves}"


def _waves(row: KernelFigures) -> str:
    return f"{row.waves} x {row.wave_items}"


def _some(number: int) -> str:
    return count(number) if number else NONE


def _slots(row: KernelFigures) -> str:
    return NONE if row.slots_per_100_macs is None else f"{row.slots_per_100_macs:.0f}"


def _lanes(row: KernelFigures) -> str:
    return NONE if row.lanes is None else f"{100 * row.lanes:.0f}"


def _mean(summary: KernelSummary, precision: str) -> str:
    mean = summary.slots_per_100_macs.get(precision)
    return NONE if mean is None else f"{mean:.0f}"


def _in_words(summary: KernelSummary) -> str:
    means = " and ".join(
        f"{mean:.0f} at {name}" for name, mean in summary.slots_per_100_macs.items() if mean
    )
    return (
        f"Default choices: {summary.programs} programs, of which {summary.failed} do not build; of "
        f"{summary.pairs} pairs of variant and kernel {len(summary.pairs_in_memory)} keep "
        f"registers in memory, {len(summary.pairs_hot)} in their hot loop"
        + (f"; {means} slots for 100 multiply-adds in geometric mean." if means else ".")
    )
