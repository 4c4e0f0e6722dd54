"""Figures of compiled kernels: the result of `codl kernels`, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import mean
from typing import TYPE_CHECKING, Any, ClassVar

from codl.ir.types import PRECISIONS
from codl.report.results import PluginResult
from codl.report.text_table import NONE, Column, TextRow, TextTable, count, words

if TYPE_CHECKING:
    from codl_phone_compilers.compiler import Compilation
    from codl_phone_compilers.gpus import PhoneGpu
    from codl_phone_compilers.programs import KernelUse, ProgramList

#: A hot loop with fewer multiply-adds than these does something else.
FEWEST_MACS = 16


@dataclass(frozen=True)
class KernelFigures:
    """A kernel of one program, over all ops that use it so.

    Counts are of the machine code. `registers` are Adreno's of four floats, of 48, and Mali's of
    one, 32 or 64; `waves` are those in flight on a core, Mali's full (2) or half (1). `spills`
    are instructions that read or write private memory, of which `private_bytes` are a work-item's;
    `hot_spills` those in the hot loop. `slots_per_100_macs` are issue slots of the hot loop for 100
    multiply-adds; None where it has next to none. `lanes` is the least of the ops, and that of
    `op`. `error` says why it does not build.
    """

    name: str
    variant: str
    kernel: str
    memory: str
    precision: str
    op: str
    ops: int
    choice: Mapping[str, Any]
    is_default: bool
    program: str
    error: str
    instructions: int = 0
    registers: int = 0
    half_registers: int = 0
    private_bytes: int = 0
    spills: int = 0
    hot_spills: int = 0
    waves: int = 0
    wave_items: int = 0
    barriers: int = 0
    loops: int = 0
    hot_slots: int = 0
    hot_macs: int = 0
    slots_per_100_macs: float | None = None
    lanes: float | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether registers of it are kept in memory."""
        return self.spills > 0 or self.private_bytes > 0


@dataclass(frozen=True)
class KernelSummary:
    """What the default choices on a GPU come to.

    `pairs` are those of a variant and a kernel: how many there are, and which of them keep
    registers in memory, anywhere or in the hot loop. The geometric mean of `slots_per_100_macs` is
    over the pairs that have it, each with the mean of its programs, by precision.
    """

    programs: int
    failed: int
    pairs: int
    pairs_in_memory: tuple[str, ...]
    pairs_hot: tuple[str, ...]
    slots_per_100_macs: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class KernelsResult(PluginResult):
    """What `codl kernels` wrote: figures of kernels on one GPU, by one compiler."""

    command: ClassVar[str] = "kernels"
    gpu: str
    label: str
    compiler: str
    summary: KernelSummary
    kernels: tuple[KernelFigures, ...]
    #: Debian's packages that compiled, with their versions; empty in files of earlier versions.
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def heading(self) -> str:
        return f"Kernels on {self.label}"

    def tables(self) -> tuple[TextTable, ...]:
        return (kernels_content(self),)


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
    found = result["kernels"].get(worst.kernel, {})
    counts: dict[str, Any] = {}
    error = result["error"]
    if not error and "hot" not in found:
        error = "the compiler printed nothing about it"
    if not error:
        hot = found["hot"]
        counts = {
            name: found[name]
            for name in (
                "instructions", "registers", "half_registers", "private_bytes", "spills",
                "waves", "barriers", "loops",
            )
        }  # fmt: skip
        counts |= {
            "wave_items": found["wave_items"] or gpu.wave_size,
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


def kernels_content(result: KernelsResult) -> TextTable:
    """A row for every kernel of every program on one GPU."""
    rows = [
        TextRow((row.variant,), failure=row.error)
        if row.error
        else (row.variant, row.kernel, _op(row), row.ops, row.instructions,
              f"{row.registers}{_halves(row)}", _some(row.private_bytes), _some(row.spills),
              _some(row.hot_spills), f"{row.waves} x {row.wave_items}", _some(row.barriers),
              _some(row.loops), _rounded(row.slots_per_100_macs),
              _rounded(row.lanes and 100 * row.lanes))
        for row in result.kernels
    ]  # fmt: skip
    heads = (
        words("variant"),
        words("kernel", spare=1),
        words("op, and a choice that is not the default"),
        Column("ops", spare=2),
        *map(Column, ("instructions", "registers", "private bytes", "spills all", "spills hot")),
        Column("waves"),
        Column("barriers", spare=3),
        Column("loops", spare=4),
        Column("slots for 100 MACs"),
        Column("lanes %"),
    )
    caption = (_in_words(result.summary),)
    title = f"Kernels of {result.label}, {result.compiler}"
    return TextTable.plain(title, heads, rows, caption)


def gpus_content(results: Sequence[KernelsResult]) -> TextTable:
    """A row for every GPU."""
    rows: list[tuple[str | float | None, ...]] = [
        (own.label, own.compiler, own.summary.programs, own.summary.failed, own.summary.pairs,
         len(own.summary.pairs_in_memory), len(own.summary.pairs_hot),
         *(_rounded(own.summary.slots_per_100_macs.get(name)) for name in PRECISIONS))
        for own in results
    ]  # fmt: skip
    pairs, slots = "pairs of variant and kernel", "slots for 100 MACs"
    heads: tuple[str | Column, ...] = ("GPU", "compiler", "programs", "failed", f"{pairs} all",
             f"{pairs} with private memory", f"{pairs} in their hot loop",
             *(Column(f"{slots} {name.replace('_', ' ')}") for name in PRECISIONS))  # fmt: skip
    # Mesa's own version is in `compiler`.
    beside = {f"{k} {v}" for r in results for k, v in r.packages.items() if k != "mesa-opencl-icd"}
    caption = (f"Beside Mesa: {', '.join(sorted(beside))}.",) if beside else ()
    return TextTable.plain("Default choices by GPU", heads, rows, caption)


def _op(row: KernelFigures) -> str:
    choice = "" if row.is_default else ", ".join(f"{k}={v}" for k, v in row.choice.items())
    return f"{row.op} [{choice}]" if choice else row.op


def _halves(row: KernelFigures) -> str:
    return f" + {row.half_registers} half" if row.half_registers else ""


def _some(number: int) -> str:
    return count(number) if number else NONE


def _rounded(number: float | None) -> str:
    return NONE if number is None else f"{number:.0f}"


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
