"""Figures of every kernel on a GPU: what its compiler says of it, and lanes by its launches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log
from statistics import mean
from typing import Any

from codl_phone_compilers.compiler import Compilation
from codl_phone_compilers.gpus import PhoneGpu
from codl_phone_compilers.programs import KernelUse, ProgramList
from codl_phone_compilers.report import KernelFigures, KernelSummary

#: A hot loop with fewer multiply-adds than these does something else.
FEWEST_MACS = 16


def figures(listed: ProgramList, compilation: Compilation, gpu: PhoneGpu) -> list[KernelFigures]:
    """Figures of every kernel and program of a list, by variants."""
    together: dict[tuple[str, str, str], list[KernelUse]] = {}
    for use in listed.uses:
        together.setdefault((use.variant, use.kernel, use.program), []).append(use)
    rows = [_figures(uses, compilation, gpu) for uses in together.values()]
    return sorted(rows, key=lambda row: (row.variant, row.kernel, not row.is_default, row.op))


def _figures(uses: Sequence[KernelUse], compilation: Compilation, gpu: PhoneGpu) -> KernelFigures:
    worst = min(uses, key=lambda use: use.lanes)
    default = next((use for use in uses if use.is_default), worst)
    result = compilation.results[worst.program]
    told = result["kernels"].get(worst.kernel, {})
    counts: dict[str, Any] = {}
    error = result["error"]
    if not error and "hot" not in told:
        error = "the compiler printed nothing of it"
    if not error:
        hot = told["hot"]
        counts = {
            name: told[name]
            for name in (
                "instructions", "registers", "half_registers", "private_bytes", "spills",
                "waves", "barriers", "loops",
            )
        }  # fmt: skip
        counts |= {
            "wave_items": told["wave_items"] or gpu.wave_size,
            "hot_slots": hot["slots"],
            "hot_macs": hot["macs"],
            "hot_spills": hot["private"],
        }
        if hot["macs"] >= FEWEST_MACS:
            counts["slots_per_100_macs"] = 100 * hot["slots"] / hot["macs"]
    return KernelFigures(
        name=f"{default.variant} {default.kernel}",
        variant=default.variant,
        kernel=default.kernel,
        memory=default.memory,
        precision=default.precision,
        op=worst.op,
        ops=len({use.op for use in uses}),
        networks=len({name for use in uses for name in use.networks}),
        choice=default.choice,
        is_default=default.is_default,
        program=default.program,
        error=error,
        lanes=worst.lanes,
        **counts,
    )


def worst(rows: Sequence[KernelFigures]) -> list[KernelFigures]:
    """Of each variant and kernel the program with most private accesses, then slots."""
    ranked = sorted(
        rows,
        key=lambda row: (
            not row.error,
            -row.hot_spills,
            -row.spills,
            -(row.slots_per_100_macs or 0),
            -row.instructions,
        ),
    )
    first: dict[str, KernelFigures] = {}
    for row in ranked:
        first.setdefault(row.name, row)
    return sorted(first.values(), key=lambda row: row.name)


def summary(rows: Sequence[KernelFigures]) -> KernelSummary:
    """What the rows of default choices come to."""
    rows = [row for row in rows if row.is_default]
    logs: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        pairs = logs.setdefault(row.precision, {})
        if row.slots_per_100_macs:
            pairs.setdefault(row.name, []).append(log(row.slots_per_100_macs))
    return KernelSummary(
        programs=len({row.program for row in rows}),
        failed=len({row.program for row in rows if row.error}),
        pairs=len({row.name for row in rows}),
        pairs_in_memory=_pairs(row for row in rows if row.is_in_memory),
        pairs_hot=_pairs(row for row in rows if row.hot_spills),
        slots_per_100_macs={
            precision: exp(mean(map(mean, pairs.values()))) if pairs else None
            for precision, pairs in logs.items()
        },
    )


def _pairs(rows: Iterable[KernelFigures]) -> tuple[str, ...]:
    return tuple(sorted({row.name for row in rows}))
