"""Facts that describe a SoC, and SoCs of which only facts are known: `source: published`.

Nothing was measured on such a SoC and nothing can run on it. What nobody published is absent, and
every value says where it is from. Keys that a SoC has too mean what they mean there. No latency
depends on chip, cores, caches and sensors; docs/reference/soc.md says of each where it is from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

import yaml

from codl import yaml_file
from codl.errors import InvalidFileError
from codl.yaml_file import NotNegative, Positive, Threads

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


SOURCE = "published"


@dataclass(frozen=True)
class PublishedCpu:
    """What is known of the processor `cpu`; None where nobody published it."""

    name: str | None = None
    clusters: tuple[CoreCluster, ...] = ()
    threads: Threads | None = None
    simd_floats: Positive | None = None
    l2_cache_bytes: NotNegative | None = None


@dataclass(frozen=True)
class PublishedGpu:
    """What is known of the processor `gpu`; None where nobody published it."""

    platform: str | None = None
    name: str | None = None
    driver: str | None = None
    type: str | None = None
    compute_units: Positive | None = None
    max_work_group_size: Positive | None = None
    wave_size: Positive | None = None
    global_mem_cache_size: NotNegative | None = None
    local_mem_bytes: NotNegative | None = None
    unified_memory: bool | None = None


@dataclass(frozen=True)
class PublishedSoc:
    """The published facts of one SoC; `sources` says of every key, as `gpu.name`, where it is from.

    A key of a whole side, such as `gpu`, speaks for all values of it that have none of their own.
    """

    name: str
    description: str
    cpu: PublishedCpu
    gpu: PublishedGpu
    sources: Mapping[str, str]
    source: str = field(default=SOURCE)

    def to_dict(self) -> dict[str, Any]:
        """The facts as YAML and JSON hold them: what is unknown is left out."""
        facts = {"cpu": self.known("cpu"), "gpu": self.known("gpu")}
        head = {"name": self.name, "description": self.description, "source": self.source}
        return {**head, **facts, "sources": dict(self.sources)}

    def known(self, side: str) -> dict[str, Any]:
        """The facts of one side that are known."""
        content: dict[str, Any] = asdict(getattr(self, side))
        if clusters := content.pop("clusters", ()):
            told = [{k: value for k, value in cluster.items() if value} for cluster in clusters]
            content = {"name": content.pop("name"), "clusters": told, **content}
        return {key: value for key, value in content.items() if value is not None}

    def to_yaml(self) -> str:
        """The text of the SoC file."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, width=100, allow_unicode=True)

    def save(self, path: Path) -> Path:
        """Write the SoC file; the folder is made, and a crash leaves no half of a file."""
        return yaml_file.write(self.to_dict(), path)

    def missing_of(self, cpu: type[Any], gpu: type[Any]) -> list[str]:
        """The keys, as `gpu.driver`, that a SoC must have and that nobody published."""
        return [
            f"{side}.{member.name}"
            for side, kind in (("cpu", cpu), ("gpu", gpu))
            for member in fields(kind)
            if member.default is MISSING and member.name not in self.known(side)
        ]


def from_content(content: Any, path: Path) -> PublishedSoc:
    """A SoC from what a file holds.

    Raises `InvalidFileError` with a key that is wrong, or a value of which no source is named.
    """
    soc = yaml_file.convert(content, PublishedSoc, path)
    for key in _keys(soc):
        if not {key, key.split(".")[0]} & set(soc.sources):
            reason = f"no source is named: add {key!r} to `sources`, or leave the value out."
            raise InvalidFileError(path, reason, where=key)
    for key in soc.sources:
        if key not in ("cpu", "gpu", *_keys(soc)):
            raise InvalidFileError(path, "a source of a value that is not there.", where=key)
    return soc


def _keys(soc: PublishedSoc) -> Iterator[str]:
    yield from (f"{side}.{key}" for side in ("cpu", "gpu") for key in soc.known(side))
