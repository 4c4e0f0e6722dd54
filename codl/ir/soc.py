"""The SoC: the pair of processors under study, described by `socs/<name>.yaml`.

SoC files lie in `./socs`. Their keys are the fields of the classes below; an unknown or missing key
is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from codl.errors import InvalidFileError, UnknownNameError, UnsupportedError
from codl.ir.types import ELEMENTS, LAYOUTS

FOLDER = Path("socs")
#: What a GPU side's tensors may lie in, and the types that their elements may be stored as.
MEMORY_TYPES = tuple(layout.memory for layout in LAYOUTS.values() if layout.memory)
ELEMENT_NAMES: tuple[str, ...] = tuple(ELEMENTS)
#: Where a SoC's latencies come from: this project's kernels on it, or measurements of others.
SOURCES = ("measured", "replayed")
#: How fast, and how urgent beside other programs, a GPU may be asked to work.
HINTS = ("default", "low", "normal", "high")
#: Keys that files leave out where they have these values.
USUAL: Mapping[str, Mapping[str, Any]] = {
    "cpu": {"thread_count": 0},
    "gpu": {"performance": "default", "priority": "default"},
}
T = TypeVar("T")


@dataclass(frozen=True)
class CpuSide:
    """The processor `cpu`: the cores that ncnn's threads are pinned to.

    There are as many threads as cores, or `thread_count` where that is not 0.
    """

    name: str
    cores: tuple[int, ...]
    simd_floats: int
    l2_cache_bytes: int
    thread_count: int = 0

    @property
    def threads(self) -> int:
        return self.thread_count or len(self.cores)


@dataclass(frozen=True)
class GpuSide:
    """The processor `gpu`: one OpenCL device, found again by its driver and name.

    `icd` names the driver as `codl devices` lists it (a wheel, or the system's ICD file).

    `cores` are the host cores that the device runs on; empty where it is a real GPU.
    `vector_width` is the number of channels in a block of the GPU's layout. `wave_size` is the
    number of work-items that run in lockstep.
    """

    icd: str
    platform: str
    name: str
    driver: str
    type: str
    cores: tuple[int, ...]
    compute_units: int
    max_work_group_size: int
    wave_size: int
    vector_width: int
    global_mem_cache_size: int
    local_mem_bytes: int
    unified_memory: bool
    #: What tensors may lie in, and the type of their elements: `buffer` and `image2d`; `float32` or
    #: `float16` (half storage, everything computed and accumulated in float32).
    memory_types: tuple[str, ...] = ("buffer",)
    element: str = "float32"
    #: The largest `image2d` in texels; 0 where the device has none, or it is unknown.
    max_image_width: int = 0
    max_image_height: int = 0
    #: Of `HINTS`, for drivers that take them.
    performance: str = "default"
    priority: str = "default"
    #: Whether both processors may work on the same memory without mapping it (OpenCL 2.0).
    fine_grained_svm: bool = False

    @property
    def sees_host_memory(self) -> bool:
        """Whether kernels read and write the CPU's arrays in place.

        Only where that memory is its own: a discrete card would read it over the bus each time.
        """
        return self.unified_memory and self.fine_grained_svm

    @property
    def is_cpu(self) -> bool:
        """Whether the device is a CPU: then one work-item is a large, register-blocked piece."""
        return self.type == "cpu"

    def blocks(self, channels: int) -> int:
        """Blocks of the GPU's layout that hold `channels`."""
        return -(-channels // self.vector_width)


@dataclass(frozen=True)
class PowerW:
    """Watts of a SoC while nothing works, one processor alone, and both; by the named sensors.

    What a sensor does not cover is not in them: RAPL's know nothing of a GPU beside the CPU.
    """

    idle: float
    cpu: float
    gpu: float
    both: float
    sensors: tuple[str, ...]


@dataclass(frozen=True)
class Soc:
    """A CPU side and a GPU side, and a word on what they are.

    `source` is `replayed` where latencies were measured by others, of kernels that are not in this
    package: predictors can be trained and plans made, but nothing can run. `power_w` is None where
    it was not measured, or there is no sensor to.
    """

    name: str
    description: str
    cpu: CpuSide
    gpu: GpuSide
    source: str = "measured"
    power_w: PowerW | None = None

    @property
    def is_replayed(self) -> bool:
        return self.source == "replayed"

    def check_present(self) -> None:
        """Raise `UnsupportedError` for a SoC that is known by measurements of others only."""
        if self.is_replayed:
            raise UnsupportedError(
                f"Nothing can run on the SoC {self.name!r}: its file says source: replayed, so its "
                "latencies are somebody else's, measured with kernels that codl does not have. "
                f"`codl train` and `codl search` work with --soc {self.name}; to run, describe a "
                "device at hand by `codl soc detect`."
            )

    def to_dict(self) -> dict[str, Any]:
        """The SoC as YAML and JSON hold it, with lists in the place of tuples.

        A `source` of `measured` is left out, as in files from before there was another, and so is
        power that was not measured.
        """
        content = asdict(self)
        if self.source == "measured":
            del content["source"]
        for side, usual in USUAL.items():
            for key in [key for key, value in usual.items() if content[side][key] == value]:
                del content[side][key]
        if self.power_w is None:
            del content["power_w"]
        for values in (v for v in content.values() if isinstance(v, dict)):
            values |= {k: list(v) for k, v in values.items() if isinstance(v, tuple)}
        return content

    def to_yaml(self) -> str:
        """The text of the SoC file."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, width=100)

    def save(self, path: Path) -> Path:
        """Write the SoC file; the folder is made, and a crash leaves no half of a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        partial.write_text(self.to_yaml())
        partial.replace(path)
        return path


def names() -> list[str]:
    """The SoCs that can be loaded by name."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str | Path) -> Soc:
    """Load a SoC by name or from a `.yaml` file.

    Raises `UnknownNameError` for an unknown name and `InvalidFileError` for a file with a missing,
    unknown or mistyped key.
    """
    path = Path(name) if str(name).endswith(".yaml") else FOLDER / f"{name}.yaml"
    if not path.is_file():
        fix = f"`codl soc detect --serial local --name {name}` describes this machine."
        raise UnknownNameError("SoC", str(name), names(), fix=fix)
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise InvalidFileError(path, f"not YAML: {error}") from error
    return from_dict(content, path)


def from_dict(content: Any, path: Path) -> Soc:
    """A SoC from what a file holds; raises `InvalidFileError` as `load` does."""
    soc = _build(Soc, content, path, "")
    for key, values, known in (
        ("gpu.memory_types", soc.gpu.memory_types, MEMORY_TYPES),
        ("gpu.element", (soc.gpu.element,), ELEMENT_NAMES),
        ("gpu.performance", (soc.gpu.performance,), HINTS),
        ("gpu.priority", (soc.gpu.priority,), HINTS),
        ("source", (soc.source,), SOURCES),
    ):
        for value in values:
            if value not in known:
                reason = f"must be of {', '.join(known)}, got {value!r}."
                raise InvalidFileError(path, reason, where=key)
    return soc


def _build(cls: type[T], content: Any, path: Path, where: str) -> T:
    """Make a dataclass of a mapping, checking every key and type on the way."""
    if not isinstance(content, Mapping):
        raise InvalidFileError(path, f"expected a mapping, got {content!r}.", where=where or "top")
    hints, wanted = get_type_hints(cls), {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key in content:
        if key not in wanted:
            reason = str(UnknownNameError("key", str(key), wanted))
            raise InvalidFileError(path, reason, where=where or "top")
    values = {}
    for key, field in wanted.items():
        at = f"{where}.{key}".lstrip(".")
        if key not in content:
            if field.default is not MISSING:
                continue
            raise InvalidFileError(path, "the key is missing.", where=at)
        values[key] = _convert(hints[key], content[key], path, at)
    return cls(**values)


def _convert(kind: Any, value: Any, path: Path, at: str) -> Any:
    if kind in (CpuSide, GpuSide):
        return _build(kind, value, path, at)
    if kind == PowerW | None:
        return _build(PowerW, value, path, at)
    if kind is float and type(value) is int:
        return float(value)
    if kind == tuple[str, ...]:
        if isinstance(value, list) and all(type(item) is str for item in value):
            return tuple(value)
        raise InvalidFileError(path, f"expected a list of words, got {value!r}.", where=at)
    if kind == tuple[int, ...]:
        if isinstance(value, list) and all(type(item) is int for item in value):
            return tuple(value)
        raise InvalidFileError(path, f"expected a list of integers, got {value!r}.", where=at)
    if type(value) is not kind:
        raise InvalidFileError(path, f"expected {kind.__name__}, got {value!r}.", where=at)
    return value
