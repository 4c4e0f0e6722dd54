"""Between the GPU's layouts: what data sharing, and ops of different layouts, copy through.

Every layout is reached from the planar one and left for it, whatever region moves; blocks and
texels also become each other, where whole ones do.
"""

from __future__ import annotations

from codl.ir.ops.base import Activation
from codl.ir.region import Shape
from codl.ir.types import Storage
from codl.kernels.base import ENDS, KernelPlan
from codl.kernels.image import texels
from codl.kernels.kernel import Grid, launch
from codl.kernels.tiling import base_defines, ceil_div
from codl.records.soc import Soc

#: V x V chunks of one work-item of a CPU at most.
LONGEST_STRIP = 64

#: The kernel from one layout to another, its source, and the sides that HALF and PLANAR_HALF are
#: about (0 the source, 1 the target).
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
    """Copy a region of the shape `part`, from or to images one image after the other.

    `lead`: channels of the first block (or texel, between planar and image) that lie before the
    region. `ends`: whether the region ends at the last channel of the blocked side, whose lanes
    beyond are then cleared; otherwise lanes outside the region keep what they hold. An image is
    only written by whole texels: without `lead`, and to its last channel or a multiple of 4.
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
        others = texels(part.c if "blocked" in kernel else lead + part.c)
        grid = Grid.of(pixels, others, LONGEST_STRIP * soc.gpu.vector_width, soc)
        if kernel == "planar_to_image":
            numbers = {"width": part.w, "channels": part.c, "pixels": pixels}
        elif kernel == "image_to_planar":
            numbers = {"width": part.w, **numbers}
        else:
            numbers = {"width": part.w, "first": lead, "pixels": pixels}
    copy = launch(kernel, grid.sizes, *ENDS, strip=grid.strip, **numbers)
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
