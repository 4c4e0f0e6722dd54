"""Description of a machine as a SoC, and the placement of its two sides on this machine.

A placement has the driver, cores, hints and limits. `codl soc detect` writes it to
`socs/<name>.local.yaml` beside the SoC file. Datasets and predictors exclude it: predictions do not
depend on it, and plans depend only on its limits.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from codl.errors import (
    CodlError,
    CodlWarning,
    DeviceError,
    MismatchError,
    UnknownNameError,
    UnsupportedError,
)
from codl.ir import yaml_file
from codl.ir.records import soc as socs
from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits
from codl.ir.records.soc import ELEMENT_NAMES, MEMORY_TYPES, CpuSide, GpuSide, Soc
from codl.machine import threads
from codl.machine.driver_search import INSTALL_HINT
from codl.machine.hardware import CpuFacts, cpu_facts

SUFFIX = ".local.yaml"
#: Hints for a GPU's speed, and for its priority beside other programs.
Hint: TypeAlias = Literal["default", "low", "normal", "high"]
HINTS: tuple[str, ...] = get_args(Hint)
#: Work-items per core of a CPU device with launch limits, so that its launches can be split. As one
#: work-item, convolutions of large networks take some ten milliseconds.
CPU_SPLIT_FACTOR = 32
Core: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class Placement:
    """The driver and the cores of both sides on this machine.

    `icd` names the driver as in `codl devices` (a wheel, or the system's ICD file). The threads of
    all CPU libraries run on `cpu_cores`, of which the first are neighbours. `cpu_threads` is their
    number, 0 for one per core. Fewer threads than cores move among all cores, unless `cpu_pinned`
    gives them as many cores as threads. `gpu_cores` are the host cores of a CPU
    device. Engines keep the `limits`, kernel measurements do not.
    """

    icd: str
    cpu_cores: Annotated[tuple[Core, ...], msgspec.Meta(min_length=1)]
    gpu_cores: tuple[Core, ...] = ()
    cpu_threads: Core = 0
    cpu_pinned: bool | None = None
    performance: Hint = "default"
    priority: Hint = "default"
    limits: GpuLimits = UNLIMITED

    @property
    def threads(self) -> int:
        return self.cpu_threads or len(self.cpu_cores)

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores of both sides, sorted."""
        return tuple(sorted({*self.cpu_cores, *self.gpu_cores}))

    def with_threads(self, count: int, cores: Sequence[int] | None = None) -> Placement:
        """The placement with `count` threads; raises `CodlError` for more threads than cores."""
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
        """The content as plain YAML and JSON values, without default values."""
        changed = {x.name for x in fields(self) if getattr(self, x.name) != x.default}
        values = {key: value for key, value in asdict(self).items() if key in changed}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}

    def save(self, soc_file: Path) -> Path:
        """Write the placement beside a SoC file."""
        comment = f"Where the two sides of {soc_file.name} are on this machine."
        return yaml_file.write(self.to_dict(), beside(soc_file), comment=comment)


@dataclass(frozen=True, kw_only=True)
class LocalSoc(Soc):
    """A SoC with its placement on this machine."""

    placement: Placement

    @classmethod
    def of(cls, soc: Soc, placement: Placement) -> LocalSoc:
        """A SoC with a placement; raises `MismatchError` if they do not fit."""
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
        """Write the SoC file and the placement beside it."""
        self.placement.save(path)
        return super().save(path)

    def to_json(self) -> dict[str, Any]:
        """Facts and placement in the form of results, with the cores of each side."""
        content, place = self.to_dict(), self.placement
        content["cpu"]["cores"], content["gpu"]["cores"] = (
            list(place.cpu_cores),
            list(place.gpu_cores),
        )
        return {**content, "placement": place.to_dict()}


def limits_of(soc: Soc) -> GpuLimits:
    """Limits of a SoC's GPU; `UNLIMITED` without a placement."""
    return soc.placement.limits if isinstance(soc, LocalSoc) else UNLIMITED


def require_local(soc: Soc) -> LocalSoc:
    """The SoC as a `LocalSoc`; raises `UnsupportedError` for a SoC without placement."""
    if isinstance(soc, LocalSoc):
        return soc
    check_measured(soc)
    raise UnsupportedError(
        f"Nothing can run on the SoC {soc.name!r}: its place on this machine is not known. "
        f"`codl soc detect --serial local --name {soc.name}` finds it."
    )


def splittable(soc: LocalSoc) -> LocalSoc:
    """The SoC to make kernels for, with launches that can be split if it has limits.

    Otherwise some kernels for CPUs have only one work-item per core.
    """
    if not soc.gpu.is_cpu or soc.placement.limits.max_kernel_ms is None:
        return soc
    return replace(
        soc, gpu=replace(soc.gpu, compute_units=CPU_SPLIT_FACTOR * soc.gpu.compute_units)
    )


def check_measured(soc: Soc) -> None:
    """Raise `UnsupportedError` for a SoC with imported measurements only."""
    if soc.is_replayed:
        raise UnsupportedError(
            f"Nothing can run on the SoC {soc.name!r}: its file says source: replayed, so its "
            "latencies are somebody else's, measured with kernels that codl does not have. "
            f"`codl train` and `codl search` work with --soc {soc.name}; to run, describe a "
            "device at hand by `codl soc detect`."
        )


def beside(soc_file: Path) -> Path:
    """Path of the placement file of a SoC file."""
    return soc_file.with_name(soc_file.stem + SUFFIX)


def read(soc: Soc, soc_file: Path, *, is_here: bool = True) -> LocalSoc | None:
    """The SoC with the placement of the file beside its own; None without such a file.

    Raises `InvalidFileError` for a missing, unknown or mistyped key, and `MismatchError` for a
    placement that does not fit the SoC. With `is_here`, also raises `DeviceError` for a core that
    this machine does not have.
    """
    path = beside(soc_file)
    if not path.is_file():
        return None
    placement = yaml_file.read(path, Placement)
    try:
        if is_here:
            check_cores(placement)
            _warn_of_others(soc, placement)
        return LocalSoc.of(soc, placement)
    except CodlError as error:
        fix = f"`codl soc detect --serial local --name {soc.name}` writes it anew."
        raise type(error)(f"{path}: {error} {fix}") from error


def load(name: str | Path) -> LocalSoc:
    """A SoC by name or file with its placement; raises the errors of `read` and `require_local`."""
    soc = socs.load(name)
    return require_local(read(soc, socs.path_of(name)) or soc)


def check_cores(placement: Placement) -> None:
    """Raise `DeviceError` for a core that this process may not use, or that a side has twice."""
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
    """Warn of a placement beyond the cores that this process was started on."""
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


# Description of a machine.

#: Order of preference of drivers, after GPUs.
PREFERRED = ("intel-opencl-rt", "pocl-binary-distribution", "pocl")


@dataclass(frozen=True)
class ProbedDevice:
    """An OpenCL device that has run a kernel, as described by its driver.

    `half` means `half` arithmetic. `vector_registers` are a CPU's, 0 if unknown.
    """

    icd: str
    platform: str
    name: str
    type: str
    version: str
    driver: str
    compute_units: int
    max_work_group_size: int
    wave_size: int
    vector_width: int
    global_mem_cache_size: int
    local_mem_bytes: int
    unified_memory: bool
    memory_types: tuple[str, ...]
    extensions: tuple[str, ...]
    max_image_width: int = 0
    max_image_height: int = 0
    fine_grained_svm: bool = False
    half: bool = False
    vector_registers: int = 0


@dataclass(frozen=True)
class ProbeResult:
    """Devices of one driver (ICD file or library `file`), or the error; see `Driver`."""

    icd: str
    devices: tuple[ProbedDevice, ...] = ()
    error: str = ""
    file: str = ""
    is_guess: bool = False


def describe(
    name: str,
    device: ProbedDevice,
    *,
    cpu: CpuFacts | None = None,
    memory_types: Sequence[str] = (),
    element: str = ELEMENT_NAMES[0],
    cpu_threads: int | None = None,
) -> LocalSoc:
    """Describe a machine with `device` as its GPU side; a CPU device gets half of the cores.

    `cpu` is the machine's CPU, by default this one's. The CPU side has a thread per core, or
    `cpu_threads`. Raises `UnknownNameError` for an unknown type, and the errors of `place`.
    """
    cpu = cpu or cpu_facts()
    if element not in ELEMENT_NAMES:
        raise UnknownNameError("element type", element, ELEMENT_NAMES)
    if not memory_types:  # no images on a CPU, which emulates them slowly
        memory_types = device.memory_types if device.type == "gpu" else MEMORY_TYPES[:1]
    for memory in memory_types:
        if memory not in device.memory_types:
            names = ", ".join(device.memory_types)
            raise DeviceError(f"{device.name!r} has no {memory}; its memory types are {names}.")
    placement = place(device, cpu, cpu_threads)
    halves = f"one CPU, divided: ncnn on some cores, {device.platform} on the others"
    facts = Soc(
        name=name,
        description=f"{cpu.name} beside {device.name}" if device.type == "gpu" else halves,
        cpu=CpuSide(
            name=cpu.name,
            threads=placement.threads,
            simd_floats=cpu.simd_floats,
            l2_cache_bytes=cpu.l2_cache_bytes,
            clusters=cpu.clusters,
            caches=cpu.caches,
        ),
        gpu=_gpu_side(device, placement.gpu_cores, memory_types, element),
    )
    return LocalSoc.of(facts, placement)


def place(device: ProbedDevice, cpu: CpuFacts, cpu_threads: int | None = None) -> Placement:
    """Place both sides on a machine with `device`.

    Beside a GPU, the CPU side by default has a thread per fast core of one NUMA node, as threads
    wait for the slowest; more threads get all cores. A CPU device gets the slower or farther half
    of the cores. Raises `DeviceError` for a CPU device with one core, and `CodlError` for more
    threads than cores.
    """
    cores = cpu.cores
    if device.type == "gpu":
        usual = Placement(device.icd, cores[: cpu.near or None])
        free = usual.cpu_cores if cpu_threads in range(1, usual.threads + 1) else cores
    elif len(cores) < 2:
        raise DeviceError(
            f"The OpenCL device {device.name!r} is a CPU, and of the cores only "
            f"{list(cores)} may be used: two processors need two cores, or a GPU."
        )
    else:
        half = (len(cores) + 1) // 2
        usual, free = Placement(device.icd, cores[:half], cores[half:]), cores[:half]
    return usual if cpu_threads is None else usual.with_threads(cpu_threads, free)


def choose(probed: Sequence[ProbeResult], device: str | None) -> ProbedDevice:
    """Choose a probed OpenCL device by name or preference; raises `DeviceError` without any."""
    devices = [d for result in probed for d in result.devices]
    if not devices:
        failures = "; ".join(f"{r.icd}: {r.error.rstrip('.') or 'no device'}" for r in probed)
        tried = f" Drivers that were found failed: {failures}." if failures else ""
        where = "`codl doctor` says where drivers were looked for."
        raise DeviceError(f"No OpenCL device was found.{tried} {INSTALL_HINT} {where}")
    if device is not None:
        matching = [d for d in devices if device in (d.icd, d.name)]
        if not matching:
            names = {d.icd for d in devices} | {d.name for d in devices}
            raise UnknownNameError("OpenCL device", device, names)
        return matching[0]
    rank = {icd: index for index, icd in enumerate(PREFERRED)}
    return min(devices, key=lambda d: (d.type != "gpu", rank.get(d.icd, len(rank))))


def _gpu_side(
    device: ProbedDevice, cores: tuple[int, ...], memory_types: Sequence[str], element: str
) -> GpuSide:
    """The GPU side's facts: the device's fields of the same names, and the choices."""
    facts: dict[str, Any] = {
        each.name: getattr(device, each.name)
        for each in fields(GpuSide)
        if hasattr(device, each.name)
    }
    facts |= {
        "compute_units": len(cores) or device.compute_units,
        "opencl_version": device.version,
        "vector_registers": device.vector_registers or None,
        "memory_types": tuple(memory_types),
        "element": element,
    }
    return GpuSide(**facts)
