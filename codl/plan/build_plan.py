"""Makes plans without predictions: of one processor, and with fallbacks for wrong variants.

`default_plan` and `preferring` take the first variant of each op. `with_fallbacks` replaces
variants that were found wrong. `codl.plan.predicted_plan` makes plans in the variants that are
predicted fastest. This module loads no cost model, so a run of a given plan needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.ir import Dim, Layer, Network
from codl.ir.plan import Chain, OpFallback, Plan, Sharing
from codl.ir.records.soc import Soc
from codl.ir.types import Processor, Storage
from codl.kernels import registry

#: The partition ratio of a plan of one processor.
ALONE: Mapping[Processor, float] = {"cpu": 0.0, "gpu": 1.0}
#: Fallbacks by layer, and by the processor on which the planned variant is wrong.
ByLayer: TypeAlias = Mapping[str, Mapping[Processor, OpFallback]]


def chain_of(layers: Sequence[Layer], dim: Dim, gpu_ratio: float) -> Chain:
    """A chain of layers without variants."""
    return Chain(tuple(layer.name for layer in layers), dim, gpu_ratio, {})


def unpredicted(
    network: Network, soc: Soc, strategy: str, chains: Iterable[Chain], sharing: Sharing
) -> Plan:
    return Plan(
        model=network.name,
        digest=network.digest,
        soc=soc.name,
        strategy=strategy,
        predictor="none",
        sharing=sharing,
        predicted_ms=None,
        chains=tuple(chains),
    )


def default_plan(
    network: Network,
    soc: Soc,
    processor: Processor,
    *,
    chained: bool = True,
    variants: Mapping[str, str] | None = None,
) -> Plan:
    """All ops on one processor, without predictions: in one chain, or each in its own chain.

    `variants` has the kernel variants of some layers; others take their default. Raises
    `UnsupportedError` for a layer without a variant on the processor.
    """
    named = variants or {}
    chosen: list[Any] = [
        registry.find(layer.op, named[layer.name], processor)
        if layer.name in named
        else _default(layer, processor, soc)
        for layer in network.layers
    ]
    names: dict[str, dict[str, str]] = {
        layer.name: {processor: variant.name}
        for layer, variant in zip(network.layers, chosen, strict=True)
    }
    if processor == "gpu" and chained:
        planar = planar_of(network.layers, chosen)
        for layer, variant, is_planar in zip(network.layers, chosen, planar, strict=True):
            if is_planar and layer.name not in named:
                names[layer.name] = {processor: variant.planar_fallback}
    groups = [tuple(names)] if chained else [(name,) for name in names]
    ratio = ALONE[processor]
    chains = (Chain(ops, "H", ratio, {op: names[op] for op in ops}) for ops in groups if ops)
    return unpredicted(network, soc, f"all-{processor}", chains, "gather")


def preferring(network: Network, soc: Soc, processor: Processor) -> Plan:
    """All ops on one processor without predictions; unsupported ops go to the other one.

    Raises `UnsupportedError` for a layer without a variant on either processor.
    """
    other: Processor = "gpu" if processor == "cpu" else "cpu"
    sides = [
        processor if registry.variants(layer.op, processor, soc) else other
        for layer in network.layers
    ]
    chains = []
    for side, together in groupby(zip(network.layers, sides, strict=True), itemgetter(1)):
        names = {layer.name: {side: _default(layer, side, soc).name} for layer, _ in together}
        chains.append(Chain(tuple(names), "H", ALONE[side], names))
    return unpredicted(network, soc, f"rather-{processor}", chains, "missing")


def _default(layer: Layer, processor: Processor, soc: Soc) -> Any:
    """The first variant that is meant for the SoC, or else the first one that works on it."""
    variants = registry.variants(layer.op, processor, soc) or registry.variants(
        layer.op, processor, soc, include_unfit=True
    )
    if not variants:
        refusals = "; ".join(
            f"{variant.name}: {variant.refusal(layer.op, soc)}"
            for variant in registry.of_kind(layer.op.kind, processor)
        )
        raise UnsupportedError(
            f"The {processor} has no kernel variant for {layer.name!r} ({layer.op.kind}). "
            f"{refusals or 'None is written.'}"
        )
    return variants[0]


# Planar fallbacks.


class _Stored(Protocol):
    """A kernel variant, or the cost of one: its storage, and the name of its planar fallback."""

    @property
    def storage(self) -> Storage | None: ...
    @property
    def planar_fallback(self) -> str | None: ...


def planar_of(layers: Sequence[Layer], variants: Sequence[_Stored | None]) -> NDArray[np.bool_]:
    """By layer, True where the GPU computes it in the planar fallback of its variant.

    A layer with a planar fallback uses it if more than half of its tensors are planar: the storages
    of tensors follow from the layers without a choice. `variants` are the planned variants, None
    for layers without one.
    """
    #: (number, layer, its variant is planar, it has a planar fallback) of layers with a variant.
    planned: list[tuple[int, Layer, bool, bool]] = []
    for at, (layer, variant) in enumerate(zip(layers, variants, strict=True)):
        if variant is not None:
            is_planar = variant.storage is not None and variant.storage.layout == "planar"
            goes_planar = variant.planar_fallback is not None
            planned.append((at, layer, is_planar, goes_planar))
    wanted: dict[str, bool] = {}
    for _, layer, is_planar, goes_planar in reversed(planned):
        want = wanted.get(layer.output) if goes_planar else is_planar
        if want is not None:
            wanted |= dict.fromkeys((*layer.inputs, layer.output), want)
    planar = np.zeros(len(layers), np.bool_)
    for at, layer, _, goes_planar in planned:
        if goes_planar:
            around = [wanted[name] for name in (*layer.inputs, layer.output) if name in wanted]
            wanted[layer.output] = planar[at] = 2 * sum(around) > len(around)
    return planar


# Fallbacks.


def with_fallbacks(network: Network, plan: Plan, fallbacks: Sequence[OpFallback]) -> Plan:
    """The plan with fallbacks applied and without a predicted latency.

    A layer that goes to the other processor becomes a chain of its own; other layers stay.
    """
    by_layer: dict[str, dict[Processor, OpFallback]] = {}
    for fallback in fallbacks:
        by_layer.setdefault(fallback.op, {})[fallback.processor] = fallback
    changed = (_changed(*chain_and_layers, by_layer) for chain_and_layers in plan.layers(network))
    return replace(
        plan,
        chains=tuple(chain for chains in changed for chain in chains),
        predicted_ms=None,
        predicted_mj=None,
        fallbacks=(*plan.fallbacks, *fallbacks),
    )


def _changed(chain: Chain, layers: Sequence[Layer], by_layer: ByLayer) -> Iterator[Chain]:
    """The chain with fallbacks, split at layers that go to the other processor."""

    def elsewhere(layer: Layer) -> tuple[Processor, str] | None:
        """The other processor and variant that computes the whole layer; None where it stays."""
        for processor, fallback in by_layer.get(layer.name, {}).items():
            other = registry.find(layer.op, fallback.instead).processor
            if other != processor:
                return other, fallback.instead
        return None

    for move, group in groupby(layers, elsewhere):
        names = [layer.name for layer in group]
        if move is None:
            instead = {
                name: {side: fallback.instead for side, fallback in by_layer.get(name, {}).items()}
                for name in names
            }
            variants = {name: {**chain.variants[name], **instead[name]} for name in names}
            yield replace(chain, ops=tuple(names), variants=variants)
        else:
            processor, variant = move
            variants = {name: {processor: variant} for name in names}
            yield Chain(tuple(names), "H", ALONE[processor], variants)
