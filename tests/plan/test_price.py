"""What tables say that chains take is what a walk over the commands of their executable says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_networks import random_networks, random_plans
from support.simulated import SOC
from support.synthetic_predictors import SyntheticPredictors, synthetic_predictors

from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.soc import Soc
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan.build_plan import make_plan
from codl.plan.cost_model import CostModel
from codl.plan.price import price

IMAGES = {"memory_types": ("buffer", "image2d"), "max_image_width": 9999, "max_image_height": 9999}
#: A GPU with buffers, one with images too, and one that is a CPU, which launches image by image.
SOCS = {
    "buffers": SOC,
    "images": replace(SOC, gpu=replace(SOC.gpu, **IMAGES)),  # type: ignore[arg-type]
    "one CPU": replace(SOC, gpu=replace(SOC.gpu, type="cpu")),
}


@st.composite
def planned(draw: st.DrawFn) -> tuple[Network, Plan, Soc]:
    network = draw(random_networks())
    soc = SOCS[draw(st.sampled_from(sorted(SOCS)))]
    return network, draw(random_plans(network, soc)), soc


@given(case=planned(), predictors=synthetic_predictors())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_tables_say_what_the_walk_says(
    case: tuple[Network, Plan, Soc], predictors: SyntheticPredictors
) -> None:
    network, drawn, soc = case
    cost = CostModel(soc, predictors)
    chains = [replace(chain, variants={}) for chain in drawn.chains]
    plan = make_plan(network, cost, chains, strategy="test", sharing=drawn.sharing)
    walked = price(lower(network, plan, soc, Tuning()), cost)
    assert walked.latency_ms == pytest.approx(plan.predicted_ms, rel=1e-9)
