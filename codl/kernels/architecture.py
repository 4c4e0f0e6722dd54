"""What the makers of GPUs tell of their compute units, and OpenCL does not: registers, memory.

It is by the device's name and platform. Of a GPU that is not in the table, what Intel's have is
assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from codl.records.soc import GpuSide


@dataclass(frozen=True)
class Architecture:
    """Of one maker's GPUs.

    `registers` of 32 bits are a work-item's: with more, a kernel keeps some in memory, or too few
    waves are in flight.
    `unit_registers` and `unit_local_bytes` are shared by the work-groups on a compute unit; None is
    what one work-group may have. Where `local_is_memory`, local memory is no faster than others.
    Kernels with many registers have work-groups of a `group_part` of the largest. `unit_items`
    work-items keep a compute unit busy: with fewer, tiles of convolutions are smaller, and teams of
    work-items share their sums.
    """

    registers: int
    unit_registers: int
    unit_items: int = 384
    unit_local_bytes: int | None = None
    local_is_memory: bool = False
    group_part: float = 1.0


#: By a word of the device's name or platform.
ARCHITECTURES = {
    "nvidia": Architecture(256, 65536, unit_local_bytes=220_000),
    "adreno": Architecture(128, 49152, unit_items=1024),
    "qualcomm": Architecture(128, 49152, unit_items=1024),
    "mali": Architecture(64, 24576, local_is_memory=True, group_part=0.5),
    "immortalis": Architecture(64, 24576, local_is_memory=True, group_part=0.5),
    "amd": Architecture(256, 65536),
}
OTHERS = Architecture(128, 32768)
#: Registers that a work-item's addresses, counts and the like take.
OTHER_REGISTERS = 24


def is_card(gpu: GpuSide) -> bool:
    """Whether work-items have so many registers that no tile worth trying is too large for them."""
    return architecture_of(gpu).registers >= 255


def holds(gpu: GpuSide, numbers: Any) -> Any:
    """Whether a work-item keeps so many numbers in registers, beside what else it has.

    A CPU's tiles are bounded by its vector registers.
    """
    return gpu.is_cpu | (numbers + OTHER_REGISTERS <= architecture_of(gpu).registers)


def most_items(gpu: GpuSide) -> int:
    """Work-items of the largest work-group whose kernel may have many registers."""
    return int(architecture_of(gpu).group_part * gpu.max_work_group_size)


def architecture_of(gpu: GpuSide) -> Architecture:
    """That of a device; of one that is a CPU it says nothing."""
    told = f"{gpu.name} {gpu.platform}".lower()
    return next((each for word, each in ARCHITECTURES.items() if word in told), OTHERS)
