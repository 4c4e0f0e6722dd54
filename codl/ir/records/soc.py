"""Facts about the SoC under study: a CPU side and a GPU side.

Datasets, predictors and plans depend on these facts. Drivers, cores and hints of one machine are in
`codl.machine.placement`. SoC files are `socs/<name>.yaml` in the current folder, else those shipped
with codl. Keys are the fields of the classes below; a wrong or missing key is an error that names
it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, get_type_hints

import msgspec

from codl.errors import (
    CodlError,
    CodlWarning,
    InvalidFileError,
    UnknownNameError,
    UnsupportedError,
)
from codl.files import HOME, inside, shipped
from codl.ir import yaml_file
from codl.ir.types import ELEMENTS, LAYOUTS, PRECISIONS, Element, PrecisionTraits
from codl.ir.yaml_file import NotNegative, Positive, Threads

CacheKind: TypeAlias = Literal["data", "instruction", "unified"]


@dataclass(frozen=True)
class Chip:
    """Names of the chip and its board by the system; empty if not reported."""

    name: str = ""
    board: str = ""
    #: The device tree's list of compatible hardware, the board first, the chip last.
    compatible: tuple[str, ...] = ()


@dataclass(frozen=True)
class CoreCluster:
    """Cores of one kind; `ids` are the system's core numbers.

    `max_mhz` and `capacity` (the kernel scheduler's, at most 1024) are 0 if not reported.
    """

    name: str
    cores: Positive
    max_mhz: NotNegative = 0
    capacity: NotNegative = 0
    ids: tuple[NotNegative, ...] = ()


@dataclass(frozen=True)
class CpuCache:
    """Equal caches: `count` caches of `bytes` each, every one shared by `shared_by` cores."""

    level: Positive
    kind: CacheKind
    bytes: Positive
    shared_by: Positive
    count: Positive


#: The `source` of a SoC that is known by published facts alone.
PUBLISHED = "published"
FOLDER = HOME / "socs"
#: File name suffix of the placement file beside a SoC file.
LOCAL = ".local.yaml"
#: Memory types of a GPU side's tensors, and the types of their elements.
MEMORY_TYPES = tuple(layout.memory for layout in LAYOUTS.values() if layout.memory)
ELEMENT_NAMES: tuple[str, ...] = tuple(ELEMENTS)
Memory: TypeAlias = Literal["buffer", "image2d"]
MemoryTypes: TypeAlias = Annotated[tuple[Memory, ...], msgspec.Meta(min_length=1)]
#: Values that mean "unknown" for an optional key; `Soc.to_dict` omits the key.
UNKNOWN: tuple[Any, ...] = (None, "", [], {})
#: Keys written by earlier versions of codl, ignored on reading: of each side, and others.
FORMER = {
    "cpu": ("big_cores",),
    "gpu": ("zero_copy", "preferred_memory", "svm_atomics", "signal", "svm", "max_read_images"),
    "": ("sensors", "fallbacks"),
}
#: Keys without influence on latencies: top-level keys, and keys of each side. The types of tensors
#: (`element`, `arithmetic`) are a choice that variant names include.
ABOUT = {"description", "power_w", "chip", "sources", *FORMER[""]}
ASIDE = {
    "cpu": {"clusters", "caches", *FORMER["cpu"]},
    "gpu": {"opencl_version", "half", "element", "arithmetic", *FORMER["gpu"]},
}


@dataclass(frozen=True)
class CpuSide:
    """The processor `cpu`; its latencies are measured with `threads` ncnn threads."""

    name: str
    threads: Threads
    simd_floats: Positive
    l2_cache_bytes: NotNegative
    #: Core clusters, the slowest first; caches by level.
    clusters: tuple[CoreCluster, ...] = ()
    caches: tuple[CpuCache, ...] = ()


@dataclass(frozen=True)
class GpuSide:
    """The processor `gpu`: one OpenCL device, identified by platform name and device name.

    `vector_width` is the number of channels in a block of the GPU's layout. `wave_size` is the
    number of work-items that run in lockstep. A CPU device's `compute_units` are its reserved
    cores.
    """

    platform: str
    name: str
    driver: str
    type: Literal["cpu", "gpu"]
    compute_units: Positive
    max_work_group_size: Positive
    wave_size: Positive
    vector_width: Literal[4, 8, 16]
    global_mem_cache_size: NotNegative
    local_mem_bytes: NotNegative
    unified_memory: bool
    #: Memory types of tensors (`buffer`, `image2d`), type of their elements (`float32`, `float16`),
    #: and narrowest type of multiplications. `arithmetic` is `float16` only with `float16`
    #: elements. The last two are the precision of models that request none.
    memory_types: MemoryTypes = ("buffer",)
    element: Element = "float32"
    arithmetic: Element = "float32"
    #: Largest `image2d` in texels; 0 if the device has no images or the limit is unknown.
    max_image_width: NotNegative = 0
    max_image_height: NotNegative = 0
    #: Whether both processors may use the same memory without mapping it (OpenCL 2.0).
    fine_grained_svm: bool = False
    #: As reported by the driver: version (such as "OpenCL 3.0"), and support for `half` arithmetic.
    opencl_version: str = ""
    half: bool | None = None
    #: Vector registers available to a kernel on a CPU device; tiles must fit in them.
    vector_registers: Positive | None = None

    @property
    def precision(self) -> str:
        """The name in `PRECISIONS` of the stored and computed types of tensors."""
        traits = PrecisionTraits(self.element, self.arithmetic)
        return next(name for name, each in PRECISIONS.items() if each == traits)

    @property
    def sees_host_memory(self) -> bool:
        """Whether kernels read and write the CPU's arrays in place.

        Requires unified memory: a discrete card would read the arrays over the bus each time.
        """
        return self.unified_memory and self.fine_grained_svm

    @property
    def is_cpu(self) -> bool:
        """Whether the device is a CPU: a work-item then computes a large, register-blocked tile."""
        return self.type == "cpu"

    def blocks(self, channels: int) -> int:
        """Number of blocks of the GPU's layout that hold `channels`."""
        return -(-channels // self.vector_width)


def _optional(side: type[CpuSide | GpuSide]) -> Any:
    """The dataclass of a side, with None by default for each fact."""
    kinds = get_type_hints(side, include_extras=True)
    members = [(key, kind | None, None) for key, kind in kinds.items()]
    return make_dataclass(f"Published{side.__name__}", members, frozen=True)


if TYPE_CHECKING:
    PublishedCpu: TypeAlias = Any
    PublishedGpu: TypeAlias = Any
else:
    PublishedCpu, PublishedGpu = _optional(CpuSide), _optional(GpuSide)


@dataclass(frozen=True)
class PublishedSoc:
    """A SoC known only by published facts; `sources` maps keys such as `gpu.name` to their sources.

    Nothing was measured on it, and nothing can run on it. Keys are those of a `Soc`.
    A source of a whole side, such as `gpu`, applies to all its values without their own. `chips`
    are names of the chip in device trees and Android's properties.
    """

    name: str
    description: str
    cpu: PublishedCpu
    gpu: PublishedGpu
    sources: Mapping[str, str]
    source: str = PUBLISHED
    chips: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The known facts as plain JSON values."""
        facts = {"cpu": self.known("cpu"), "gpu": self.known("gpu")}
        head = {"name": self.name, "description": self.description, "source": self.source}
        chips = {"chips": list(self.chips)} if self.chips else {}
        return {**head, **chips, **facts, "sources": dict(self.sources)}

    def known(self, side: str) -> dict[str, Any]:
        """The known facts of one side."""
        content: dict[str, Any] = asdict(getattr(self, side))
        if clusters := content.pop("clusters", ()):
            known = [{k: value for k, value in cluster.items() if value} for cluster in clusters]
            content = {"name": content.pop("name"), "clusters": known, **content}
        return {key: value for key, value in content.items() if value is not None}

    @property
    def missing(self) -> list[str]:
        """Keys such as `gpu.driver` that a `Soc` requires and that are unpublished."""
        return [
            f"{side}.{member.name}"
            for side, kind in (("cpu", CpuSide), ("gpu", GpuSide))
            for member in fields(kind)
            if member.default is MISSING and member.name not in self.known(side)
        ]


def published_from(content: Any, path: Path) -> PublishedSoc:
    """A published SoC; raises `InvalidFileError` for a wrong key or a missing source."""
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
    yield from ("chips",) * bool(soc.chips)
    yield from (f"{side}.{key}" for side in ("cpu", "gpu") for key in soc.known(side))


AnySoc = TypeVar("AnySoc", bound="Soc")


@dataclass(frozen=True)
class PowerW:
    """Watts of a SoC when idle, with one processor working, and with both, from the named sensors.

    Consumers outside the sensors are missing: RAPL excludes a discrete GPU.
    """

    idle: float
    cpu: float
    gpu: float
    both: float
    sensors: tuple[str, ...]


@dataclass(frozen=True)
class Soc:
    """Facts about a CPU side and a GPU side, with a short description.

    A `source` of `replayed` means latencies of another project's kernels, which codl does not have:
    it can train predictors and make plans, but not run them. `power_w` is None if not measured.
    Other optional keys are unknown if empty. `sources` maps keys such as `gpu.wave_size` to the
    origin of a published value.
    """

    name: str
    description: str
    cpu: CpuSide
    gpu: GpuSide
    source: Literal["measured", "replayed"] = "measured"
    power_w: PowerW | None = None
    chip: Chip | None = None
    sources: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_replayed(self) -> bool:
        return self.source == "replayed"

    @property
    def source_of_predictions(self) -> str:
        """Origin of predictions: `computed` (from measured latencies) or the SoC's `source`."""
        return "computed" if self.source == "measured" else self.source

    @property
    def facts(self) -> Soc:
        """A plain `Soc` with the same facts, without the placement of a `LocalSoc`."""
        return Soc(**{field.name: getattr(self, field.name) for field in fields(Soc)})

    def at(self: AnySoc, precision: str | None) -> AnySoc:
        """This SoC with the GPU's tensors stored and computed in `precision`; itself for None.

        Raises `UnknownNameError` for an unknown precision, and `UnsupportedError` for `half` on a
        device without half arithmetic.
        """
        if precision is None:
            return self
        if precision not in PRECISIONS:
            raise UnknownNameError("precision", precision, tuple(PRECISIONS))
        element, arithmetic = PRECISIONS[precision]
        if arithmetic == "float16" and not self.gpu.half:
            raise UnsupportedError(
                f"The precision half is for a device with cl_khr_fp16, and the SoC {self.name!r} "
                f"has gpu.half: {str(self.gpu.half).lower()}. half_storage needs nothing of it; "
                "`codl soc detect` tells what a device has."
            )
        return replace(self, gpu=replace(self.gpu, element=element, arithmetic=arithmetic))

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON values, without unknown ones and a `source` of `measured`."""
        content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.facts))
        if self.source == "measured":
            del content["source"]
        for kind, part in ((Soc, content), (CpuSide, content["cpu"]), (GpuSide, content["gpu"])):
            for f in fields(kind):
                is_optional = f.default is not MISSING or f.default_factory is not MISSING
                if is_optional and part.get(f.name) in UNKNOWN:
                    part.pop(f.name, None)
        return content

    def is_as_in(self, content: Any) -> bool:
        """Whether a dataset's SoC equals this one in all keys that affect latencies."""
        return isinstance(content, dict) and decisive(content) == decisive(self.to_dict())

    def save(self, path: Path) -> Path:
        """Write the SoC file atomically, and make its folder."""
        return yaml_file.write(self.to_dict(), path)


def decisive(content: dict[str, Any]) -> dict[str, Any]:
    """The keys of a SoC file that affect latencies, with their values."""
    sides = {
        side: {key: value for key, value in content.get(side, {}).items() if key not in aside}
        for side, aside in ASIDE.items()
    }
    return {key: value for key, value in content.items() if key not in ABOUT} | sides


def names() -> list[str]:
    """Names of all SoC files, in `./socs` and shipped with codl."""
    names = (path.stem for path in FOLDER.glob("*.yaml") if "." not in path.stem)
    return sorted({*names, *_shipped()})


def path_of(name: str | Path) -> Path:
    """The file of a SoC by name, in `./socs` or shipped with codl; a `.yaml` path is itself."""
    path = own_path_of(name)
    return path if path.exists() else _shipped().get(str(name), path)


def own_path_of(name: str | Path) -> Path:
    """The file to write a SoC's facts to: in `./socs`, or `name` itself if it is a `.yaml` path."""
    return Path(name) if str(name).endswith(".yaml") else inside(FOLDER, f"{name}.yaml")


def _shipped() -> dict[str, Path]:
    """SoC files shipped with codl, by name; excludes SoCs of a checkout with a placement file."""
    files = {path.stem: path for path in shipped(FOLDER).glob("*.yaml") if "." not in path.stem}
    return {n: path for n, path in files.items() if not path.with_name(n + LOCAL).exists()}


def read(name: str | Path) -> Soc | PublishedSoc:
    """Read a SoC by name or from a `.yaml` file, which may hold published facts alone.

    Raises `UnknownNameError` for an unknown name, and `InvalidFileError` for a missing, unknown or
    mistyped key or an impossible value.
    """
    path = path_of(name)
    if not path.is_file():
        fix = f"`codl soc detect --serial local --name {name}` describes this machine."
        raise UnknownNameError("SoC", str(name), names(), fix=fix)
    content = yaml_file.read_content(path)
    if isinstance(content, dict) and content.get("source") == PUBLISHED:
        return published_from(content, path)
    return from_dict(content, path)


def load(name: str | Path, precision: str | None = None) -> Soc:
    """Load a complete SoC at a precision (see `Soc.at`).

    Raises the errors of `read` and `Soc.at`, and `UnsupportedError` for published facts alone.
    """
    soc = read(name)
    if isinstance(soc, PublishedSoc):
        missing = ", ".join(soc.missing)
        raise UnsupportedError(
            f"Of the SoC {soc.name!r} only published facts are known ({path_of(name)} says source: "
            f"published), and nothing was measured on one: {missing} are missing. With such a "
            f"device at hand, `codl collect --soc {soc.name} --serial SERIAL` finds them, and "
            f"measures it; with measurements of one, `codl dataset import FILES --soc {soc.name} "
            "--write-soc` does."
        )
    return soc.at(precision)


def from_dict(content: Any, path: Path) -> Soc:
    """The SoC of a parsed file; raises `InvalidFileError` as `read` does."""
    if isinstance(content, dict):
        if content.get("fallbacks"):
            text = "fallbacks are no longer read; `codl validate --write-plan` puts them in a plan."
            warnings.warn(f"{path}: {text}", CodlWarning, stacklevel=2)
        content = {key: value for key, value in content.items() if key not in FORMER[""]}
        for side in ("cpu", "gpu"):
            if isinstance(part := content.get(side), dict):
                content[side] = {k: value for k, value in part.items() if k not in FORMER[side]}
    soc = yaml_file.convert(content, Soc, path)
    try:
        inside(FOLDER, soc.name)  # of which folders are named
    except CodlError as error:
        raise InvalidFileError(path, str(error), where="name") from error
    if (soc.gpu.element, soc.gpu.arithmetic) not in PRECISIONS.values():
        reason = f"must be float32 with the element {soc.gpu.element}, got {soc.gpu.arithmetic}."
        raise InvalidFileError(path, reason, where="gpu.arithmetic")
    return soc
