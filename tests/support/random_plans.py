"""Random plans of a network: any legal cut, ratio, variant and storage."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from codl.ir.network import Layer, Network
from codl.ir.ops.base import Dim
from codl.ir.plan import Chain, Plan, Sharing
from codl.ir.records.soc import Soc
from codl.ir.types import Element, Processor
from codl.kernels import registry
from codl.lower.partition import Shard, chain_outputs, cut

RATIOS = (0.0, 0.2, 0.5, 0.7, 1.0)
#: How many layers a chain has at most.
MOST_IN_CHAIN = 5


def random_plan(
    network: Network,
    soc: Soc,
    dice: Random,
    sharing: Sharing | None = None,
    *,
    ratios: Sequence[float] = RATIOS,
    stored: Sequence[Element] | None = None,
) -> Plan:
    """Chains of any length, each cut where its outputs can be, in any variants of the SoC.

    With `stored`, variants are any that are right, whatever they are meant for, whose tensors are
    stored as one of these.
    """
    layers, chains = list(network.layers), []
    while layers:
        length = dice.randint(1, min(MOST_IN_CHAIN, len(layers)))
        taken, layers = layers[:length], layers[length:]
        chains += _chains(dice, network, taken, soc, ratios, stored)
    drawn: Sharing = sharing or dice.choice(("missing", "missing", "gather"))
    return Plan(
        network.name, network.digest, soc.name, "random", "none", drawn, None, tuple(chains)
    )


def _chains(
    dice: Random,
    network: Network,
    layers: Sequence[Layer],
    soc: Soc,
    ratios: Sequence[float],
    stored: Sequence[Element] | None,
) -> list[Chain]:
    """One chain of the layers; one of each where no processor runs all of them."""
    names = tuple(layer.name for layer in layers)
    outputs = chain_outputs(network, layers)
    ends = [layer.op for layer in layers if layer.output in outputs]
    dims: list[Dim] = [dim for dim in ("H", "OC", "N") if all(dim in op.dims for op in ends)]
    dim = dice.choice(dims) if dims else "H"
    ratio = dice.choice(ratios) if dims else round(dice.choice(ratios))
    for gpu_ratio in (ratio, 0.0, 1.0):
        shards = cut(layers, outputs, dim, gpu_ratio, block=soc.gpu.vector_width)
        variants = _variants(dice, shards, soc, stored)
        if variants is not None:
            return [Chain(names, dim, float(gpu_ratio), variants)]
    if len(layers) == 1:
        raise AssertionError(f"no processor of {soc.name!r} runs {names[0]}")
    return [
        chain for layer in layers for chain in _chains(dice, network, [layer], soc, ratios, stored)
    ]


def _variants(
    dice: Random, shards: tuple[Shard, Shard], soc: Soc, stored: Sequence[Element] | None
) -> dict[str, dict[str, str]] | None:
    """A variant for every part; None where a processor has none for one."""
    sides: tuple[tuple[Processor, Shard], ...] = (("cpu", shards[0]), ("gpu", shards[1]))
    chosen: dict[str, dict[str, str]] = {}
    for processor, shard in sides:
        for part in shard.parts:
            names = [
                variant.name
                for variant in registry.variants(
                    part.op, processor, soc, include_unfit=stored is not None
                )
                if stored is None or processor == "cpu" or variant.storage.element in stored
            ]
            if not names:
                return None
            chosen.setdefault(part.layer.name, {})[processor] = dice.choice(names)
    return chosen
