"""Copies between the GPU's layouts, for data sharing and between ops.

The planar layout converts to and from all others; blocks and texels also convert directly.
"""

from __future__ import annotations

from codl.ir.columns import ceil_div
from codl.ir.ops.base import Activation
from codl.ir.records.soc import Soc
from codl.ir.region import Shape
from codl.ir.types import Storage
from codl.kernels.base import ENDS, KernelPlan
from codl.kernels.kernel import Grid
from codl.kernels.tiling import TEXEL, base_defines

#: The most V x V chunks of a work-item on a CPU.
LONGEST_STRIP = 64

#: By source and target layout: kernel, source file, and the sides that HALF and PLANAR_HALF
#: describe (0 source, 1 target).
KERNELS = {
    ("planar", "planar"): ("copy_planar", "transform", 0, 1),
    ("blocked", "planar"): ("to_planar", "transform", 0, 1),
    ("planar", "blocked"): ("to_blocked", "transform", 1, 0),
    ("image", "planar"): ("image_to_planar", "image", 0, 1),
    ("planar", "image"): ("planar_to_image", "image", 1, 0),
    ("blocked", "image"): ("blocked_to_image", "image", 0, 1),
    ("image", "blocked"): ("image_to_blocked", "image", 1, 0),
}


def transform(
    source: Storage, target: Storage, part: Shape, soc: Soc, *, lead: int = 0, ends: bool = True
) -> KernelPlan:
    """A plan that copies a region of the shape `part`; images of a batch are copied one by one.

    `lead` is the number of channels before the region in its first block (or texel, between planar
    and image). `ends` is True if the region ends at the last channel of the blocked side; lanes
    after it are cleared, otherwise kept. Images are written in whole texels: `lead` is 0, and the
    region ends at the last channel or a multiple of 4. Raises `ValueError` for other pairs of
    layouts.
    """
    if (source.layout, target.layout) not in KERNELS:
        raise ValueError(f"no kernel copies {source} to {target}")
    kernel, file, half, planar_half = KERNELS[source.layout, target.layout]
    sides, in_buffers = (source, target), file == "transform"
    pixels = part.h * part.w
    numbers: dict[str, int] = {"lead": lead, "channels": part.c, "pixels": pixels}
    if in_buffers:
        width = soc.gpu.vector_width
        others = part.c if kernel == "copy_planar" else ceil_div(lead + part.c, width)
        grid = Grid.of(ceil_div(pixels, width), others, LONGEST_STRIP, soc)
        if kernel == "to_blocked":
            numbers["zero_to"] = width if ends else 0
        if kernel == "copy_planar":
            numbers = {"pixels": pixels}
    else:
        others = ceil_div(part.c if "blocked" in kernel else lead + part.c, TEXEL)
        grid = Grid.of(pixels, others, LONGEST_STRIP * soc.gpu.vector_width, soc)
        if kernel == "planar_to_image":
            numbers = {"width": part.w, "channels": part.c, "pixels": pixels}
        elif kernel == "image_to_planar":
            numbers = {"width": part.w, **numbers}
        else:
            numbers = {"width": part.w, "first": lead, "pixels": pixels}
    copy = grid.launch(kernel, *ENDS, **numbers)
    halves = {"HALF": sides[half], "PLANAR_HALF": sides[planar_half]}
    return KernelPlan(
        source=f"layout/{file}.cl",
        launches=(copy.of_images(part.n, ENDS) if in_buffers else copy,),
        defines={
            **base_defines(Activation(), soc),
            **{name: 1 for name, side in halves.items() if side.element == "float16"},
        },
        storages=dict(zip(ENDS, sides, strict=True)),
        whole_batch=in_buffers,
    )
