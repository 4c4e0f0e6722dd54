"""OpenCL images of the `image` variants: sizes that fit a device, and filters packed as texels."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column
from codl.ir.ops.base import Array
from codl.ir.region import Shape
from codl.kernels.tiling import TEXEL, ceil_div, round_up
from codl.records.soc import Soc


def texels(channels: int) -> int:
    return ceil_div(channels, TEXEL)


def image_refusal(soc: Soc, shapes: Iterable[Shape]) -> str | None:
    """Why not all tensors of these shapes can be images, or None where they can."""
    most = (soc.gpu.max_image_width, soc.gpu.max_image_height)
    if not all(most):
        return "the device must have images, got max_image_width=0"
    for shape in shapes:
        size = (shape.w * texels(shape.c), shape.n * shape.h)
        if not fits(soc, *size):
            return (
                f"images must be at most {most[0]}x{most[1]} texels, "
                f"got {size[0]}x{size[1]} for {shape}"
            )
    return None


def fits(soc: Soc, width: Column | int, height: Column | int) -> NDArray[np.bool_]:
    """Whether an image of this size in texels can be made; of columns of them, which can."""
    within: NDArray[np.bool_] = np.less_equal(width, soc.gpu.max_image_width)
    return within & np.less_equal(height, soc.gpu.max_image_height)


def pack_filter(weight: Array) -> Array:
    """(oc, ic, kh, kw) -> (rows: oc block, kh, kw; columns: ic; 4 of oc), both padded to texels.

    MACE's image of filters: I wide and ceil(O / 4) * H * W high.
    """
    oc, ic = weight.shape[:2]
    window = weight.shape[2] * weight.shape[3]
    packed = np.zeros((round_up(oc, TEXEL), round_up(ic, TEXEL), window), np.float32)
    packed[:oc, :ic] = weight.reshape(oc, ic, window)
    blocked = packed.reshape(-1, TEXEL, packed.shape[1], window)
    return np.ascontiguousarray(blocked.transpose(0, 3, 2, 1)).reshape(-1, packed.shape[1], TEXEL)
