"""Placement of a SoC's two sides on this machine: driver, cores, hints; apart from the SoC's facts.

It lies in `socs/<name>.local.yaml` beside the SoC file, is written by `codl soc detect`, and is not
kept with datasets or predictors: nothing that is predicted depends on it, and of what is planned
only what the limits are.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from codl import yaml_file
from codl.errors import (
    CodlError,
    CodlWarning,
    DeviceError,
    InvalidFileError,
    MismatchError,
    UnsupportedError,
)
from codl.records import soc as socs
from codl.records.gpu_limits import UNLIMITED, GpuLimits
from codl.records.soc import Soc
from codl.runtime import threads
from codl.runtime.hardware import by_nearness, speeds

SUFFIX = ".local.yaml"
#: How fast, and how urgent beside other programs, a GPU may be asked to work.
HINTS = ("default", "low", "normal", "high")
#: On a device that is a CPU, a core's share of a kernel is this many work-items where it may have
#: to be split: as one, convolutions of large networks take some ten milliseconds.
CPU_SPLIT_FACTOR = 32
Core: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class Placement:
    """The driver and the cores of both sides, on this machine.

    `icd` names the driver as `codl devices` lists it (a wheel, or the system's ICD file). Threads
    of the CPU side, of all its libraries, run on any of the `cpu_cores`: the first of these are
    neighbours. There are as many threads as cores, or `cpu_threads` where that is not 0. Fewer
    threads than cores move among all of them; where `cpu_pinned` was measured to be faster, they
    get no more cores than threads. `gpu_cores` are the host cores that the
    OpenCL device runs on; none where it is a real GPU. Hints are of `HINTS`, for drivers that take
    them. Engines keep the `limits`; what measures single kernels does not.
    """

    icd: str
    cpu_cores: Annotated[tuple[Core, ...], msgspec.Meta(min_length=1)]
    gpu_cores: tuple[Core, ...] = ()
    cpu_threads: Core = 0
    cpu_pinned: bool | None = None
    performance: str = "default"
    priority: str = "default"
    limits: GpuLimits = UNLIMITED

    @property
    def threads(self) -> int:
        return self.cpu_threads or len(self.cpu_cores)

    @property
    def cores(self) -> tuple[int, ...]:
        """Those of both sides."""
        return tuple(sorted({*self.cpu_cores, *self.gpu_cores}))

    def with_threads(self, count: int, cores: Sequence[int] | None = None) -> Placement:
        """So many threads of the CPU side, on its cores or others, by `cpu_pinned`.

        Raises `CodlError` for more threads than cores.
        """
        cores = self.cpu_cores if cores is None else tuple(cores)
        if not 1 <= count <= len(cores):
            raise CodlError(
                f"{count} threads need as many cores, the CPU side has {len(cores)} "
                f"({_listed(cores)}): give {'1 to ' if len(cores) > 1 else ''}{len(cores)}."
            )
        if self.cpu_pinned:
            cores = cores[:count]
        return replace(self, cpu_cores=cores, cpu_threads=count if count < len(cores) else 0)

    def to_dict(self) -> dict[str, Any]:
        """As YAML and JSON hold it; what is usual is left out."""
        changed = {x.name for x in fields(self) if getattr(self, x.name) != x.default}
        values = {key: value for key, value in asdict(self).items() if key in changed}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}

    def save(self, soc_file: Path) -> Path:
        """Write it beside a SoC file."""
        comment = f"Where the two sides of {soc_file.name} are on this machine."
        return yaml_file.write(self.to_dict(), beside(soc_file), comment=comment)


@dataclass(frozen=True, kw_only=True)
class LocalSoc(Soc):
    """A SoC that is at hand: its facts, and where it is."""

    placement: Placement

    @classmethod
    def of(cls, soc: Soc, placement: Placement) -> LocalSoc:
        """The two together; raises `MismatchError` where they cannot be of the same device."""
        device, cores = soc.gpu, placement.gpu_cores
        shared = sorted({*cores} & {*placement.cpu_cores})
        if shared:
            raise MismatchError(
                f"The two sides of the SoC {soc.name!r} share the cores {_listed(shared)}: each "
                "must have cores of its own."
            )
        if not device.is_cpu and cores:
            raise MismatchError(
                f"The OpenCL device of the SoC {soc.name!r} is a GPU, which has no host cores, got "
                f"{_listed(cores)}."
            )
        if device.is_cpu and len(cores) != device.compute_units:
            raise MismatchError(
                f"The OpenCL device of the SoC {soc.name!r} has {device.compute_units} compute "
                f"units, which must be as many cores, got {_listed(cores) or 'none'}."
            )
        return cls(**vars(soc.facts), placement=placement)

    def save(self, path: Path) -> Path:
        """Write the SoC file, and beside it where the SoC is."""
        self.placement.save(path)
        return super().save(path)

    def to_json(self) -> dict[str, Any]:
        """Facts and placement as results have them, with the cores of each side."""
        content, place = self.to_dict(), self.placement
        content["cpu"]["cores"], content["gpu"]["cores"] = (
            list(place.cpu_cores),
            list(place.gpu_cores),
        )
        return {**content, "placement": place.to_dict()}


def limits_of(soc: Soc) -> GpuLimits:
    """The limits of a SoC's GPU; none of one of which only facts are known."""
    return soc.placement.limits if isinstance(soc, LocalSoc) else UNLIMITED


def require_local(soc: Soc) -> LocalSoc:
    """The SoC with its placement; raises `UnsupportedError` for a SoC without one."""
    if isinstance(soc, LocalSoc):
        return soc
    check_measured(soc)
    raise UnsupportedError(
        f"Nothing can run on the SoC {soc.name!r}: its place on this machine is not known. "
        f"`codl soc detect --serial local --name {soc.name}` finds it."
    )


def splittable(soc: LocalSoc) -> LocalSoc:
    """The SoC as kernels are cut for, so that they can be split where its limits want that.

    Some kernels for CPUs have one work-item for each core.
    """
    if not soc.gpu.is_cpu or soc.placement.limits.max_kernel_ms is None:
        return soc
    return replace(
        soc, gpu=replace(soc.gpu, compute_units=CPU_SPLIT_FACTOR * soc.gpu.compute_units)
    )


def check_measured(soc: Soc) -> None:
    """Raise `UnsupportedError` for a SoC that is known by measurements of others only."""
    if soc.is_replayed:
        raise UnsupportedError(
            f"Nothing can run on the SoC {soc.name!r}: its file says source: replayed, so its "
            "latencies are somebody else's, measured with kernels that codl does not have. "
            f"`codl train` and `codl search` work with --soc {soc.name}; to run, describe a "
            "device at hand by `codl soc detect`."
        )


def beside(soc_file: Path) -> Path:
    """The file of the placement of a SoC file."""
    return soc_file.with_name(soc_file.stem + SUFFIX)


def read(soc: Soc, soc_file: Path, *, is_here: bool = True) -> LocalSoc | None:
    """The SoC at the place that the file beside its own names; None where there is no such file.

    Raises `InvalidFileError` for a file with a missing, unknown or mistyped key, `MismatchError`
    where it does not fit the SoC, and, of a device that is this machine, `DeviceError` for a core
    that it does not have.
    """
    path = beside(soc_file)
    if not path.is_file():
        return None
    placement = yaml_file.read(path, Placement)
    for key in ("performance", "priority"):
        if getattr(placement, key) not in HINTS:
            reason = f"must be of {', '.join(HINTS)}, got {getattr(placement, key)!r}."
            raise InvalidFileError(path, reason, where=key)
    try:
        if is_here:
            check_cores(placement)
            _warn_of_others(soc, placement)
        return LocalSoc.of(soc, placement)
    except CodlError as error:
        fix = f"`codl soc detect --serial local --name {soc.name}` writes it anew."
        raise type(error)(f"{path}: {error} {fix}") from error


def load(name: str | Path) -> LocalSoc:
    """A SoC by name or file with its placement; raises as `read` and `require_local`."""
    soc = socs.load(name)
    return require_local(read(soc, socs.path_of(name)) or soc)


def check_cores(placement: Placement) -> None:
    """Raise `DeviceError` where this process may not use a core, or a side has one twice."""
    for side, cores in (("CPU", placement.cpu_cores), ("GPU", placement.gpu_cores)):
        missing = threads.refused_cores(cores)
        if missing:
            raise DeviceError(
                f"The {side} side wants the cores {_listed(cores)}, but {_listed(missing)} are not "
                "there, or not for this process: `codl doctor` says what keeps them from it."
            )
        if len({*cores}) != len(cores):
            raise DeviceError(f"The {side} side has a core twice, got {_listed(cores)}.")
    if placement.threads > len(placement.cpu_cores):
        raise DeviceError(
            f"{placement.threads} threads need as many cores, the CPU side has "
            f"{len(placement.cpu_cores)} ({_listed(placement.cpu_cores)})."
        )


def _warn_of_others(soc: Soc, placement: Placement) -> None:
    """Whoever started this process gave it some cores; its threads keep to them, codl's may not."""
    if others := sorted({*placement.cores} - {*threads.INITIAL_CORES}):
        warnings.warn(
            f"The SoC {soc.name!r} lies on the cores {_listed(placement.cores)}, and this process "
            f"was started on {_listed(threads.INITIAL_CORES)} alone: codl works on "
            f"{_listed(others)} too. `codl soc detect` places a SoC on the cores that it has.",
            CodlWarning,
            stacklevel=3,
        )


def _listed(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores))


KINDS = ("none", "big", "little")


def cores_of(affinity: str, cores: Sequence[int], speed: Mapping[int, float]) -> tuple[int, ...]:
    """The cores that an affinity names; big ones are the fastest, little ones all that are slower.

    Where all cores are alike, they are big and little. Raises `CodlError` for a core that is not
    there, or a text that names none.
    """
    if affinity == "none":
        return tuple(cores)
    if affinity in ("big", "little"):
        fastest = max(speed.values())
        big = tuple(core for core in cores if speed[core] == fastest)
        little = tuple(core for core in cores if speed[core] < fastest)
        return big if affinity == "big" else little or big
    try:
        named = tuple(dict.fromkeys(int(part) for part in affinity.split(",")))
    except ValueError as error:
        raise CodlError(
            f"Cannot read the CPU affinity {affinity!r}: expected {', '.join(KINDS)}, or cores "
            "such as 0,1."
        ) from error
    for core in named:
        if core not in cores:
            raise CodlError(f"There is no core {core} for the CPU side, only {_listed(cores)}.")
    return named


def with_cores(soc: LocalSoc, affinity: str | None, count: int | None) -> LocalSoc:
    """The SoC on other cores, or with another number of threads on them, by `cpu_pinned`.

    Cores that an OpenCL device works on are never shared. Raises `CodlError` for more threads than
    cores.
    """
    if affinity is None and count is None:
        return soc
    cores = soc.placement.cpu_cores
    if affinity is not None:
        free = [c for c in threads.available_cores() if c not in soc.placement.gpu_cores]
        cores = cores_of(affinity, by_nearness(free), speeds(free))
    return replace(
        soc, placement=soc.placement.with_threads(len(cores) if count is None else count, cores)
    )
