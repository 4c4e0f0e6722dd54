"""Plans with some layers in other variants than they were planned in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from codl.ir import Layer, Network, to_text
from codl.ir.plan import Chain, OpFallback, Plan
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry

#: What runs each layer elsewhere or otherwise, by the processor that it is wrong on.
ByLayer = Mapping[str, Mapping[Processor, OpFallback]]


def with_fallbacks(network: Network, plan: Plan, fallbacks: Sequence[OpFallback]) -> Plan:
    """The plan with layers in what stands in for their variants; nothing is predicted of it.

    A layer that goes to the other processor is cut out of its chain. All others stay as they are.
    """
    by_layer: dict[str, dict[Processor, OpFallback]] = {}
    for one in fallbacks:
        by_layer.setdefault(one.op, {})[one.processor] = one
    written, applied = plan.applied(network)
    chains = [
        changed
        for chain, layers in applied.layers(written)
        for changed in _changed(chain, layers, by_layer)
    ]
    return replace(
        plan,
        chains=tuple(chains),
        predicted_ms=None,
        predicted_mj=None,
        fallbacks=(*plan.fallbacks, *fallbacks),
    )


def for_soc(network: Network, fallbacks: Iterable[OpFallback]) -> tuple[OpFallback, ...]:
    """The fallbacks of a plan as a SoC file has them: by the text of the op, each once."""
    texts = {layer.name: to_text(layer.op) for layer in network.layers}
    named = (replace(one, op=texts[one.op]) for one in fallbacks)
    return tuple({(one.op, one.processor, one.variant): one for one in named}.values())


def _changed(chain: Chain, layers: Sequence[Layer], by_layer: ByLayer) -> Iterator[Chain]:
    """A chain, or the pieces of it between layers that go elsewhere."""

    def mover(layer: Layer) -> tuple[Processor, str] | None:
        return _elsewhere(layer, by_layer.get(layer.name, {}))

    for move, group in groupby(layers, mover):
        own = [layer.name for layer in group]
        if move is None:
            variants = {n: {**chain.variants[n], **_otherwise(by_layer.get(n, {}))} for n in own}
            yield replace(chain, ops=tuple(own), variants=variants)
        else:
            processor, variant = move
            ratio = float(PROCESSORS.index(processor))
            yield Chain(tuple(own), "H", ratio, {name: {processor: variant} for name in own})


def _elsewhere(layer: Layer, own: Mapping[Processor, OpFallback]) -> tuple[Processor, str] | None:
    """The processor and the variant that all of a layer goes to; None where it stays."""
    for processor, one in own.items():
        other = registry.find(layer.op.whole, one.instead).processor
        if other != processor:
            return other, one.instead
    return None


def _otherwise(own: Mapping[Processor, OpFallback]) -> dict[str, str]:
    return {processor: one.instead for processor, one in own.items()}
