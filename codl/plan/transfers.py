"""All that may have to move between any two chains, found in one go so that it is predicted in one.

A search meets a few hundred shapes of regions, over and over. To predict them where they are met
would be as many small batches, each of which costs as much as a hundred shapes do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from codl.execute.program import WAYS
from codl.kernels.base import PROCESSORS
from codl.ops import Region, Shape
from codl.ops.plan import Sharing
from codl.plan.cost import Moved
from codl.plan.segments import Segments

#: First and behind the last of images, channels and rows.
NOTHING = (0,) * 6


def between(shapes: Mapping[str, Shape], segments: Segments, sharing: Sharing) -> list[Moved]:
    """What may move between one chain that leaves a tensor and another that reads it, or two.

    What a third reader still lacks is predicted when the search meets it.
    """
    if sharing == "gather":
        return []
    found: list[Moved] = []
    for side, processor in enumerate(PROCESSORS):
        # For tensors of one width alike: a network has few widths and many tensors.
        pairs: dict[int, set[tuple[int, ...]]] = {}
        for name, needs in segments.read[side].items():
            held, boxes = (
                {NOTHING, *map(_box, segments.left[side].get(name, ()))},
                [*map(_box, needs)],
            )
            if len(segments.network.readers(name)) > 1:
                held |= {_joined(m, n) for m in held for n in boxes}
            pairs.setdefault(shapes[name].w, set()).update(m + n for m in held for n in boxes)
        for width, rows in pairs.items():
            sizes = _missing(np.array(list(rows), np.int64))
            found += [(WAYS[processor], Shape(n, c, h, width)) for n, c, h in sizes]
    return found


def _box(region: Region) -> tuple[int, ...]:
    images, channels, rows = region
    return (*images, *channels, *rows)


def _joined(mine: tuple[int, ...], need: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest box around both, which is what is held once a need is met."""
    if mine == NOTHING:
        return need
    (a, b, c, d, e, f), (g, h, i, j, k, m) = mine, need
    return min(a, g), max(b, h), min(c, i), max(d, j), min(e, k), max(f, m)


def _missing(pairs: NDArray[np.int64]) -> Iterable[tuple[int, ...]]:
    """The sizes of what moves, each once; `pairs` (pairs, 12) are what is held and needed.

    As `codl.execute.program.lacking` has it, over columns.
    """
    held, need = pairs[:, :6].reshape(-1, 3, 2), pairs[:, 6:].reshape(-1, 3, 2)
    none = np.any(held[..., 1] <= held[..., 0], axis=1)
    first = np.where(none[:, None], need[..., 0], np.minimum(held[..., 0], need[..., 0]))
    last = np.where(none[:, None], need[..., 1], np.maximum(held[..., 1], need[..., 1]))
    whole, own = last - first, held[..., 1] - held[..., 0]
    before, behind = held[..., 0] - first, last - held[..., 1]
    # The joined box without what is held: before and behind it in images, then channels, then rows.
    pieces = [whole[none]]
    for axis in range(3):
        size = np.concatenate([own[:, :axis], whole[:, axis:]], axis=1)
        for extra in (before, behind):
            piece = size.copy()
            piece[:, axis] = extra[:, axis]
            pieces.append(piece[~none & (extra[:, axis] > 0)])
    # A set is several times as fast as `np.unique` along an axis.
    return set(map(tuple, np.concatenate(pieces).tolist()))
