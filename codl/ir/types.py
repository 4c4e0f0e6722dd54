"""Words that every stage uses: processors, storages of tensors, and ways of data sharing."""

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
    """`memory` is what a SoC file calls tensors that lie so, whatever op made them; None where only
    some ops' own tensors do. `suffix` ends the names of kernel variants for it.
    """

    memory: str | None
    suffix: str = ""


class ElementTraits(NamedTuple):
    """The size of an element, and what ends the names of kernel variants for it."""

    bytes: int
    suffix: str = ""


#: All layouts and types of element that tensors on the GPU have. What a layout means is said in
#: `codl.kernels.base`; how tensors get from one to another in `codl.kernels.layout.transform`.
LAYOUTS: Mapping[Layout, LayoutTraits] = {
    "blocked": LayoutTraits("buffer"),
    "planar": LayoutTraits(None),
    "image": LayoutTraits("image2d", "_image"),
}
ELEMENTS: Mapping[Element, ElementTraits] = {
    "float32": ElementTraits(4),
    "float16": ElementTraits(2, "_fp16"),
}
#: What ends the names of kernel variants by the type that they multiply in.
ARITHMETIC: Mapping[Element, str] = {"float32": "", "float16": "_arithmetic"}


def arithmetic_of(variant: str) -> Element:
    """The type that a variant multiplies in, by its name."""
    return "float16" if variant.endswith(ARITHMETIC["float16"]) else "float32"


def narrowest(elements: Iterable[Element]) -> Element:
    """Of types the one with the fewest bytes; float32 of none."""
    return min(elements, key=lambda element: ELEMENTS[element].bytes, default="float32")


class PrecisionTraits(NamedTuple):
    """What the GPU stores tensors as, and the narrowest type that it multiplies in."""

    element: Element
    arithmetic: Element


#: What a model may be asked to run in. In `half` long sums are of float32 all the same.
PRECISIONS: Mapping[str, PrecisionTraits] = {
    "float32": PrecisionTraits("float32", "float32"),
    "half_storage": PrecisionTraits("float16", "float32"),
    "half": PrecisionTraits("float16", "float16"),
}


@dataclass(frozen=True)
class Storage:
    """How a tensor lies on the GPU, and the type that its elements are stored as."""

    layout: Layout = "blocked"
    element: Element = "float32"

    @property
    def element_bytes(self) -> int:
        return ELEMENTS[self.element].bytes

    @property
    def suffix(self) -> str:
        """What the names of variants for this storage end in; "" for the usual one."""
        return LAYOUTS[self.layout].suffix + ELEMENTS[self.element].suffix

    def __str__(self) -> str:
        return f"{self.layout} {self.element}"


BLOCKED = Storage()
BLOCKED_HALF = Storage("blocked", "float16")
PLANAR = Storage("planar")
PLANAR_HALF = Storage("planar", "float16")
IMAGE = Storage("image")
IMAGE_HALF = Storage("image", "float16")
#: Every storage, and those that a SoC may have for all of its tensors, which are shared.
STORAGES = tuple(Storage(layout, element) for layout in LAYOUTS for element in ELEMENTS)
SHARED_STORAGES = tuple(storage for storage in STORAGES if LAYOUTS[storage.layout].memory)


@dataclass(frozen=True)
class ImageSize:
    """An image of RGBA texels: its size in texels, and the type of their elements."""

    width: int
    height: int
    element: Element = "float32"

    @classmethod
    def of(cls, values: ConstantArray) -> ImageSize:
        """The image that holds `values`, shaped (rows, columns, 4)."""
        rows, columns, _ = values.shape
        return cls(columns, rows, "float16" if values.dtype == np.float16 else "float32")

    @property
    def bytes(self) -> int:
        return 4 * self.width * self.height * ELEMENTS[self.element].bytes

    def __str__(self) -> str:
        return f"an image of {self.width}x{self.height} {self.element} texels"


#: Data sharing: from the CPU to the GPU, back, into the CPU's net and from there to where others
#: can read, of ncnn or of another library; and a copy on the GPU from its usual layout to another.
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
#: What it takes one processor to know of the other's work, by the names of what is measured.
Signalling: TypeAlias = Literal["first_launch", "event_wait", "flag_wait"]
