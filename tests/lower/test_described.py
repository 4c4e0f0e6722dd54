"""Networks without weights are lowered, to be priced, for whichever library of the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.plans import row
from support.simulated import SOC

from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan.build_plan import preferring


@pytest.mark.parametrize("name", ["cpu_direct", "cpu_ort"])
def test_a_network_without_weights_becomes_the_same_nets(name: str) -> None:
    network = row(2)
    plan = preferring(network, SOC, "cpu")
    plan = replace(
        plan,
        chains=tuple(
            replace(chain, variants={layer: {"cpu": name} for layer in chain.variants})
            for chain in plan.chains
        ),
    )
    bare = replace(network, layers=tuple(replace(x, weights={}) for x in network.layers))
    full, empty = (lower(each, plan, SOC, Tuning()) for each in (network, bare))
    assert list(map(type, empty.nets)) == list(map(type, full.nets))
    assert len(empty.nets) == len(full.nets) > 0
