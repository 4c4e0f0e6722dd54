"""Between the GPU's blocked layout and planar (nchw) buffers: what data sharing copies through.

The planar side is the compact region, [channels][rows][width] floats from the start of the scratch
buffer `planar`; the blocked side is the whole tensor, of which only the region is touched.
"""

from __future__ import annotations

from codl.kernels.base import Arg, KernelPlan, Launch, ScratchArg, TensorArg
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip
from codl.ops.base import Activation
from codl.ops.region import Region, Shape
from codl.soc import Soc

#: V x V chunks of one work-item of a CPU at most.
LONGEST_STRIP = 64


def to_planar(shape: Shape, region: Region, soc: Soc) -> KernelPlan:
    """Copy `region` of the blocked tensor `TensorArg("input")` of `shape` to scratch `planar`."""
    return _plan("to_planar", TensorArg("input"), (), shape, region, soc)


def to_blocked(shape: Shape, region: Region, soc: Soc) -> KernelPlan:
    """Copy scratch `planar` to `region` of the blocked tensor `TensorArg("output")` of `shape`.

    A region that ends at the tensor's last channel also clears the lanes beyond it; otherwise
    lanes outside the region keep what they hold.
    """
    width = soc.gpu.vector_width
    zero_to = width if region.channels.stop == shape.c else 0
    return _plan("to_blocked", TensorArg("output"), (zero_to,), shape, region, soc)


def _plan(
    kernel: str, tensor: TensorArg, more: tuple[Arg, ...], shape: Shape, region: Region, soc: Soc
) -> KernelPlan:
    width = soc.gpu.vector_width
    pixels = region.rows.size * shape.w
    blocks = ceil_div(region.channels.stop, width) - region.channels.start // width
    chunks = ceil_div(pixels, width)
    length = strip(chunks, blocks, LONGEST_STRIP, soc)
    global_size, local_size = item_grid(ceil_div(chunks, length), blocks, soc)
    sizes = (
        length,
        region.rows.start * shape.w,
        region.channels.start,
        region.channels.size,
        pixels,
    )
    return KernelPlan(
        source="layout/transform.cl",
        launches=(
            Launch(
                kernel=kernel,
                global_size=global_size,
                local_size=local_size,
                args=(tensor, ScratchArg("planar"), *sizes, *more),
            ),
        ),
        defines=base_defines(Activation(), soc),
        scratch={"planar": region.shape(shape).bytes},
    )
