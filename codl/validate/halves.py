"""Plans whose GPU stores halves: what a range scan begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from codl.ir import Network, Op
from codl.ir.plan import Chain, Plan
from codl.ir.types import Storage
from codl.kernels import registry
from codl.records.soc import Soc


def halved(network: Network, plan: Plan, soc: Soc) -> Plan:
    """The plan with every op of the GPU's in the same variant over halves, where there is one.

    Nothing is predicted of it.
    """
    written, _ = plan.applied(network)
    ops = {layer.name: layer.op.whole for layer in written.layers}

    def changed(chain: Chain) -> Chain:
        variants = {
            name: {**own, **({"gpu": _half(ops[name], own["gpu"], soc)} if "gpu" in own else {})}
            for name, own in chain.variants.items()
        }
        return replace(chain, variants=variants)

    chains = tuple(changed(chain) for chain in plan.chains)
    return replace(plan, chains=chains, predicted_ms=None, predicted_mj=None)


def _half(op: Op, name: str, soc: Soc) -> str:
    """The name of the variant that does the same over halves, or the same name."""
    variant: Any = registry.find(op, name)
    half = Storage(variant.storage.layout, "float16")
    wanted = name.removesuffix(variant.storage.suffix) + half.suffix
    own: list[Any] = registry.of_kind(op.kind, "gpu")
    found = (v for v in own if (v.name, v.storage) == (wanted, half) and not v.refusal(op, soc))
    return next((v.name for v in found), name)
