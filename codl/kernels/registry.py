"""Registry of kernel variants by op kind, and the variants of a SoC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from threading import Lock
from typing import Any

from codl.errors import UnknownNameError
from codl.ir.ops.base import Op
from codl.ir.records.soc import Soc
from codl.ir.types import LAYOUTS, PLANAR, Processor, Storage
from codl.kernels.base import LIBRARIES, Variant
from codl.kernels.tiling import architecture_of
from codl.registry import LATENCIES, Registry, load_installed


class VariantRegistry(Registry[Variant]):
    """Variants, best first, by kind and name ("conv2d cpu_gemm"); a used kind is imported."""

    def __init__(self) -> None:
        super().__init__("kernel variant")
        self._modules: dict[str, str] = {}
        #: The last imported built-in variant of each op kind.
        self._last: dict[str, str] = {}
        self._lock = Lock()

    def add_lazy(self, name: str, place: str) -> None:
        """Register the module whose `VARIANTS` have the variants of an op kind."""
        self._modules[name] = place

    def add(
        self, name: str, entry: Variant, *, origin: object = None, before: str | None = None
    ) -> Variant:
        self._load(_kind(name))
        return super().add(name, entry, origin=origin, before=before)

    def __getitem__(self, name: str) -> Variant:
        self._load(_kind(name))
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._load(_kind(str(name)))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        """Names, grouped by op kind, built-in kinds first."""
        places = {kind: place for place, kind in enumerate(self._modules)}
        for kind in places:
            self._load(kind)
        return iter(sorted(self._places, key=lambda name: places.get(_kind(name), len(places))))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def of_group(self, word: str) -> list[Variant]:
        self._load(word)
        return [self._entries[name] for name in self._places if _kind(name) == word]

    def _load(self, kind: str) -> None:
        if kind not in self._modules or self._last.get(kind) in self._places:
            return
        every = import_module(self._modules[kind]).VARIANTS
        named = {f"{kind} {each.name}": each for each in every if each.op_kind == kind}
        with self._lock:  # threads may look at a kind first at the same time
            for name, variant in named.items():
                if name not in self._places:
                    super().add(name, variant)
            self._last[kind] = [*named][-1]


def _kind(name: str) -> str:
    return name.partition(" ")[0]


VARIANTS = VariantRegistry()


def register(*variants: Variant, before: str | None = None) -> None:
    """Add variants in order of preference: the first that accepts an op is its default.

    They follow the existing variants of their kind, or precede the variant named `before`.
    """
    for variant in variants:
        kind = variant.op_kind
        place = f"{kind} {before}" if before else None
        VARIANTS.add(f"{kind} {variant.name}", variant, before=place)


def target(variant: Variant, op: Op) -> str:
    """Name of a variant's dataset table and predictor, such as `pooling_gpu_direct_max`."""
    name = f"{op.kind}_{variant.name}"
    return f"{name}_{op.flavor}" if op.flavor else name


def of_kind(kind: str, processor: Processor | None = None) -> list[Variant]:
    """The runnable variants of an op kind on a processor, or on both, in order of preference."""
    every = VARIANTS.of_group(kind)
    return [variant for variant in every if processor in (None, variant.processor)]


def known_to(op: Op) -> list[Variant]:
    """All variants of an op's kind, including replayed ones."""
    return [*of_kind(op.kind), *_latencies_of(op.kind)]


def _latencies_of(kind: str, source: str | None = None) -> list[Variant]:
    """The replayed variants of an op kind, which have only latencies, from one source or all."""
    if not LATENCIES:
        load_installed()  # a worker process, or a script without the CLI
    sources = LATENCIES.values() if source is None else [LATENCIES.find(source)]
    return [variant for variants_of in sources for variant in variants_of(kind)]


def variants(
    op: Op, processor: Processor, soc: Soc, *, include_unfit: bool = False
) -> list[Variant]:
    """The variants that accept `op` on a processor, the default first.

    If none uses the SoC's memory types (or an image is too large), variants of other memory types
    follow. On the CPU, ncnn's come first. On a GPU with slow local memory, variants that multiply
    from it come last. `include_unfit` adds variants for another device type, memory type or element
    type, variants that are rarely fastest, and variants that the SoC file lists as wrong. A
    replayed SoC has only replayed variants.
    """
    listed = candidates(op.kind, processor, soc, include_unfit=include_unfit)
    return accepting(op, listed, soc)


def candidates(
    kind: str, processor: Processor, soc: Soc, *, include_unfit: bool = False
) -> list[list[Any]]:
    """Lists of variants of an op kind in order of preference; the first with any match counts."""
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
    # Tensors of any rank are planar, whatever the memory of convolutions; variants without a
    # float16 form, such as indices, use float32.
    element: Any = soc.gpu.element
    usual = (Storage(PLANAR.layout, element), *storages(soc))
    return [
        [v for v in meant if v.storage in usual],
        [v for v in meant if v.storage.element == element],
        [v for v in meant if v.storage == PLANAR],
    ]


def accepting(op: Op, candidates: Iterable[list[Any]], soc: Soc) -> list[Variant]:
    """The variants that accept an op, of the first candidates with some."""
    for preferred in candidates:
        accepted = [variant for variant in preferred if variant.refusal(op, soc) is None]
        if accepted:
            return accepted
    return []


def storages(soc: Soc) -> tuple[Storage, ...]:
    """Storages of the SoC's tensors, the default first."""
    layouts = {traits.memory: layout for layout, traits in LAYOUTS.items()}
    element: Any = soc.gpu.element
    return tuple(Storage(layouts[memory], element) for memory in soc.gpu.memory_types)


def of_library(op: Op, library: int, soc: Soc) -> Variant | None:
    """The first variant of a library, given by number, that accepts an op; or None."""
    backend = LIBRARIES[library]
    for variant in of_kind(op.kind, "cpu"):
        if variant.backend == backend and variant.refusal(op, soc) is None:
            return variant
    return None


def find(op: Op, name: str, processor: Processor | None = None) -> Variant:
    """A variant by name, such as `cpu_gemm`, on `processor`; else raises `UnknownNameError`."""
    variant = VARIANTS.get(f"{op.kind} {name}")
    if variant is None:
        variant = next((v for v in _latencies_of(op.kind) if v.name == name), None)
    if variant is None or processor not in (None, variant.processor):
        kind = f"{processor.upper()} kernel variant" if processor else "kernel variant"
        names = [v.name for v in known_to(op) if processor in (None, v.processor)]
        raise UnknownNameError(f"{kind} of {op.kind}", name, names)
    return variant
