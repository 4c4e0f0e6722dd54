"""Every kernel variant by the op that it computes, and which of them a SoC has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from codl.errors import UnknownNameError
from codl.ir.ops.base import Op
from codl.ir.plan import those_of
from codl.ir.types import LAYOUTS, PLANAR, Processor, Storage
from codl.kernels.architecture import architecture_of
from codl.kernels.base import LIBRARIES, Variant
from codl.plugins import LATENCIES, load_installed
from codl.records.soc import Soc
from codl.registry import Registry

#: By op kind and name, such as "conv2d cpu_gemm"; those of one kind are in order of preference.
VARIANTS: Registry[Variant] = Registry("kernel variant")


def register(*variants: Variant, before: str | None = None) -> None:
    """Add variants in order of preference: the first that accepts an op is its default.

    They come behind those that are already there, or before the variant of their kind named
    `before`.
    """
    for variant in variants:
        kind = variant.op_kind
        place = f"{kind} {before}" if before else None
        VARIANTS.add(f"{kind} {variant.name}", variant, before=place)


def target(variant: Variant, op: Op) -> str:
    """What is measured and predicted together, such as `conv2d_cpu_gemm`, `pooling_gpu_direct_max`.

    The name of a dataset's table and of a predictor.
    """
    name = f"{op.kind}_{variant.name}"
    return f"{name}_{op.flavor}" if op.flavor else name


def of_kind(kind: str, processor: Processor | None = None) -> list[Variant]:
    """The variants of a kind of op that can run somewhere, in order of preference."""
    every = (VARIANTS[name] for name in VARIANTS if name.startswith(f"{kind} "))
    return [variant for variant in every if processor in (None, variant.processor)]


def known_to(op: Op) -> list[Variant]:
    """All variants of an op's kind, those that cannot run included."""
    return [*of_kind(op.kind), *_latencies_of(op.kind)]


def _latencies_of(kind: str, source: str | None = None) -> list[Variant]:
    """The variants of a kind of op that have latencies and no kernels, of one source or of all."""
    if not LATENCIES:
        load_installed()  # in a worker process, or a script that calls parts of codl
    sources = LATENCIES.values() if source is None else [LATENCIES.find(source)]
    return [variant for variants_of in sources for variant in variants_of(kind)]


def variants(
    op: Op, processor: Processor, soc: Soc, *, include_unfit: bool = False
) -> list[Variant]:
    """The variants that accept `op` on a processor, the default first.

    Where the SoC's memory types have none (or an image would be too large), those of any other. On
    the CPU ncnn's come first.
    A GPU whose local memory is no faster than others has products out of it last.
    `include_unfit` includes all that are right but not for this SoC: written for another type of
    device, or with tensors in memory, or of an element type, that its file does not name; or never
    best; and those in which the SoC file says that the op is wrong. A replayed SoC has only
    variants that were measured elsewhere.
    """
    listed = candidates(op.kind, processor, soc, include_unfit=include_unfit)
    return _accepting(op, listed, soc) if include_unfit else accepting(op, listed, soc)


def candidates(
    kind: str, processor: Processor, soc: Soc, *, include_unfit: bool = False
) -> list[list[Any]]:
    """The variants of a kind of op: the first of these lists that has any for an op has all."""
    if soc.is_replayed:
        known = [v for v in _latencies_of(kind, soc.source) if v.processor == processor]
        return [[v for v in known if include_unfit or v.is_plannable]]
    all_variants: list[Any] = of_kind(kind, processor)
    if include_unfit:
        return [all_variants]
    if processor == "cpu":
        return [[v for v in all_variants if v.is_plannable], all_variants]
    multiplied = ("float32", soc.gpu.arithmetic)
    meant = [v for v in all_variants if soc.gpu.type in v.meant_for and v.arithmetic in multiplied]
    if architecture_of(soc.gpu).local_is_memory:
        meant.sort(key=lambda variant: variant.through_local)
    # Tensors of any rank are planar, whatever memory those of convolutions lie in; what has no
    # variant over halves, such as indices, is of floats.
    element: Any = soc.gpu.element
    usual = (Storage(PLANAR.layout, element), *storages(soc))
    return [
        [v for v in meant if v.storage in usual],
        [v for v in meant if v.storage.element == element],
        [v for v in meant if v.storage == PLANAR],
    ]


def accepting(op: Op, candidates: Iterable[list[Any]], soc: Soc) -> list[Variant]:
    """Those of `candidates` that accept an op, or what the SoC file says to run it in instead."""
    accepted = _accepting(op, candidates, soc)
    if not soc.fallbacks or not accepted:
        return accepted
    processor = accepted[0].processor
    fallbacks = those_of(soc.fallbacks, op, processor)
    if not fallbacks:
        return accepted
    wrong = {fallback.variant for fallback in fallbacks}
    right = {fallback.instead for fallback in fallbacks} - wrong
    by_name = {variant.name: variant for variant in of_kind(op.kind, processor)}
    return [v for name, v in by_name.items() if name in right and v.refusal(op, soc) is None]


def _accepting(op: Op, candidates: Iterable[list[Any]], soc: Soc) -> list[Variant]:
    for preferred in candidates:
        accepted = [variant for variant in preferred if variant.refusal(op, soc) is None]
        if accepted:
            return accepted
    return []


def storages(soc: Soc) -> tuple[Storage, ...]:
    """What the SoC's tensors may be stored as, its usual storage first."""
    layouts = {traits.memory: layout for layout, traits in LAYOUTS.items()}
    element: Any = soc.gpu.element
    return tuple(Storage(layouts[memory], element) for memory in soc.gpu.memory_types)


def of_library(op: Op, library: int, soc: Soc) -> Variant | None:
    """The first variant of a library, by its number, that accepts an op, if there is one."""
    backend = LIBRARIES[library]
    for variant in of_kind(op.kind, "cpu"):
        if variant.backend == backend and variant.refusal(op, soc) is None:
            return variant
    return None


def find(op: Op, name: str, processor: Processor | None = None) -> Variant:
    """The variant of an op's kind by its name, such as `cpu_gemm`, where given of one processor."""
    variant = VARIANTS.get(f"{op.kind} {name}")
    if variant is None:
        variant = next((v for v in _latencies_of(op.kind) if v.name == name), None)
    if variant is None or processor not in (None, variant.processor):
        kind = f"{processor.upper()} kernel variant" if processor else "kernel variant"
        names = [v.name for v in known_to(op) if processor in (None, v.processor)]
        raise UnknownNameError(f"{kind} of {op.kind}", name, names)
    return variant
