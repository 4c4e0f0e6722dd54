"""What every measured result says of itself: its environment, and digests of what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure.dataset import dataset_digest
from codl.records import statistic
from codl.records.results import Digests
from codl.strategies import Context
from codl.targets.base import Target
from codl.targets.environment import environment_of


def recorded(target: Target, digests: Digests, **protocol: Any) -> dict[str, Any]:
    """The keys `environment`, None where the target is no machine, and `digests` of a result."""
    found = environment_of(target, {**protocol, "statistic": statistic.NAME})
    return {
        "environment": None if found is None else asdict(found),
        "digests": asdict(digests),
    }


def digests_of(
    context: Context | None, *networks: Network, plans: Mapping[str, Plan] | None = None
) -> Digests:
    """Of models, their plans by name, and where there is a context its dataset and tuning."""
    return Digests(
        dataset=dataset_digest(context.dataset) if context else "",
        tuning=context.tuning.fingerprint if context else "",
        models={network.name: network.content_digest for network in networks},
        plans={name: plan.fingerprint for name, plan in (plans or {}).items()},
    )
