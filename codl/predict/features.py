"""Features: the inputs of an estimator, computed from a target and its items.

A target is a unit of prediction with its own estimator: a kernel variant, such as
`conv2d_cpu_gemm` or `pooling_gpu_direct_max`; for muLayer an op kind on a processor, such as
`mulayer_conv2d_cpu`; a direction of data sharing; or a context term: launches or waits
around ops. `codl.predict.in_network_cost` has the other costs of an op inside a network. Training
and planning both call `table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, MismatchError, UnknownNameError
from codl.ir import Op, Shape, parse, to_text
from codl.ir.columns import Column, FeatureColumns, ceil_div, rest
from codl.ir.records.soc import Soc
from codl.ir.types import (
    BLOCKED,
    PROCESSORS,
    SHARED_STORAGES,
    Direction,
    Processor,
    Storage,
)
from codl.kernels import registry
from codl.kernels.base import Variant
from codl.kernels.tiling import TEXEL, by_level, exponentials, packed_vectors
from codl.kernels.tuning import Tuning

# Context items.


@dataclass(frozen=True)
class ContextItem:
    """Base of context items, each of which is one number with a name."""

    number: Any

    kind: ClassVar[str]
    name: ClassVar[str]
    type: ClassVar[Callable[[str], float]]

    def __str__(self) -> str:
        return f"{self.name}={self.number!r}"

    @classmethod
    def read(cls, text: str) -> ContextItem:
        """Parse the text of an item; raises `CodlError` for another text."""
        name, _, number = text.partition("=")
        with suppress(ValueError):
            if name == cls.name:
                return cls(cls.type(number))
        raise CodlError(f"Cannot read {text!r}: expected {cls.name}=NUMBER.")

    @classmethod
    def columns(cls, items: Sequence[ContextItem]) -> FeatureColumns:
        return {cls.name: np.array([item.number for item in items], np.float64)}


class Launches(ContextItem):
    """A number of kernel launches, timed from enqueueing to the last kernel's end."""

    kind, name, type = "dispatch", "launches", int


class EventWait(ContextItem):
    """Delay from a kernel's end to the CPU's notice by event, after a wait of about `gap_ms`."""

    kind, name, type = "event_wait", "gap_ms", float
    processor: ClassVar[Processor] = "cpu"


#: Classes of context items by kind.
CONTEXT: dict[str, type[ContextItem]] = {c.kind: c for c in (Launches, EventWait)}
#: Targets in files of earlier versions of codl, ignored on reading.
FORMER_TARGETS = ("batch_cpu", "batch_gpu", "first_launch_gpu", "flag_wait_cpu")


# Targets.


#: `flops`: muLayer's features. `variant`: analytical features of a kernel variant.
FeatureSet: TypeAlias = Literal["flops", "variant"]
#: Subject of a predicted latency: a part of an op, the shape of a shared region, or a context item.
Item: TypeAlias = Op | Shape | ContextItem

#: Directions of data sharing; `store` unpacks a result of the CPU's net for the other processor.
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
#: Parts of an exchange between the processors; each part is also a target.
SHARING_PARTS = ("copy", "map", "sync", "transform", "unmap")
#: GPU storages of shared tensors, by their text in a dataset.
STORAGES = {str(s): s for s in SHARED_STORAGES}
#: Units of features.
UNITS = "bytes or ms where the name ends so, else a count"
#: Name of the feature of an op's activation.
ACTIVATION = "exponentials"
#: Floats of a cache line: planar rows that begin off a line cost two accesses each.
LINE = 16
#: Distance in floats of addresses that map to one set of a first-level cache.
SETS = 1024
_MULAYER = "mulayer_"
_SHARING = "data_sharing_"


@dataclass(frozen=True)
class FeatureTable:
    names: tuple[str, ...]
    values: NDArray[np.float64]


def mulayer_target(kind: str, processor: Processor) -> str:
    return f"{_MULAYER}{kind}_{processor}"


def sharing_target(direction: Direction, storage: Storage = BLOCKED, part: str = "") -> str:
    """The target of an exchange with a GPU storage: the whole, or one of `SHARING_PARTS`."""
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


def kind_of(target: str) -> str | None:
    """The kind of context item of a target such as `dispatch_gpu`; None for other targets."""
    kind, _, processor = target.rpartition("_")
    return kind if kind in CONTEXT and processor in PROCESSORS else None


def is_whole(target: str) -> bool:
    """Whether a target is an op or a whole exchange, rather than a part or a context term."""
    return not whole_of(target) and not kind_of(target)


def whole_of(target: str) -> str | None:
    """The whole exchange of a target that is one of its parts; None for any other target."""
    whole, _, part = target.rpartition("_")
    return whole if is_sharing(target) and part in SHARING_PARTS else None


def write(item: Item) -> str:
    """An item as text; `read` is its inverse."""
    return to_text(item) if isinstance(item, Op) else str(item)


def read(target: str, text: str) -> Item:
    """Parse an item of a target; raises `CodlError` for an invalid text."""
    if kind := kind_of(target):
        return CONTEXT[kind].read(text)
    if not is_sharing(target):
        return parse(text)
    try:
        shape = Shape(*(int(size) for size in text.split("x")))
    except (TypeError, ValueError) as error:
        raise CodlError(f"Cannot read the shape {text!r}: expected one like 1x64x56x56.") from error
    if min(shape) < 1:
        raise CodlError(f"The shape {text!r} is empty: every size must be at least 1.")
    return shape


def variant_of(target: str, op: Op) -> Variant:
    """The kernel variant of a target for `op`.

    Raises `UnknownNameError`, which lists the op's targets, for another target.
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
    """The features (items, features) of one target's items (at least one), with tuned kernels.

    Raises `UnknownNameError` for a target that does not predict the items, and `MismatchError` for
    feature names that differ between items, or an infinite feature.
    """
    some: Any = items
    if kind := kind_of(target):
        features = _of_columns(CONTEXT[kind].columns(some), len(items))
    elif is_sharing(target):
        if target not in _sharing_targets():
            raise UnknownNameError("target of a shape", target, _sharing_targets())
        if feature_set == "flops":
            columns: FeatureColumns = {"bytes": np.array([float(shape.bytes) for shape in some])}
        else:
            columns = _sharing_columns(some, *_sharing_targets()[target], soc)
        features = _of_columns(columns, len(items))
    elif feature_set == "variant":
        features = _by_variant(target, some, soc, tuning)
    else:
        for op in _of_each_kind(some):
            by_kind = [mulayer_target(op.kind, processor) for processor in PROCESSORS]
            if target not in by_kind and (is_mulayer(target) or not variant_of(target, op)):
                raise UnknownNameError(f"target of a {op.kind}", target, by_kind)
        columns = type(some[0]).size_columns.of(some).mulayer_features
        features = _of_columns(columns, len(items))
    for row, column in np.argwhere(~np.isfinite(features.values))[:1]:
        raise MismatchError(
            f"The feature {features.names[column]} of {target} must be finite, got "
            f"{features.values[row, column]} for {write(items[row])}."
        )
    return features


def _of_columns(columns: FeatureColumns, count: int) -> FeatureTable:
    values = np.empty((count, len(columns)), np.float64)
    for at, column in enumerate(columns.values()):
        values[:, at] = column
    return FeatureTable(tuple(columns), values)


def _by_variant(target: str, ops: Sequence[Op], soc: Soc, tuning: Tuning) -> FeatureTable:
    variant, *_ = [variant_of(target, op) for op in _of_each_kind(ops)]
    if variant.op_columns is not None:
        columns = tuning.feature_columns(variant, ops, soc)
    else:
        rows = [tuning.features(variant, op, soc) for op in ops]
        for op, row in zip(ops, rows, strict=True):
            if tuple(row) != tuple(rows[0]):
                raise MismatchError(
                    f"{target} has the features {', '.join(row)} for {write(op)} but "
                    f"{', '.join(rows[0])} for {write(ops[0])}: a target has the same for every op."
                )
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    # The variant's own features, and the activation, which all variants compute alike.
    return _of_columns({**columns, ACTIVATION: exponentials(ops)}, len(ops))


def _of_each_kind(ops: Sequence[Op]) -> list[Op]:
    of_type: dict[type[Any], Op] = dict(zip(map(type, ops), ops, strict=True))
    if all(cls.flavor is Op.flavor for cls in of_type):
        return list(of_type.values())
    return list({(op.kind, op.flavor): op for op in ops}.values())


class Sizes(NamedTuple):
    """Sizes of shapes as columns."""

    images: Column
    channels: Column
    pixels: Column
    bytes: Column


def _sharing_columns(
    shapes: Sequence[Shape], direction: Direction, storage: Storage, soc: Soc
) -> FeatureColumns:
    """Features of regions to share; names depend on the direction alone."""
    flat = np.fromiter(chain.from_iterable(shapes), np.float64, 4 * len(shapes))
    images, channels, rows, columns = np.ascontiguousarray(flat.reshape(-1, 4).T)
    pixels = rows * columns
    sizes = Sizes(images, channels, pixels, 4.0 * images * channels * pixels)
    if direction.endswith("_openvino"):
        return _transposed(sizes, soc)
    if direction.startswith(("load", "store")):
        return _packing(sizes, soc)
    return _transform(sizes, storage, soc)


def _packing(sizes: Sizes, soc: Soc) -> FeatureColumns:
    """Features of packing to ncnn's layout: 16, 8, 4 or 1 interleaved channels, by divisibility."""
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


def _transposed(sizes: Sizes, soc: Soc) -> FeatureColumns:
    """Features of a transposition between channels first and channels last (OpenVINO)."""
    return {
        "channels": sizes.images * sizes.channels,
        "pixels": sizes.images * sizes.pixels,
        **by_level("moved", 2 * sizes.bytes, soc.cpu.l2_cache_bytes),
    }


def _transform(sizes: Sizes, storage: Storage, soc: Soc) -> FeatureColumns:
    """Features of a copy through shared memory and a kernel between planar and GPU layout.

    The kernel transposes chunks of as many pixels as a block has channels; images with fewer
    pixels are converted element by element.
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
