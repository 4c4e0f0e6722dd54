"""All that may have to move between any two chains, found in one go so that it is predicted in one.

A search meets a few hundred shapes of regions, over and over. To predict them where they are met
would be as many small batches, each of which costs as much as a hundred shapes do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codl.ir import Shape
from codl.ir.plan import Sharing
from codl.ir.types import PROCESSORS
from codl.lower.program import WAYS
from codl.plan import region_array as boxes
from codl.plan.candidates import Segments
from codl.plan.cost_model import Moved
from codl.plan.region_array import Boxes


def between(segments: Segments, sharing: Sharing) -> list[Moved]:
    """What may move between one chain that leaves a tensor and another that reads it, or two.

    What a third reader still lacks is predicted when the search meets it.
    """
    if sharing == "gather":
        return []
    found: list[Moved] = []
    network = segments.network
    for side, processor in enumerate(PROCESSORS):
        left, read = (_by_tensor(segments, held[side]) for held in (segments.left, segments.read))
        # For tensors of one width alike: a network has few widths and many tensors.
        sizes: dict[int, list[NDArray[np.int64]]] = {}
        seen: set[tuple[int, bytes, bytes]] = set()
        for name, needs in read.items():
            held = np.concatenate([left.get(name, needs[:0]), np.full((1, 6), boxes.NOTHING)])
            if len(network.readers(name)) > 1:
                both = np.maximum(held[:, None], needs)
                held = _each_once(np.concatenate([held, both.reshape(-1, 6)]), name, segments)
            width = network.shapes[name].w
            if (pairs := (width, held.tobytes(), needs.tobytes())) not in seen:
                seen.add(pairs)
                sizes.setdefault(width, []).append(_missing(held, needs))
        for width, own in sizes.items():
            # A set is several times as fast as `np.unique` along an axis.
            for n, c, h in set(map(tuple, np.concatenate(own).tolist())):
                found.append((WAYS[processor], Shape(n, c, h, width)))
    return found


def _by_tensor(segments: Segments, numbers: list[int]) -> dict[str, Boxes]:
    """Regions by number, as boxes (regions, 6) by tensor."""
    rows: dict[str, list[tuple[int, ...]]] = {}
    for number in numbers:
        rows.setdefault(segments.regions.tensors[number], []).append(segments.regions.boxes[number])
    return {name: np.array(own, np.int64) for name, own in rows.items()}


def _each_once(held: Boxes, tensor: str, segments: Segments) -> Boxes:
    keys = held @ boxes.weights_of(segments.network.shapes[tensor])
    return held[np.unique(keys, return_index=True)[1]]


def _missing(held: Boxes, needs: Boxes) -> NDArray[np.int64]:
    """The sizes of what moves to whom holds one of some boxes and needs another; some repeatedly.

    As `codl.lower.program.lacking` has it: the smallest box around both without what is held.
    That lies before and behind it in images, then channels, then rows.
    """
    is_held = boxes.is_something(held)
    found = [] if is_held.all() else [boxes.sizes(needs)]
    held = held[is_held, None]
    more = np.maximum(held, needs) - held  # at either end of every axis
    own = np.broadcast_to(boxes.sizes(held), (len(held), len(needs), 3))
    whole = own + more[..., 0::2] + more[..., 1::2]
    for axis in range(3):
        size = np.concatenate([own[..., :axis], whole[..., axis:]], axis=-1)
        for end in (0, 1):
            extra = more[..., 2 * axis + end]
            piece = size.copy()
            piece[..., axis] = extra
            found.append(piece[extra > 0])
    return np.concatenate(found)
