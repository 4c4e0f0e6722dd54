"""Planning, with predictors made from a known law (simulated, no measurement anywhere)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.references import converted
from support.simulated import SOC
from support.some import some
from support.synthetic_predictors import Line, SyntheticContext, SyntheticPredictors

from codl.errors import CodlError, InvalidFileError, MismatchError
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network, to_text
from codl.ir.plan import Plan, load_plan
from codl.ir.records.results import SINGLES
from codl.ir.types import Direction
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.lower.partition import partition_plan
from codl.measure.dataset import Dataset, OpRow
from codl.plan.beam_search import TransferCost, after_stage
from codl.plan.build_plan import chain_of
from codl.plan.cost_model import CostModel
from codl.plan.predicted_plan import WORTH, make_plan, unless_alone
from codl.plan.search import ChainSearch, greedy_chains, single_ops
from codl.plan.search import search as best_plan
from codl.plan.strategies import STRATEGIES, ideal


@pytest.fixture(scope="module")
def network() -> Network:
    b = ModelBuilder("line")
    x = b.input("x", (1, 3, 64, 64))
    for oc in (32, 32, 64, 64):
        x = b.relu(b.conv(x, oc, 3, pad=1))
    x = b.max_pool(x, 2, 2)
    b.output(b.fully_connected(b.flatten(x), 100))
    return converted(b)


def search(
    network: Network, *, gpu: float = 1.0, fixed: float = 0.01, per_mb: float = 0.1
) -> ChainSearch:
    predictors = SyntheticPredictors(gpu=gpu, exchange=Line(fixed, per_mb))
    return ChainSearch(network, CostModel(SOC, predictors))


@pytest.mark.parametrize(("gpu", "ratio"), [(1.0, 0.5), (4.0, 0.8)])
def test_a_faster_gpu_gets_more(network: Network, gpu: float, ratio: float) -> None:
    for single in some(single_ops(search(network, gpu=gpu, fixed=1e-6, per_mb=0))):
        assert single.chain.gpu_ratio == pytest.approx(ratio, abs=0.1)


def test_costly_sharing_makes_long_chains(network: Network) -> None:
    cheap = greedy_chains(search(network, fixed=1e-6, per_mb=0))
    dear = greedy_chains(search(network, fixed=0.2, per_mb=0))
    assert len(dear) < len(cheap)
    assert any(len(c.chain.ops) > 1 and 0 < c.chain.gpu_ratio < 1 for c in dear)


def test_chains_cover_the_layers_once_and_are_not_slower_than_single_ops(network: Network) -> None:
    s = search(network, fixed=0.05)
    chains = greedy_chains(s)
    assert [name for c in chains for name in c.chain.ops] == [x.name for x in network.layers]
    single_ms = sum(c.latency_ms for c in single_ops(s))
    assert sum(c.latency_ms for c in chains) <= single_ms + 1e-9


def test_plan_round_trip_and_refusals(network: Network, tmp_path: Path) -> None:
    s = search(network)
    plan = s.plan("test", greedy_chains(s))
    path = plan.save(tmp_path / "plan.json")
    assert load_plan(path) == plan
    content = json.loads(path.read_text())
    broken: list[tuple[Any, str]] = [
        ("{", "not JSON"),
        (content | {"version": 99}, "version: expected a plan of version 1"),
        (content | {"chainz": []}, "Did you mean 'chains'?"),
        (
            with_chain(content, gpu_ratio=1.5),
            r"chains[0].gpu_ratio: expected float <= 1.0, got 1.5",
        ),
        (content | {"predicted_ms": -1.0}, "predicted_ms: expected float >= 0.0, got -1.0"),
        (with_chain(content, dim="W"), "chains[0].dim: must be one of H, OC, N, got 'W'"),
        (with_chain(content, ops=[]), "chains[0].ops: expected array of length >= 1, got []"),
        (
            with_chain(content, variants={"a": "cpu_direct"}),
            "chains[0].variants[...]: expected object, got",
        ),
    ]
    for text, message in broken:
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        with pytest.raises(InvalidFileError) as error:
            load_plan(path)
        assert message in str(error.value)
    with pytest.raises(InvalidFileError, match="no such file"):
        load_plan(tmp_path / "none.json")


def test_a_plan_without_a_variant_is_not_lowered(network: Network) -> None:
    s = search(network)
    plan = s.plan("test", greedy_chains(s))
    chains = tuple(replace(chain, variants={}) for chain in plan.chains)
    with pytest.raises(MismatchError, match=r"has no [cg]pu kernel variant for 'conv1'"):
        lower(network, replace(plan, chains=chains), s.cost.soc, Tuning())


def with_chain(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    first, *rest = content["chains"]
    return content | {"chains": [first | changes, *rest]}


@pytest.mark.parametrize(
    "strategy", [s for s in STRATEGIES.values() if not s.runs_plans], ids=lambda s: s.name
)
def test_every_strategy_makes_a_plan_that_lowers(strategy: Any, network: Network) -> None:
    plan: Plan = strategy.plan(network, SyntheticContext())
    assert plan.strategy == strategy.name
    assert plan.predicted_ms is not None
    assert plan.predicted_ms > 0
    partition_plan(network, plan, SOC)
    ratios = {c.gpu_ratio for c in plan.chains}
    if strategy.name in SINGLES:
        assert ratios == {float(strategy.name != "cpu")}
    if strategy.name in ("gpu-buffer", "gpu-image", "codl-buffer"):
        used = {v["gpu"] for c in plan.chains for v in c.variants.values() if "gpu" in v}
        assert {"_image" in name for name in used} == {strategy.name == "gpu-image"}
    if strategy.name == "mulayer":
        assert all(len(c.ops) == 1 for c in plan.chains)
        assert {c.dim for c in plan.chains if 0 < c.gpu_ratio < 1} == {"OC"}


def test_ideal_is_the_best_measured_split_of_every_op(network: Network, tmp_path: Path) -> None:
    dataset = Dataset.of(SOC.name, tmp_path)
    for layer in network.layers:
        for processor, speed in (("cpu", 1.0), ("gpu", 3.0)):
            for variant in registry.variants(layer.op, processor, SOC):  # type: ignore[arg-type]
                table = dataset.table(registry.target(variant, layer.op))
                for share in (0.3, 0.7, 1.0):
                    row = OpRow(
                        op=to_text(layer.op),
                        dim=layer.op.dims[0],
                        share=share,
                        part="",
                        latency_ms=12.0 * share / speed,
                        source="simulated",
                    )
                    if row.key not in {r.key for r in table.read()}:
                        table.append(row)
    limit = ideal.bound(network, SOC, dataset)
    # The CPU's 0.3 of 12 ms outlast the GPU's 0.7 at three times the speed; alone it takes 4 ms.
    assert limit.latency_ms == pytest.approx(3.6 * len(network.layers))
    assert {ratio for _, _, ratio, _ in limit.layers} == {0.7}
    with pytest.raises(CodlError, match="no measurement of 'conv1'"):
        ideal.bound(network, replace(SOC, name="new"), Dataset.of("new", tmp_path))


def test_two_processors_must_be_worth_it(network: Network) -> None:
    cost = CostModel(SOC, SyntheticPredictors())
    plan = best_plan(network, cost, "codl")
    alone_ms = [
        make_plan(
            network, cost, [chain_of(network.layers, "H", r)], strategy="codl", sharing="missing"
        ).predicted_ms
        for r in (0.0, 1.0)
    ]
    least_ms = min(ms for ms in alone_ms if ms is not None)
    for gain, taken in ((1.01 / WORTH, True), (0.99 / WORTH, False)):
        found = unless_alone(replace(plan, predicted_ms=least_ms / gain), network, cost)
        assert (len({chain.gpu_ratio for chain in found.chains} - {0.0, 1.0}) > 0) == taken
        assert found.strategy == plan.strategy
        if not taken:
            assert found.predicted_ms == least_ms
            assert len(found.chains) == 1
            assert "alone" in found.method


def test_a_stage_runs_in_the_order_of_the_co_executor(network: Network) -> None:
    """Both directions at once, worked out by hand."""
    to_cpu = {"transform": 0.5, "map": 0.1, "copy": 0.3, "unmap": 0.05}
    to_gpu = {"copy": 0.4, "unmap": 0.1, "transform": 0.6, "map": 0.2}
    parts = {"to_cpu": constant(to_cpu), "to_gpu": constant(to_gpu)}
    cost = CostModel(SOC, SyntheticPredictors(parts=parts))  # type: ignore[arg-type]
    shape = next(iter(network.inputs.values()))
    ways: tuple[Direction, ...] = ("to_gpu", "to_cpu")
    moves = [TransferCost.of(way, cost.sharing_parts(way, shape)) for way in ways]
    cpu, gpu = after_stage((1.0, 2.0), moves, 0.2, (10.0, 4.0), copies_ms=0.5)
    # The GPU transforms till 2.5. The CPU hands over from 1.0 to 1.5 and enqueues till 1.7; the GPU
    # takes it from 2.5 to 3.3, copies and computes to 7.8. The CPU waits for the map at 2.6, copies
    # to 2.95 and computes.
    assert gpu == pytest.approx(7.8)
    assert cpu == pytest.approx(2.95 + 10.0)
    # With nothing to wait for, enqueueing is what the CPU begins with.
    assert after_stage((1.0, 2.0), [], 0.2, (10.0, 4.0)) == pytest.approx((11.2, 6.0))


def constant(parts: dict[str, float]) -> dict[str, Line]:
    return {part: Line(ms) for part, ms in parts.items()}
