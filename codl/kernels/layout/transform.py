"""Between the GPU's layouts: what data sharing, and ops of different layouts, copy through.

Every layout is reached from the planar one and left for it.
"""

from __future__ import annotations

from codl.kernels.base import Arg, KernelPlan, Launch, Storage, TensorArg
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip
from codl.ops.base import Activation
from codl.ops.region import Shape
from codl.soc import Soc

#: V x V chunks of one work-item of a CPU at most.
LONGEST_STRIP = 64


def transform(
    source: Storage, target: Storage, part: Shape, soc: Soc, *, lead: int = 0, ends: bool = True
) -> KernelPlan:
    """Copy a region of the shape `part` of one image, one side of it in the planar layout.

    `lead`: channels of the blocked side's first block that lie before the region. `ends`: whether
    the region ends at the last channel of the blocked side, whose lanes beyond are then cleared;
    otherwise lanes outside the region keep what they hold.
    """
    kernel, blocked, planar = _direction(source, target)
    width, pixels = soc.gpu.vector_width, part.h * part.w
    chunks = ceil_div(pixels, width)
    others = part.c if kernel == "copy_planar" else ceil_div(lead + part.c, width)
    length = strip(chunks, others, LONGEST_STRIP, soc)
    global_size, local_size = item_grid(ceil_div(chunks, length), others, soc)
    sizes: tuple[Arg, ...] = (length, lead, part.c, pixels)
    if kernel == "to_blocked":
        sizes += (width if ends else 0,)
    if kernel == "copy_planar":
        sizes = (length, pixels)
    halves = {"HALF": blocked.element == "float16", "PLANAR_HALF": planar.element == "float16"}
    return KernelPlan(
        source="layout/transform.cl",
        launches=(
            Launch(
                kernel=kernel,
                global_size=global_size,
                local_size=local_size,
                args=(TensorArg("input"), TensorArg("output"), *sizes),
            ),
        ),
        defines={
            **base_defines(Activation(), soc),
            **{name: 1 for name, defined in halves.items() if defined},
        },
        storages={TensorArg("input"): source, TensorArg("output"): target},
    )


def _direction(source: Storage, target: Storage) -> tuple[str, Storage, Storage]:
    """The kernel, and which storage its macros HALF and PLANAR_HALF are about."""
    layouts = (source.layout, target.layout)
    if layouts == ("planar", "planar"):
        return "copy_planar", source, target
    if layouts == ("blocked", "planar"):
        return "to_planar", source, target
    if layouts == ("planar", "blocked"):
        return "to_blocked", target, source
    raise ValueError(f"no kernel copies {source} to {target}")
