"""The SoC: facts about the pair of processors under study, described by `socs/<name>.yaml`.

Datasets, predictors and plans depend on these facts. Where the two are on a machine (driver, cores,
hints) is apart from them, see `codl.runtime.placement`. SoC files lie in `./socs`, and some come
with codl; a name in `./socs` goes first. Their keys are the fields of the classes below; an unknown
or missing key is an error that names it.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from codl import yaml_file
from codl.errors import CodlError, InvalidFileError, UnknownNameError, UnsupportedError
from codl.files import HOME, inside
from codl.ir.op_text import parse
from codl.ir.ops.base import OP_TYPES
from codl.ir.plan import OpFallback
from codl.ir.types import ELEMENTS, LAYOUTS, PRECISIONS, PrecisionTraits
from codl.provenance import shipped
from codl.records import soc_facts as published_soc
from codl.records.soc_facts import (
    SVM_LEVELS,
    Chip,
    CoreCluster,
    CpuCache,
    PublishedSoc,
    SensorFact,
)
from codl.yaml_file import NotNegative, Positive, Threads

FOLDER = HOME / "socs"
#: The end of the file beside a SoC's that says where its parts are on a machine.
LOCAL = ".local.yaml"
#: What a GPU side's tensors may lie in, and the types that their elements may be stored as.
MEMORY_TYPES = tuple(layout.memory for layout in LAYOUTS.values() if layout.memory)
ELEMENT_NAMES: tuple[str, ...] = tuple(ELEMENTS)
#: Where a SoC's latencies come from: this project's kernels on it, or measurements of others.
SOURCES = ("measured", "replayed")
#: What an OpenCL device may be.
TYPES = ("cpu", "gpu")
#: An optional key of such a value is not known, and is left out of files.
UNKNOWN: tuple[Any, ...] = (None, "", [], {})
#: Keys of a GPU that earlier versions measured and wrote, and nothing reads: they are left out.
FORMER = ("zero_copy", "preferred_memory")
#: Keys that describe a SoC and on which no latency depends: of the whole, and of either side.
#: What tensors are stored and computed as is a choice, and the names of variants say it.
ABOUT = {"description", "power_w", "chip", "sensors", "sources", "fallbacks"}
ASIDE = {
    "cpu": {"clusters", "big_cores", "caches"},
    "gpu": {"opencl_version", "half", "svm", "max_read_images", "svm_atomics",
            "signal", "element", "arithmetic", *FORMER},
}  # fmt: skip


@dataclass(frozen=True)
class CpuSide:
    """The processor `cpu`; `threads` is how many of ncnn's its latencies are measured with."""

    name: str
    threads: Threads
    simd_floats: Positive
    l2_cache_bytes: NotNegative
    #: The slowest first, the numbers of the fastest cores, and caches by level.
    clusters: tuple[CoreCluster, ...] = ()
    big_cores: tuple[NotNegative, ...] = ()
    caches: tuple[CpuCache, ...] = ()


@dataclass(frozen=True)
class GpuSide:
    """The processor `gpu`: one OpenCL device, found again by its platform and name.

    `vector_width` is the number of channels in a block of the GPU's layout. `wave_size` is the
    number of work-items that run in lockstep. Of a device that is a CPU, `compute_units` are the
    cores that it has for itself.
    """

    platform: str
    name: str
    driver: str
    type: str
    compute_units: Positive
    max_work_group_size: Positive
    wave_size: Positive
    vector_width: Literal[4, 8, 16]
    global_mem_cache_size: NotNegative
    local_mem_bytes: NotNegative
    unified_memory: bool
    #: What tensors may lie in, and the type of their elements: `buffer` and `image2d`; `float32` or
    #: `float16`. Then the narrowest type that kernels may multiply in: `float16` only of halves.
    #: The two are the precision of models that ask for none.
    memory_types: tuple[str, ...] = ("buffer",)
    element: str = "float32"
    arithmetic: str = "float32"
    #: The largest `image2d` in texels; 0 where the device has none, or it is unknown.
    max_image_width: NotNegative = 0
    max_image_height: NotNegative = 0
    #: Whether both processors may work on the same memory without mapping it (OpenCL 2.0).
    fine_grained_svm: bool = False
    #: As the driver tells, such as "OpenCL 3.0"; whether kernels may compute in `half`; what memory
    #: both processors may share, of `SVM_LEVELS`; and how many images a kernel may read.
    opencl_version: str = ""
    half: bool | None = None
    svm: str = ""
    max_read_images: NotNegative | None = None
    #: Measured: whether a kernel and the host meet at a flag in fine-grained memory.
    svm_atomics: bool | None = None
    #: Measured: by which of both the CPU knows sooner that the GPU is done; empty is an event.
    signal: Literal["", "event", "flag"] = ""
    #: Of a device that is a CPU, the vector registers that its kernels have; tiles fit in them.
    vector_registers: Positive | None = None

    @property
    def precision(self) -> str:
        """The name of what tensors are stored and computed as, one of `PRECISIONS`."""
        traits = PrecisionTraits(self.element, self.arithmetic)  # type: ignore[arg-type]
        return next(name for name, each in PRECISIONS.items() if each == traits)

    @property
    def sees_host_memory(self) -> bool:
        """Whether kernels read and write the CPU's arrays in place.

        Only where that memory is its own: a discrete card would read it over the bus each time.
        """
        return self.unified_memory and self.fine_grained_svm

    @property
    def has_flags(self) -> bool:
        """Whether kernels can tell the CPU that they are done by a flag in shared memory.

        Only where such a flag was seen to work, and kernels write the CPU's arrays in place.
        """
        return bool(self.svm_atomics) and self.sees_host_memory

    @property
    def raises_flags(self) -> bool:
        """Whether they do."""
        return self.has_flags and self.signal == "flag"

    @property
    def is_cpu(self) -> bool:
        """Whether the device is a CPU: then one work-item is a large, register-blocked piece."""
        return self.type == "cpu"

    def blocks(self, channels: int) -> int:
        """Blocks of the GPU's layout that hold `channels`."""
        return -(-channels // self.vector_width)


AnySoc = TypeVar("AnySoc", bound="Soc")


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
    """Facts about a CPU side and a GPU side, and a word on what they are.

    `source` is `replayed` where latencies were measured by others, of kernels that are not in this
    package: predictors can be trained and plans made, but nothing can run. `power_w` is None where
    it was not measured, or there is no sensor to. Of other optional keys, what is not told is not
    known. `sources` says of keys such as `gpu.wave_size` where the value is from: it begins with
    `measured`, `driver` or `system`.
    """

    name: str
    description: str
    cpu: CpuSide
    gpu: GpuSide
    source: str = "measured"
    power_w: PowerW | None = None
    chip: Chip | None = None
    sensors: tuple[SensorFact, ...] = ()
    sources: dict[str, str] = field(default_factory=dict, hash=False)
    #: Ops that are wrong in some kernel variant here; plans keep to what stands in for it.
    fallbacks: tuple[OpFallback, ...] = ()

    @property
    def is_replayed(self) -> bool:
        return self.source == "replayed"

    @property
    def source_of_predictions(self) -> str:
        """What they rest on: computed from measured latencies, replayed or simulated ones."""
        return "computed" if self.source == "measured" else self.source

    @property
    def facts(self) -> Soc:
        """The facts alone, of a SoC that is known to be at hand too."""
        return Soc(**{field.name: getattr(self, field.name) for field in fields(Soc)})

    def at(self: AnySoc, precision: str | None) -> AnySoc:
        """The same with the GPU's tensors stored and computed as a model asks; None for as it is.

        Raises `UnknownNameError` for what is no precision, and `UnsupportedError` for `half` where
        the device does not compute in it.
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
        """The facts as YAML and JSON hold them, with lists in the place of tuples.

        A `source` of `measured` is left out, and so is what is not known.
        """
        content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.facts))
        if self.source == "measured":
            del content["source"]
        for kind, part in ((Soc, content), (CpuSide, content["cpu"]), (GpuSide, content["gpu"])):
            for key in [f.name for f in fields(kind) if _is_optional(f)]:
                if part.get(key) in UNKNOWN:
                    part.pop(key, None)
        return content

    def is_as_in(self, content: Any) -> bool:
        """Whether a description, as of a dataset, is of this SoC, but for what describes it."""
        return isinstance(content, dict) and decisive(content) == decisive(self.to_dict())

    def to_yaml(self) -> str:
        """The text of the SoC file."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, width=100)

    def save(self, path: Path) -> Path:
        """Write the SoC file; the folder is made, and a crash leaves no half of a file."""
        return yaml_file.write(self.to_dict(), path)


def _is_optional(member: Field[Any]) -> bool:
    return member.default is not MISSING or member.default_factory is not MISSING


def decisive(content: dict[str, Any]) -> dict[str, Any]:
    """Of what a SoC file holds, that on which latencies depend."""
    sides = {
        side: {key: value for key, value in content.get(side, {}).items() if key not in aside}
        for side, aside in ASIDE.items()
    }
    return {key: value for key, value in content.items() if key not in ABOUT} | sides


def names() -> list[str]:
    """The SoCs that have a file: those in `./socs`, and those that come with codl."""
    names = (path.stem for path in FOLDER.glob("*.yaml") if "." not in path.stem)
    return sorted({*names, *_shipped()})


def path_of(name: str | Path) -> Path:
    """The file of a SoC that is named, in `./socs` or of codl's own, or the file itself."""
    path = own_path_of(name)
    return path if path.exists() else _shipped().get(str(name), path)


def own_path_of(name: str | Path) -> Path:
    """The file to write what is found out of a SoC to: in `./socs`, or the file itself."""
    return Path(name) if str(name).endswith(".yaml") else inside(FOLDER, f"{name}.yaml")


def _shipped() -> dict[str, Path]:
    """The files that come with codl, by name; in a checkout not those of a machine at hand."""
    files = {path.stem: path for path in shipped(FOLDER).glob("*.yaml") if "." not in path.stem}
    return {n: path for n, path in files.items() if not path.with_name(n + LOCAL).exists()}


def read(name: str | Path) -> Soc | PublishedSoc:
    """Read a SoC by name or from a `.yaml` file, one with published facts alone too.

    Raises `UnknownNameError` for an unknown name and `InvalidFileError` for a file with a missing,
    unknown or mistyped key, or a value that cannot be.
    """
    path = path_of(name)
    if not path.is_file():
        fix = f"`codl soc detect --serial local --name {name}` describes this machine."
        raise UnknownNameError("SoC", str(name), names(), fix=fix)
    content = yaml_file.read_content(path)
    if isinstance(content, dict) and content.get("source") == published_soc.SOURCE:
        return published_soc.from_content(content, path)
    return from_dict(content, path)


def load(name: str | Path, precision: str | None = None) -> Soc:
    """Load a SoC to work with, at a precision of `Soc.at`.

    Raises as `read` and `at`, and `UnsupportedError` for published facts alone; the message names
    the keys that are missing.
    """
    soc = read(name)
    if isinstance(soc, PublishedSoc):
        missing = ", ".join(soc.missing_of(CpuSide, GpuSide))
        raise UnsupportedError(
            f"Of the SoC {soc.name!r} only published facts are known ({path_of(name)} says source: "
            f"published), and nothing was measured on one: {missing} are missing. With such a "
            f"device at hand, `codl soc detect --serial SERIAL --name {soc.name}` writes "
            f"{own_path_of(soc.name)} in full; with measurements of one, `codl dataset import "
            f"FILES --soc {soc.name} --write-soc` does."
        )
    return soc.at(precision)


def from_dict(content: Any, path: Path) -> Soc:
    """A SoC from what a file holds; raises `InvalidFileError` as `load` does."""
    if isinstance(content, dict) and isinstance(content.get("gpu"), dict):
        gpu = {key: value for key, value in content["gpu"].items() if key not in FORMER}
        content = {**content, "gpu": gpu}
    return _checked(yaml_file.convert(content, Soc, path), path)


def _checked(soc: Soc, path: Path) -> Soc:
    try:
        inside(FOLDER, soc.name)  # of which folders are named
    except CodlError as error:
        raise InvalidFileError(path, str(error), where="name") from error
    for key, values, choices in (
        ("gpu.type", (soc.gpu.type,), TYPES),
        ("gpu.memory_types", soc.gpu.memory_types, MEMORY_TYPES),
        ("gpu.svm", (soc.gpu.svm,), ("", *SVM_LEVELS)),
        ("gpu.element", (soc.gpu.element,), ELEMENT_NAMES),
        (
            "gpu.arithmetic",
            (soc.gpu.arithmetic,),
            tuple(p.arithmetic for p in PRECISIONS.values() if p.element == soc.gpu.element),
        ),
        ("source", (soc.source,), SOURCES),
    ):
        for value in values:
            if value not in choices:
                reason = f"must be of {', '.join(choices)}, got {value!r}."
                raise InvalidFileError(path, reason, where=key)
    for number, fallback in enumerate(soc.fallbacks):
        if fallback.op.partition(" ")[0] in OP_TYPES:  # a plugin's kind may not be loaded
            try:
                parse(fallback.op)
            except CodlError as error:
                where = f"fallbacks[{number}].op"
                raise InvalidFileError(path, str(error), where=where) from error
    if not soc.gpu.memory_types:
        reason = f"must be some of {', '.join(MEMORY_TYPES)}, got none."
        raise InvalidFileError(path, reason, where="gpu.memory_types")
    return soc
