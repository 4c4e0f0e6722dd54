"""Figures of every kernel on a GPU: what its compiler says of it, and lanes by its launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import mean
from typing import Any

from codl.phone_compilers.compiler import Compilation
from codl.phone_compilers.gpus import PhoneGpu
from codl.phone_compilers.programs import KernelUse, ProgramList

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
    element: str
    op: str
    ops: int
    networks: int
    choice: Mapping[str, Any]
    is_default: bool
    is_first: bool
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


def figures(listed: ProgramList, compilation: Compilation, gpu: PhoneGpu) -> list[KernelFigures]:
    """Figures of every kernel and program of a list, by variants."""
    together: dict[tuple[str, str, str], list[KernelUse]] = {}
    for use in listed.uses:
        together.setdefault((use.variant, use.kernel, use.program), []).append(use)
    rows = [_figures(uses, compilation, gpu) for uses in together.values()]
    return sorted(rows, key=lambda row: (row.variant, row.kernel, not row.is_default, row.op))


def _figures(uses: Sequence[KernelUse], compilation: Compilation, gpu: PhoneGpu) -> KernelFigures:
    worst = min(uses, key=lambda use: 1.0 if use.lanes is None else use.lanes)
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
        element=default.element,
        op=worst.op,
        ops=len({use.op for use in uses}),
        networks=len({name for use in uses for name in use.networks}),
        choice=default.choice,
        is_default=default.is_default,
        is_first=any(use.is_first and use.is_default for use in uses),
        program=default.program,
        error=error,
        lanes=worst.lanes,
        **counts,
    )


def summary(rows: Sequence[KernelFigures]) -> dict[str, Any]:
    """What the rows of default choices come to.

    `pairs` are those of a variant and a kernel. The geometric mean of `slots_per_100_macs` is over
    the pairs that have it, each with the mean of its programs, by what elements are.
    """
    rows = [row for row in rows if row.is_default]
    logs: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        pairs = logs.setdefault(row.element, {})
        if row.slots_per_100_macs:
            pairs.setdefault(row.name, []).append(log(row.slots_per_100_macs))
    return {
        "programs": len({row.program for row in rows}),
        "failed": len({row.program for row in rows if row.error}),
        "pairs": len({row.name for row in rows}),
        "pairs_in_memory": _pairs(row for row in rows if row.is_in_memory),
        "pairs_hot": _pairs(row for row in rows if row.hot_spills),
        "slots_per_100_macs": {
            element: exp(mean(map(mean, pairs.values()))) if pairs else None
            for element, pairs in logs.items()
        },
    }


def _pairs(rows: Iterable[KernelFigures]) -> list[str]:
    return sorted({row.name for row in rows})
