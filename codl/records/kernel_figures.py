"""What a phone's compiler made of kernels, as data: what `codl kernels` prints and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
