"""Facts that describe a SoC and on which no latency depends: chip, cores, caches, sensors.

All of them are optional in a SoC file; docs/soc.md says of each where it is from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from codl.yaml_file import NotNegative, Positive

#: What memory both processors may see at once, from none to all that the host has (OpenCL 2.0).
SVM_LEVELS = ("none", "coarse_grain_buffer", "fine_grain_buffer", "fine_grain_system")
CacheKind: TypeAlias = Literal["data", "instruction", "unified"]
Quantity: TypeAlias = Literal["energy", "temperature"]


@dataclass(frozen=True)
class Chip:
    """What the system calls the chip and the board that it is on; empty where it does not tell."""

    name: str = ""
    board: str = ""
    #: The device tree's list of what drivers the board works with, the board first, the chip last.
    compatible: tuple[str, ...] = ()


@dataclass(frozen=True)
class CoreCluster:
    """Cores that are alike; `ids` are the system's numbers of them.

    `max_mhz` and `capacity` (of the kernel's scheduler, 1024 for the fastest core) are 0 where the
    system does not tell.
    """

    name: str
    cores: Positive
    max_mhz: NotNegative = 0
    capacity: NotNegative = 0
    ids: tuple[NotNegative, ...] = ()


@dataclass(frozen=True)
class CpuCache:
    """Caches that are alike: `count` of them, each of `bytes`, each for `shared_by` cores."""

    level: Positive
    kind: CacheKind
    bytes: Positive
    shared_by: Positive
    count: Positive


@dataclass(frozen=True)
class SensorFact:
    """A sensor that can be read: what it measures, and of which part if that is known."""

    name: str
    quantity: Quantity
    part: str = ""
