"""Features: the numbers that an estimator sees, computed from a target and its items.

A target is what is predicted together: a kernel variant's, such as `conv2d_cpu_gemm` or
`pooling_gpu_direct_max`; muLayer's one an op kind and processor, such as `mulayer_conv2d_cpu`; and
the directions of data sharing. Training and planning both call `table`, and nothing else
computes a feature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, MismatchError, UnknownNameError
from codl.ir import Op, Shape, parse, to_text
from codl.ir.columns import Column, FeatureColumns, ceil_div, rest
from codl.ir.types import (
    BLOCKED,
    PROCESSORS,
    SHARED_STORAGES,
    Direction,
    Processor,
    Storage,
)
from codl.kernels import registry
from codl.kernels.activation import exponentials
from codl.kernels.base import Variant
from codl.kernels.feature_columns import by_level, packed_vectors
from codl.kernels.tiling import TEXEL
from codl.kernels.tuning import Tuning
from codl.predict import context_terms
from codl.predict.context_terms import ContextItem
from codl.records.soc import Soc

#: `flops`: what muLayer looks at. `variant`: what a kernel variant extracts analytically.
FeatureSet: TypeAlias = Literal["flops", "variant"]
#: What a latency is predicted for: a part of an op, the shape of a region to share, or what
#: surrounds an op.
Item: TypeAlias = Op | Shape | ContextItem

#: `store` moves a result out of the CPU's net, where the other side can read it.
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
#: The parts of sharing between the processors; each is predicted for itself too.
SHARING_PARTS = ("copy", "map", "sync", "transform", "unmap")
#: How the GPU may store what is shared, by the text in a dataset.
STORAGES = {str(s): s for s in SHARED_STORAGES}
#: What features count, by their names.
UNITS = "bytes or ms where the name ends so, else a count"
#: The feature of what is computed behind an op.
ACTIVATION = "exponentials"
#: Floats of a cache line: rows of planar memory that begin elsewhere cost two accesses each.
LINE = 16
#: Floats after which addresses share the sets of a first-level cache.
SETS = 1024
_MULAYER = "mulayer_"
_SHARING = "data_sharing_"


@dataclass(frozen=True)
class FeatureTable:
    """Feature names, and values shaped (items, features) in that order."""

    names: tuple[str, ...]
    values: NDArray[np.float64]


def mulayer_target(kind: str, processor: Processor) -> str:
    return f"{_MULAYER}{kind}_{processor}"


def sharing_target(direction: Direction, storage: Storage = BLOCKED, part: str = "") -> str:
    """What sharing costs where the GPU stores tensors so: all of it, or one of `SHARING_PARTS`."""
    return f"{_SHARING}{direction}{storage.suffix}" + (f"_{part}" if part else "")


@cache
def _sharing_targets() -> Mapping[str, tuple[Direction, Storage]]:
    """The direction and the GPU's storage of every target of data sharing."""
    return {
        sharing_target(way, storage, part): (way, storage)
        for way in DIRECTIONS
        for storage in STORAGES.values()
        for part in ("", *SHARING_PARTS)
    }


def is_mulayer(target: str) -> bool:
    return target.startswith(_MULAYER)


def is_sharing(target: str) -> bool:
    return target.startswith(_SHARING)


def is_whole(target: str) -> bool:
    """Whether a target is an op's latency or a whole exchange's: no part, nothing around it."""
    return not whole_of(target) and not context_terms.kind_of(target)


def whole_of(target: str) -> str | None:
    """The exchange that a target is a part of; None for any other target."""
    whole, _, part = target.rpartition("_")
    return whole if is_sharing(target) and part in SHARING_PARTS else None


def write(item: Item) -> str:
    """An item as text; `read` is its inverse."""
    return to_text(item) if isinstance(item, Op) else str(item)


def read(target: str, text: str) -> Item:
    """The item of a target from its text; raises `CodlError` with the text that is wrong."""
    if context_terms.kind_of(target):
        return context_terms.read(target, text)
    if not is_sharing(target):
        return parse(text)
    try:
        shape = Shape(*(int(size) for size in text.split("x")))
    except (TypeError, ValueError) as error:
        raise CodlError(f"Cannot read the shape {text!r}: expected one like 1x64x56x56.") from error
    if min(shape) < 1:
        raise CodlError(f"The shape {text!r} is empty: every size must be at least 1.")
    return shape


def targets_of(item: Item) -> tuple[str, ...]:
    """Every target that an item can have."""
    if isinstance(item, Shape):
        return tuple(_sharing_targets())
    if not isinstance(item, Op):
        return tuple(f"{item.kind}_{processor}" for processor in PROCESSORS)
    of_variants = [registry.target(v, item) for v in registry.known_to(item)]
    return (*of_variants, *(mulayer_target(item.kind, processor) for processor in PROCESSORS))


def variant_of(target: str, op: Op) -> Variant:
    """The variant whose target for `op` this is.

    Raises `UnknownNameError` with the targets that such an op has.
    """
    variants = {registry.target(v, op): v for v in registry.known_to(op)}
    if target not in variants:
        raise UnknownNameError(f"target of a {op.kind}", target, variants)
    return variants[target]


def table(
    feature_set: FeatureSet,
    target: str,
    items: Sequence[Item],
    soc: Soc,
    tuning: Tuning = Tuning(),
) -> FeatureTable:
    """The features of some items (at least one) of one target, of kernels as they were tuned.

    Raises `UnknownNameError` for a target that the items do not have, and `MismatchError` where a
    variant gives two items different features, or a feature that is not finite.
    """
    if kind := context_terms.kind_of(target):
        item_type = context_terms.KINDS[kind]
        _refuse_others(target, items, item_type, item_type.__name__)
        columns = item_type.columns(items)
        features = _of_columns(columns, len(items))
    elif is_sharing(target):
        shapes = _shapes(target, items)
        features = _of_shapes(feature_set, shapes, _sharing_targets()[target], soc)
    elif feature_set == "flops":
        features = _of_columns(_mulayer(_checked(target, items)), len(items))
    else:
        features = _by_variant(target, _ops(target, items), soc, tuning)
    _refuse_infinite(target, items, features)
    return features


def _of_shapes(
    feature_set: FeatureSet, shapes: Sequence[Shape], how: tuple[Direction, Storage], soc: Soc
) -> FeatureTable:
    if feature_set == "flops":
        return FeatureTable(("bytes",), np.array([[float(shape.bytes)] for shape in shapes]))
    return _of_columns(_sharing_columns(shapes, *how, soc), len(shapes))


def _of_columns(columns: FeatureColumns, count: int) -> FeatureTable:
    values = np.empty((count, len(columns)), np.float64)
    for at, column in enumerate(columns.values()):
        values[:, at] = column
    return FeatureTable(tuple(columns), values)


def _of_rows(
    target: str, items: Sequence[Item], rows: Sequence[Mapping[str, float]]
) -> FeatureTable:
    names = tuple(rows[0])
    for item, row in zip(items, rows, strict=True):
        if tuple(row) != names:
            raise MismatchError(
                f"{target} has the features {', '.join(row)} for {write(item)} but "
                f"{', '.join(names)} for {write(items[0])}: a target has the same for every op."
            )
    return FeatureTable(names, np.array([list(row.values()) for row in rows], np.float64))


def _refuse_infinite(target: str, items: Sequence[Item], features: FeatureTable) -> None:
    if np.isfinite(features.values).all():
        return
    for row, column in np.argwhere(~np.isfinite(features.values))[:1]:
        raise MismatchError(
            f"The feature {features.names[column]} of {target} must be finite, got "
            f"{features.values[row, column]} for {write(items[row])}."
        )


def _by_variant(target: str, ops: Sequence[Op], soc: Soc, tuning: Tuning) -> FeatureTable:
    variant, *_ = [variant_of(target, op) for op in _of_each_kind(ops)]
    if variant.op_columns is not None:
        of_variant = _of_columns(tuning.feature_columns(variant, ops, soc), len(ops))
    else:
        of_variant = _of_rows(target, ops, tuning.feature_rows(variant, ops, soc))
    # What a variant says of itself, and what is computed behind it: the same in all of them.
    behind = exponentials(ops)
    values = np.column_stack([of_variant.values, behind])
    return FeatureTable((*of_variant.names, ACTIVATION), values)


def _of_each_kind(ops: Sequence[Op]) -> list[Op]:
    """One op of every kind and flavor that is among some."""
    of_type: dict[type[Any], Op] = dict(zip(map(type, ops), ops, strict=True))
    if all(cls.flavor is Op.flavor for cls in of_type):
        return list(of_type.values())
    return list({(op.kind, op.flavor): op for op in ops}.values())


def _checked(target: str, items: Sequence[Item]) -> Sequence[Op]:
    """The items as ops, all of them ops that the target is for."""
    ops = _ops(target, items)
    for op in _of_each_kind(ops):
        if target not in targets_of(op):
            raise UnknownNameError(f"target of a {op.kind}", target, targets_of(op))
    return ops


def _ops(target: str, items: Sequence[Item]) -> Sequence[Op]:
    _refuse_others(target, items, Op, "an op")
    return cast(Sequence[Op], items)


def _refuse_others(target: str, items: Sequence[Item], wanted: type[Any], name: str) -> None:
    """Every item must be of a type; types are few, and looked at once."""
    if not all(issubclass(kind, wanted) for kind in set(map(type, items))):
        other = next(item for item in items if not isinstance(item, wanted))
        raise MismatchError(f"{target} is predicted for {name}, got {write(other)}.")


def _shapes(target: str, items: Sequence[Item]) -> Sequence[Shape]:
    _refuse_others(target, items, Shape, "a shape")
    if target not in _sharing_targets():
        raise UnknownNameError("target of a shape", target, _sharing_targets())
    return cast(Sequence[Shape], items)


def _mulayer(ops: Sequence[Op]) -> FeatureColumns:
    """What muLayer looks at, of ops of one kind."""
    return type(ops[0]).size_columns.of(ops).mulayer_features


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


def _sharing_columns(
    shapes: Sequence[Shape], direction: Direction, storage: Storage, soc: Soc
) -> FeatureColumns:
    """The features of regions of these shapes; the names depend on the direction alone."""
    sizes = ShapeColumns.of(shapes)
    if direction.endswith("_openvino"):
        return _transposed(sizes, soc)
    if direction.startswith(("load", "store")):
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


def _transposed(sizes: ShapeColumns, soc: Soc) -> FeatureColumns:
    """Channels first to channels last, or back: a matrix of pixels by channels, transposed."""
    return {
        "channels": sizes.images * sizes.channels,
        "pixels": sizes.images * sizes.pixels,
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
