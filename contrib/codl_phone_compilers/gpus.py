"""The GPUs that have a compiler, and the SoC facts that kernels are chosen by."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from codl.errors import UnknownNameError
from codl.ir.records import soc as socs
from codl.ir.records.soc import CpuSide, GpuSide, PublishedSoc, Soc

Family: TypeAlias = Literal["adreno", "mali"]
FAMILIES: tuple[Family, ...] = ("adreno", "mali")


@dataclass(frozen=True)
class PhoneGpu:
    """A GPU that Mesa's drm-shim plays, by the number that it goes by there.

    `wave_size` work-items run in lockstep. Numbers are those of devices' drivers and, of Adrenos,
    of Mesa's table of devices.
    """

    label: str
    number: str
    compute_units: int
    max_work_group_size: int
    wave_size: int
    global_mem_cache_size: int

    @property
    def family(self) -> Family:
        return "adreno" if self.label.startswith("Adreno") else "mali"


#: By the name that `--for` takes.
GPUS = {
    "adreno630": PhoneGpu("Adreno 630", "630", 2, 1024, 64, 128 << 10),
    "adreno660": PhoneGpu("Adreno 660", "660", 3, 1024, 64, 256 << 10),
    "adreno730": PhoneGpu("Adreno 730", "730", 4, 1024, 64, 512 << 10),
    "malig76": PhoneGpu("Mali-G76", "7211", 16, 384, 8, 512 << 10),
    "malig57": PhoneGpu("Mali-G57", "9091", 4, 512, 16, 256 << 10),
}
#: GPUs without a compiler, by the one of the same generation and number of registers.
STANDS_FOR = {
    "adreno640": "adreno630",
    "adreno650": "adreno660",
    "adreno740": "adreno730",
    "adreno750": "adreno730",
    "malig52": "malig76",
    "malig71": "malig76",
    "malig72": "malig76",
    "malig68": "malig57",
    "malig77": "malig57",
    "malig78": "malig57",
}
#: What phones have and published facts are silent about.
CPU = CpuSide(name="Arm", threads=4, simd_floats=4, l2_cache_bytes=256 << 10)
LOCAL_MEM_BYTES, MAX_IMAGE = 32 << 10, 16384


def find(name: str) -> tuple[str, PhoneGpu]:
    """The key in `GPUS` and the GPU of a name, or of a SoC's name or file.

    Raises `UnknownNameError` for one that has no compiler here.
    """
    for candidate in (_plain(name), _plain(_gpu_of(name))):
        key = STANDS_FOR.get(candidate, candidate)
        if key in GPUS:
            return key, GPUS[key]
    names = [*GPUS, *STANDS_FOR, *socs.names()]
    raise UnknownNameError("GPU with a compiler, or SoC with such a GPU,", name, names)


def soc_of(name: str, precision: str = "float32") -> Soc:
    """A SoC with that GPU, whose tensors may lie in buffers and in images, at a precision.

    Facts are those of the SoC file, completed by `PhoneGpu`'s where they are only published.
    """
    key, gpu = find(name)
    described = socs.read(name) if name in socs.names() or name.endswith(".yaml") else None
    if isinstance(described, Soc):
        return described.at(precision)
    facts: dict[str, Any] = asdict(gpu) | {"name": gpu.label, "type": "gpu"}
    facts = {key: facts[key] for key in facts if key not in ("label", "number")}
    if isinstance(described, PublishedSoc):
        facts |= described.known("gpu")
    return Soc(
        name=described.name if described else key,
        description=f"Kernels for {facts['name']}",
        cpu=CPU,
        gpu=GpuSide(
            **{
                "platform": "rusticl",
                "driver": "",
                "vector_width": 4,
                "local_mem_bytes": LOCAL_MEM_BYTES,
                "unified_memory": True,
                "memory_types": ("buffer", "image2d"),
                "half": True,
                "max_image_width": MAX_IMAGE,
                "max_image_height": MAX_IMAGE,
                **facts,
            }
        ),
    ).at(precision)


def _plain(name: str) -> str:
    """The family and number in a GPU's name: "Mali-G77 MC9 r0p1" is malig77."""
    match = re.search(r"(adreno|mali)\W*(?:\(tm\))?\W*([tg]?\d+)", name.lower())
    return "".join(match.groups()) if match else ""


def _gpu_of(name: str) -> str:
    if name not in socs.names() and not name.endswith(".yaml"):
        return ""
    return socs.read(name).gpu.name or ""
