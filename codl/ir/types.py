"""Words that every stage uses: processors, storages of tensors, and ways of data sharing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Processor: TypeAlias = Literal["cpu", "gpu"]
PROCESSORS: tuple[Processor, ...] = ("cpu", "gpu")


Layout: TypeAlias = Literal["blocked", "planar", "image"]
Element: TypeAlias = Literal["float32", "float16"]
ConstantArray: TypeAlias = NDArray[np.float32] | NDArray[np.float16]


@dataclass(frozen=True)
class Storage:
    """How a tensor lies on the GPU, and the type that its elements are stored as."""

    layout: Layout = "blocked"
    element: Element = "float32"

    @property
    def element_bytes(self) -> int:
        return 2 if self.element == "float16" else 4

    @property
    def suffix(self) -> str:
        """What the names of variants for this storage end in; "" for the usual one."""
        image = "_image" if self.layout == "image" else ""
        return image + ("_fp16" if self.element == "float16" else "")

    def __str__(self) -> str:
        return f"{self.layout} {self.element}"


BLOCKED = Storage()
BLOCKED_HALF = Storage("blocked", "float16")
PLANAR = Storage("planar")
IMAGE = Storage("image")
IMAGE_HALF = Storage("image", "float16")


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
        return 4 * self.width * self.height * (2 if self.element == "float16" else 4)

    def __str__(self) -> str:
        return f"an image of {self.width}x{self.height} {self.element} texels"


#: Data sharing: from the CPU to the GPU, back, into the CPU's net and from there to where others
#: can read; and a copy on the GPU from its usual layout to another.
Direction: TypeAlias = Literal["to_gpu", "to_cpu", "load", "store", "relayout"]
