"""A plan without its GPU: what an engine goes on with where that one has failed."""

from __future__ import annotations

from dataclasses import replace

from codl.errors import UnsupportedError
from codl.ir.network import Layer, Network
from codl.ir.plan import Chain, Plan
from codl.ir.soc import Soc
from codl.kernels import registry

STRATEGY = "cpu"


def on_cpu(network: Network, plan: Plan, soc: Soc, *, but: str = "") -> Plan:
    """Every layer on the CPU alone, in the variant that the plan has there, or else the default.

    None has the backend `but` where another one has a variant. Raises `UnsupportedError` with the
    first layer that the CPU has no variant for.
    """
    planned = {
        name: own.get("cpu") for chain in plan.chains for name, own in chain.variants.items()
    }
    variants = {
        layer.name: {"cpu": _variant(layer, planned.get(layer.name), soc, but)}
        for layer in network.layers
    }
    whole = Chain(tuple(variants), "H", 0.0, variants)
    return replace(
        plan,
        strategy=STRATEGY,
        predictor="none",
        sharing="gather",
        predicted_ms=None,
        predicted_mj=None,
        chains=(whole,) if variants else (),
        sums={},
        method="the GPU failed",
    )


def _variant(layer: Layer, planned: str | None, soc: Soc, but: str) -> str:
    """The planned one, if it takes the whole op too; what was planned may have been for a part."""
    variants = registry.variants(layer.op, "cpu", soc)
    if but and variants:
        fit = registry.variants(layer.op, "cpu", soc, include_unfit=True)
        variants = [variant for variant in fit if variant.backend != but] or variants
    names = [variant.name for variant in variants]
    if not names:
        raise UnsupportedError(
            f"The CPU has no kernel variant for {layer.name!r} ({layer.op.kind})."
        )
    return planned if planned in names else names[0]
