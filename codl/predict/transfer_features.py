"""Features of data sharing: what moving a region between the processors does, by its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from codl.ir import Shape
from codl.ir.columns import (
    Column,
    FeatureColumns,
    ceil_div,
    rest,
)
from codl.ir.types import Direction, Storage
from codl.kernels.feature_columns import (
    by_level,
    packed_vectors,
)
from codl.kernels.image import TEXEL
from codl.records.soc import Soc

#: Floats of a cache line: rows of planar memory that begin elsewhere cost two accesses each.
LINE = 16
#: Floats after which addresses share the sets of a first-level cache.
SETS = 1024


@dataclass(frozen=True)
class ShapeColumns:
    """Shapes as columns: images, channels, rows and columns."""

    images: Column
    channels: Column
    rows: Column
    columns: Column

    @classmethod
    def of(cls, shapes: Sequence[Shape]) -> ShapeColumns:
        sizes = np.fromiter(chain.from_iterable(shapes), np.float64, 4 * len(shapes))
        return cls(*np.ascontiguousarray(sizes.reshape(-1, 4).T))

    @cached_property
    def pixels(self) -> Column:
        return self.rows * self.columns

    @cached_property
    def bytes(self) -> Column:
        return 4.0 * self.images * self.channels * self.pixels


def feature_columns(
    shapes: Sequence[Shape], direction: Direction, storage: Storage, soc: Soc
) -> FeatureColumns:
    """The features of regions of these shapes; the names depend on the direction alone."""
    sizes = ShapeColumns.of(shapes)
    if direction in ("load", "store"):
        return _packing(sizes, soc)
    return _transform(sizes, storage, soc)


def _packing(sizes: ShapeColumns, soc: Soc) -> FeatureColumns:
    """ncnn's packed layout interleaves as many channels as divide their number, or none."""
    widest = soc.cpu.simd_floats
    vectors = packed_vectors(sizes.channels, widest)
    width = sizes.channels / vectors
    packed = {
        f"packed_by_{lanes}": sizes.images * vectors * sizes.pixels * (width == lanes)
        for lanes in (4, 8, 16)
    }
    return {
        **packed,
        "vectors": sizes.images * vectors * (width > 1),
        "plain_bytes": sizes.bytes * (width == 1),
        **by_level("moved", 2 * sizes.bytes, soc.cpu.l2_cache_bytes),
    }


def _transform(sizes: ShapeColumns, storage: Storage, soc: Soc) -> FeatureColumns:
    """A copy through memory that both sides see, and a kernel between planar and the GPU's layout.

    In blocks, a kernel transposes as many pixels at a time as a block has channels; images with
    fewer pixels go one element at a time.
    """
    width = TEXEL if storage.layout == "image" else soc.gpu.vector_width
    blocks = sizes.images * ceil_div(sizes.channels, width)
    pieces, small = ceil_div(sizes.pixels, width), sizes.pixels < width
    chunks = blocks * pieces * ~small
    partial = sizes.images * pieces * (rest(sizes.channels, width) > 0) * ~small
    padded_bytes = storage.element_bytes * blocks * width * sizes.pixels
    cache = soc.cpu.l2_cache_bytes
    return {
        "chunks": chunks,
        "unaligned_chunks": chunks * (rest(sizes.pixels, LINE) > 0),
        "conflicting_chunks": chunks * (rest(2 * sizes.pixels, SETS) == 0),
        "partial_chunks": partial,
        "single_elements": sizes.images * sizes.channels * sizes.pixels * small,
        "blocks": blocks,
        **by_level("copied", sizes.bytes, cache),
        **by_level("padded", padded_bytes, cache),
    }
