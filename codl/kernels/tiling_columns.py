"""The arithmetic of `tiling` over columns: how the work of many ops is cut."""

from __future__ import annotations

import numpy as np

from codl.ir.columns import (
    Column,
    round_up,
)
from codl.kernels.cpu_device import registers
from codl.kernels.tiling import strip as strip
from codl.kernels.tiling import waves as waves
from codl.records.soc import Soc


def pixel_tile(width: Column, soc: Soc) -> Column:
    """Output pixels of one register tile, for rows of `width` pixels.

    Eight accumulators keep a core that multiplies vectors busy, and as many pointers to pixels fit
    in its registers; so a tile may go over row ends and only the last one is not full. Rows of 7
    are so few that this matters. A work-item of a GPU gets 4.
    """
    return np.where(width == 7, 7.0, 8.0) if soc.gpu.is_cpu else np.full_like(width, 4)


def row_tile(width: Column, soc: Soc) -> Column:
    """The same where a tile lies in one row: the size that wastes least, the largest of equals."""
    if not soc.gpu.is_cpu:
        return np.full_like(width, 4)
    low, high = (7, 16) if registers.assumed_registers(soc.gpu) >= 32 else (4, 10)
    sizes = np.arange(high, low - 1, -1, dtype=np.float64)
    least = sizes[np.argmin(round_up(width, sizes[:, None]), axis=0)]
    return np.where(width < low, float(low), least)
