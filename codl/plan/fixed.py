"""Plans that nobody searched for: a whole network on one side, in default or given variants."""

from __future__ import annotations

from collections.abc import Mapping

from codl.errors import UnsupportedError
from codl.kernels import registry
from codl.kernels.base import Processor
from codl.ops import Layer, Network
from codl.ops.plan import Chain, Plan
from codl.soc import Soc


def one_side(
    network: Network,
    soc: Soc,
    processor: Processor = "gpu",
    *,
    chained: bool = True,
    variants: Mapping[str, str] | None = None,
) -> Plan:
    """Every op on one processor: all in one chain or, not `chained`, each in a chain of its own.

    `variants` names the kernel variants of some layers; the others take their default. Raises
    `UnsupportedError` with the layer for which the processor has no variant.
    """
    given = variants or {}
    names: dict[str, dict[str, str]] = {
        layer.name: {processor: given.get(layer.name) or _default(layer, processor, soc)}
        for layer in network.layers
    }
    ratio = 1.0 if processor == "gpu" else 0.0
    groups = [tuple(names)] if chained else [(name,) for name in names]
    chains = tuple(Chain(ops, "H", ratio, {op: names[op] for op in ops}) for ops in groups if ops)
    return Plan(
        model=network.name,
        digest=network.digest,
        soc=soc.name,
        strategy=f"all-{processor}",
        predictor="none",
        sharing="gather",
        predicted_ms=None,
        chains=chains,
    )


def _default(layer: Layer, processor: Processor, soc: Soc) -> str:
    """The first variant that is meant for this SoC or, where there is none, that works at all."""
    found = registry.variants(layer.op, processor, soc) or registry.variants(
        layer.op, processor, soc, every=True
    )
    if not found:
        refusals = "; ".join(
            f"{variant.name}: {variant.refusal(layer.op, soc)}"
            for variant in registry.VARIANTS
            if (variant.op_kind, variant.processor) == (layer.op.kind, processor)
        )
        raise UnsupportedError(
            f"The {processor} has no kernel variant for {layer.name!r} ({layer.op.kind}). "
            f"{refusals or 'None is written.'}"
        )
    return found[0].name
