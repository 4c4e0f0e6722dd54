"""Every kernel variant that codl knows, from the lists of their packages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from codl.errors import UnknownNameError
from codl.ir import OP_TYPES
from codl.ir.ops.base import Op
from codl.ir.soc import Soc
from codl.ir.types import PLANAR, Layout, Processor, Storage
from codl.kernels import (
    concat,
    conv2d,
    conv_transpose2d,
    eltwise,
    fc,
    gather,
    matmul,
    norm,
    onnx,
    pooling,
    reduce,
    replayed,
    reshape,
    resize,
    softmax,
    strided,
)
from codl.kernels.base import Variant
from codl.kernels.conv2d import replayed as replayed_conv2d
from codl.kernels.ort import CpuOrt

#: In order of preference: the first that accepts an op is its default.
PACKAGES = (
    conv2d,
    conv_transpose2d,
    pooling,
    fc,
    concat,
    eltwise,
    reshape,
    resize,
    matmul,
    softmax,
    norm,
    reduce,
    strided,
    gather,
    onnx,
)
VARIANTS: tuple[Variant, ...] = tuple(
    variant for package in PACKAGES for variant in package.VARIANTS
)
#: Those that somebody else has measured, of every kind of op: what a replayed SoC has.
REPLAYED: tuple[replayed.Replayed, ...] = tuple(
    variant
    for kind in OP_TYPES
    for variant in (
        replayed_conv2d.VARIANTS if kind == replayed_conv2d.KIND else replayed.every(kind)
    )
)


def takes_batch(variant: Any) -> bool:
    """Whether a variant computes the images of a batch at once, and not one after the other.

    The CPU has several side by side; on the GPU it takes kernels that count images.
    """
    return variant.processor == "cpu" or bool(variant.takes_batch)


def target(variant: Variant, op: Op) -> str:
    """What is measured and predicted together, such as `conv2d_cpu_gemm`, `pooling_gpu_direct_max`.

    The name of a dataset's table and of a predictor.
    """
    name = f"{op.kind}_{variant.name}"
    return f"{name}_{op.flavor}" if op.flavor else name


def known_to(op: Op) -> list[Variant]:
    """All variants of an op's kind, those that cannot run included."""
    kind = op.kind
    return [v for v in (*VARIANTS, *REPLAYED) if v.op_kind == kind]


def variants(op: Op, processor: Processor, soc: Soc, *, every: bool = False) -> list[Variant]:
    """The variants that accept `op` on a processor, the default first.

    Where the SoC's memory types have none (or an image would be too large), those of any other. On
    the CPU ncnn's are preferred, and ONNX Runtime's stand in where ncnn refuses.
    `every` includes all that are right but not for this SoC: written for another type of device,
    or with tensors in memory, or of an element type, that its file does not name; or never best.
    A replayed SoC has only variants that were measured elsewhere.
    """
    return list(accepting(op, candidates(op.kind, processor, soc, every=every), soc))


def candidates(
    kind: str, processor: Processor, soc: Soc, *, every: bool = False
) -> list[list[Any]]:
    """The variants of a kind of op: the first of these lists that has any for an op has all."""
    if soc.is_replayed:
        own = [v for v in REPLAYED if v.op_kind == kind and v.processor == processor]
        return [[v for v in own if every or v.usual]]
    known: list[Any] = [v for v in VARIANTS if v.op_kind == kind and v.processor == processor]
    if every:
        return [known]
    if processor == "cpu":
        return [
            [v for v in known if v.usual and not isinstance(v, CpuOrt)],
            known,
        ]
    meant = [v for v in known if soc.gpu.type in v.meant_for]
    # Planar variants have neither images nor half storage, whatever the rest of a network has.
    usual = (PLANAR, *storages(soc))
    return [
        [v for v in meant if v.storage in usual],
        [v for v in meant if v.storage.element == soc.gpu.element],
    ]


def accepting(op: Op, candidates: Iterable[list[Any]], soc: Soc) -> list[Variant]:
    """Those of `candidates` that accept an op."""
    if soc.is_replayed:
        return [variant for own in candidates for variant in own]
    for own in candidates:
        found = [variant for variant in own if variant.refusal(op, soc) is None]
        if found:
            return found
    return []


def storages(soc: Soc) -> tuple[Storage, ...]:
    """What the SoC's tensors may be stored as, its usual storage first."""
    layouts: dict[str, Layout] = {"buffer": "blocked", "image2d": "image"}
    element: Any = soc.gpu.element
    return tuple(Storage(layouts[memory], element) for memory in soc.gpu.memory_types)


def find(op: Op, name: str) -> Variant:
    """The variant of an op's kind by its name, such as `cpu_gemm`."""
    known = {variant.name: variant for variant in known_to(op)}
    if name not in known:
        raise UnknownNameError(f"kernel variant of {op.kind}", name, known)
    return known[name]
