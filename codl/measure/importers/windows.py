"""From the sizes that tables give to ops whose output has exactly the size that was measured."""

from __future__ import annotations

from codl.errors import CodlError
from codl.ir import Shape
from codl.ir.ops.base import Pad
from codl.ir.ops.window import Size2


def fit(size: int, out: int, *, kernel: int, stride: int) -> tuple[int, int, int]:
    """Input size, and the padding before and behind, that make an output of `out`.

    No padding where the window fits without (VALID); else as little as it takes, an odd element
    behind (SAME). Input that no window reaches, and that would make one more output, is cut off.
    """
    missing = (out - 1) * stride + kernel - size
    if missing <= 0:
        return min(size, size + missing + stride - 1), 0, 0
    before, behind = missing // 2, missing - missing // 2
    if behind > max(kernel - 1, 1):  # windows would see padding alone
        raise CodlError(
            f"an output of {out} cannot be reached from an input of {size} with a window of "
            f"{kernel} and a stride of {stride}."
        )
    return size, before, behind


def fitted(shape: Shape, out: Size2, *, kernel: Size2, stride: Size2) -> tuple[Shape, Pad]:
    """The input and the padding that give an output of `out` rows and columns."""
    h, top, bottom = fit(shape.h, out.h, kernel=kernel.h, stride=stride.h)
    w, left, right = fit(shape.w, out.w, kernel=kernel.w, stride=stride.w)
    return shape._replace(h=h, w=w), Pad(top, left, bottom, right)
