"""What lowering refuses of a plan that somebody wrote by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.executables import small_network, small_plan
from support.simulated import SOC

from codl.errors import CodlError
from codl.kernels.tuning import Tuning
from codl.lower import lower


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({}, "names no kernel variant of the cpu"),
        ({"cpu": "cpu_gemm"}, "names no kernel variant of the gpu"),
        ({"cpu": "gpu_direct", "gpu": "gpu_direct"}, "Unknown CPU kernel variant of conv2d"),
        ({"cpu": "cpu_gemm", "gpu": "cpu_gemm"}, "Unknown GPU kernel variant of conv2d"),
        ({"cpu": "cpu_gemm", "gpu": "nope"}, "Unknown GPU kernel variant of conv2d 'nope'"),
    ],
)
def test_variants_are_of_their_processor(own: Mapping[str, str], problem: str) -> None:
    network = small_network()
    plan = small_plan(network, SOC)
    first, *others = plan.chains
    chains = (replace(first, variants={**first.variants, "op0": own}), *others)
    with pytest.raises(CodlError, match=problem):
        lower(network, replace(plan, chains=chains), SOC, Tuning())
