"""Names of processors, layouts, element types, precisions and ways of data sharing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Processor: TypeAlias = Literal["cpu", "gpu"]
PROCESSORS: tuple[Processor, ...] = ("cpu", "gpu")


Layout: TypeAlias = Literal["blocked", "planar", "image"]
Element: TypeAlias = Literal["float32", "float16"]
ConstantArray: TypeAlias = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint32]


class LayoutTraits(NamedTuple):
    """A layout's name in SoC files (None: only some ops' own tensors) and in variants' names."""

    memory: str | None
    suffix: str = ""


class ElementTraits(NamedTuple):
    """Bytes of an element, and its suffix in names of kernel variants."""

    bytes: int
    suffix: str = ""


#: Layouts and element types of GPU tensors. `codl.kernels.base` defines the layouts,
#: `codl.kernels.layout` converts them.
LAYOUTS: Mapping[Layout, LayoutTraits] = {
    "blocked": LayoutTraits("buffer"),
    "planar": LayoutTraits(None),
    "image": LayoutTraits("image2d", "_image"),
}
ELEMENTS: Mapping[Element, ElementTraits] = {
    "float32": ElementTraits(4),
    "float16": ElementTraits(2, "_fp16"),
}
#: Suffixes of kernel variants by the type of their multiplications.
ARITHMETIC: Mapping[Element, str] = {"float32": "", "float16": "_arithmetic"}


def arithmetic_of(variant: str) -> Element:
    """The type of a variant's multiplications, by its name."""
    return "float16" if variant.endswith(ARITHMETIC["float16"]) else "float32"


def narrowest(elements: Iterable[Element]) -> Element:
    """The type with the fewest bytes; float32 for no types."""
    return min(elements, key=lambda element: ELEMENTS[element].bytes, default="float32")


class PrecisionTraits(NamedTuple):
    """The type of the GPU's tensors, and the narrowest type of its multiplications."""

    element: Element
    arithmetic: Element


#: Precisions of a model. In `half`, long sums are still float32.
PRECISIONS: Mapping[str, PrecisionTraits] = {
    "float32": PrecisionTraits("float32", "float32"),
    "half_storage": PrecisionTraits("float16", "float32"),
    "half": PrecisionTraits("float16", "float16"),
}


@dataclass(frozen=True)
class Storage:
    """Layout and element type of a tensor on the GPU."""

    layout: Layout = "blocked"
    element: Element = "float32"

    @property
    def element_bytes(self) -> int:
        return ELEMENTS[self.element].bytes

    @property
    def suffix(self) -> str:
        """Suffix of variant names for this storage; "" for the default."""
        return LAYOUTS[self.layout].suffix + ELEMENTS[self.element].suffix

    def __str__(self) -> str:
        return f"{self.layout} {self.element}"


BLOCKED = Storage()
BLOCKED_HALF = Storage("blocked", "float16")
PLANAR = Storage("planar")
PLANAR_HALF = Storage("planar", "float16")
IMAGE = Storage("image")
IMAGE_HALF = Storage("image", "float16")
#: All storages, and the storages that a SoC may use for all its tensors.
STORAGES = tuple(Storage(layout, element) for layout in LAYOUTS for element in ELEMENTS)
SHARED_STORAGES = tuple(storage for storage in STORAGES if LAYOUTS[storage.layout].memory)


@dataclass(frozen=True)
class ImageSize:
    """Size of an image of RGBA texels, in texels, with its element type."""

    width: int
    height: int
    element: Element = "float32"

    @classmethod
    def of(cls, values: ConstantArray) -> ImageSize:
        """The size of the image for `values` shaped (rows, columns, 4)."""
        rows, columns, _ = values.shape
        return cls(columns, rows, "float16" if values.dtype == np.float16 else "float32")

    @property
    def bytes(self) -> int:
        return 4 * self.width * self.height * ELEMENTS[self.element].bytes

    def __str__(self) -> str:
        return f"an image of {self.width}x{self.height} {self.element} texels"


#: Ways of data sharing: CPU to GPU, GPU to CPU, and between layouts on the GPU. `load` and `store`
#: are into and out of a net of ncnn, or of ONNX Runtime (`ort`) or OpenVINO.
Direction: TypeAlias = Literal[
    "to_gpu",
    "to_cpu",
    "load",
    "store",
    "load_ort",
    "store_ort",
    "load_openvino",
    "store_openvino",
    "relayout",
]
