"""The tile of Winograd that ncnn takes by itself.

Facts about ncnn 1.0.20261020 on x86, where a test finds them confirmed bit by bit. On other
machines ncnn goes by other sizes; there the choice is a guess that the predictors correct.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import (
    Column,
)
from codl.ir.ops.convolution import (
    ConvColumns,
)

#: Channels from which another row of the tables below holds; below the first it is always F(4x4).
LEVELS = (8, 16, 32, 64, 128, 256, 512)
#: What is at least so large takes the tile of this size.
LARGEST = 213

Ranges = tuple[tuple[int, int], ...]

#: Sizes for which ncnn wants F(2x2), by levels of input and of output channels; first and last.
_F2: Mapping[int, Mapping[int, Ranges]] = {
    8: {
        8: ((0, LARGEST),),
        16: ((3, 6), (9, 14), (47, 212)),
        32: ((3, 6), (15, 16)),
        64: ((3, 4), (7, 14), (47, 48)),
    },
    16: {
        8: ((3, 8), (11, 12)),
        16: ((3, 10),),
        32: ((3, 4), (9, 10)),
        64: ((3, 4), (7, 8), (11, 12), (15, 18)),
        128: ((3, 6), (9, 18)),
        256: ((3, 12),),
        512: ((11, 12),),
    },
    32: {
        8: ((3, 10),),
        16: ((7, 8),),
        32: ((7, 8),),
        64: ((3, 8),),
        128: ((3, 4), (7, 16)),
        256: ((3, 6), (11, 12)),
        512: ((3, 6), (11, 12)),
    },
    64: {
        8: ((3, 12),),
        16: ((3, 12),),
        32: ((3, 12),),
        64: ((3, 12),),
        128: ((3, 8), (19, 22)),
        256: ((7, 8),),
        512: ((3, 8), (11, 12), (15, 20)),
    },
    128: {
        8: ((3, 6),),
        16: ((3, 6),),
        32: ((3, 10),),
        64: ((3, 8),),
        128: ((3, 10),),
        256: ((3, 8), (11, 12)),
        512: ((3, 14),),
    },
    256: {
        8: ((3, 6),),
        16: ((3, 8),),
        32: ((3, 8),),
        64: ((3, 4),),
        128: ((3, 12),),
        256: ((3, 14),),
        512: ((3, 14),),
    },
    512: {
        8: ((3, 6),),
        16: ((3, 8),),
        32: ((3, 8),),
        64: ((3, 8), (11, 12)),
        128: ((3, 14),),
        256: ((3, 14),),
        512: ((3, 14),),
    },
}
#: The same for F(6x6), where it does not want F(2x2).
_F6: Mapping[int, Mapping[int, Ranges]] = {
    8: {
        16: ((31, 32), (39, 44), (47, 212)),
        32: ((7, 14), (17, 20), (23, 26), (31, 38), (43, 162)),
    },
    16: {
        8: ((19, 20), (33, 38), (43, 44), (47, 128), (155, 210)),
        16: ((11, 14), (27, 38), (43, 44), (47, 74), (81, 110), (117, 170), (177, 182)),
        32: ((11, 14), (19, 20), (23, 44), (47, 92), (95, 188)),
    },
    32: {
        8: ((11, 14), (19, 20), (31, 38), (43, 44), (55, 162)),
        16: ((13, 14), (19, 20), (23, 38), (43, 44), (47, 140)),
        32: ((11, 14), (19, 20), (23, 44), (47, 56), (63, 130)),
    },
}


def _all_tiles() -> NDArray[np.float64]:
    """The tile by level of input channels, level of output channels, and size."""
    levels = len(LEVELS) + 1
    tiles = np.full((levels, levels, LARGEST + 1), 4.0)
    for tile, table in ((6.0, _F6), (2.0, _F2)):
        for ic, row in table.items():
            for oc, ranges in row.items():
                for first, last in ranges:
                    at = LEVELS.index(ic) + 1, LEVELS.index(oc) + 1
                    tiles[at][first : last + 1] = tile
    tiles.flags.writeable = False
    return tiles


_TILES = _all_tiles()


def usual_tile(ops: ConvColumns) -> Column:
    """Outputs on a side of the tile, by channels and the shorter side of the padded input."""
    size = np.minimum(np.minimum(ops.oh, ops.ow) + 2, LARGEST).astype(np.intp)
    ic, oc = (np.searchsorted(LEVELS, channels, side="right") for channels in (ops.ic, ops.oc))
    result: Column = _TILES[ic, oc, size]
    return result
