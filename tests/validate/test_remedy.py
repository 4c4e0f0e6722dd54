"""Validation and fallbacks: of the faulty ops alone, and the smallest change that is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.devices import here
from support.faults import FAULTS, Faulty, default_of, every_kind, plant
from support.plans import image, make_plan, row
from support.variants import with_variants

from codl.engine.engine import Engine
from codl.ir import Network
from codl.ir.executable import GpuOp
from codl.ir.plan import OpFallback, Plan, load_plan
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.machine.placement import LocalSoc
from codl.measure.check_variants import OPS
from codl.plan.build_plan import preferring
from codl.validate.references import ModelAndSource
from codl.validate.remedy import find_remedy
from codl.validate.validation import ModelUnderTest, validate

#: Ops of some kinds, of which those with a convolution have several variants on the GPU.
KINDS = ("conv2d", "eltwise", "matmul", "softmax")
#: Of each kind of op the first.
ONE_EACH = tuple({text.partition(" ")[0]: text for text in reversed(OPS)}.values())
SOME = tuple(text for text in OPS if text.partition(" ")[0] in KINDS)


def bench_of(network: Network, inputs: Any, soc: LocalSoc) -> ModelUnderTest:
    return ModelUnderTest(ModelAndSource(network), here(soc), Tuning(), [inputs])


def test_a_fault_in_every_kind_of_op_is_named(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, inputs = every_kind(ONE_EACH)
    faults = [*FAULTS]
    faulty = {
        layer.name: Faulty(default_of(layer, first_soc), faults[at % len(faults)], tmp_path)
        for at, layer in enumerate(network.layers)
    }
    with_variants(monkeypatch, *{(v.op_kind, v.name): v for v in faulty.values()}.values())
    planted = plant(network, inputs, first_soc, faulty)
    found = validate(bench_of(network, inputs, first_soc), planted.plan)
    verdicts = {one.part.layer.name: one.verdict for one in found.checks}
    assert [name for name, verdict in verdicts.items() if verdict == "ok"] == []
    assert set(verdicts.values()) >= {"wrong", "not a number"}
    assert found.first_bad is not None
    assert found.first_bad.part.layer.name == network.layers[0].name
    assert not found.is_right


def test_only_faulty_ops_are_moved(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To another variant where there is one, and else to the CPU."""
    network, inputs = every_kind(
        tuple(text for text in SOME if not text.startswith("softmax in=2"))
    )
    chosen = {layer.op.kind: layer for layer in network.layers}.values()
    faulty = {
        layer.name: Faulty(default_of(layer, first_soc), fault, tmp_path)
        for layer, fault in zip(chosen, ("halo", "nan", "border", "overflow"), strict=True)
    }
    others = [v for v in registry.VARIANTS.values() if v.processor == "gpu"]
    others = [v for v in others if v.op_kind != "softmax"]
    with_variants(monkeypatch, *others, *faulty.values(), gpu=False)
    planted = plant(network, inputs, first_soc, faulty)
    bench = bench_of(network, inputs, first_soc)
    found = validate(bench, planted.plan)
    assert not found.is_right
    remedy = find_remedy(bench, found)
    assert remedy.ok
    assert remedy.whole is not None
    assert remedy.whole.cosine >= 0.9999
    assert {one.op for one in remedy.fallbacks} == {one.part.layer.name for one in found.bad}
    assert {one.op for one in remedy.fallbacks} == set(planted.names)
    before, after = (variants_of(one) for one in (planted.plan, remedy.plan))
    assert {name for name in before if before[name] != after[name]} == set(planted.names)
    instead = {one.op.rstrip("0123456789"): one.instead for one in remedy.fallbacks}
    assert instead["conv2d"].startswith("gpu"), "there are others on the GPU"
    assert instead["softmax"].startswith("cpu"), "there is no other"


def variants_of(plan: Plan) -> dict[str, Any]:
    return {name: own for chain in plan.chains for name, own in chain.variants.items()}


def test_the_next_run_is_right_from_the_start(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plan's file."""
    network = row(2)
    usual = default_of(network.layers[0], first_soc)
    faulty: Any = Faulty(usual, "border", tmp_path)
    with_variants(monkeypatch)
    registry.register(faulty, before=usual.name)
    bench = bench_of(network, image(network), first_soc)
    plan = preferring(network, first_soc, "gpu")
    found = validate(bench, plan)
    assert len(found.bad) == 2
    remedy = find_remedy(bench, found)
    (right,) = bench.expected(0).values()
    stored = load_plan(remedy.plan.save(tmp_path / "plan.json"))
    with Engine(network, stored, here(first_soc)) as engine:
        got = engine(image(network))
        variants = {s.variant for s in engine.executable.steps if isinstance(s, GpuOp)}
    assert faulty.name not in variants
    np.testing.assert_allclose(*got.values(), right, rtol=1e-3, atol=1e-3)


def test_a_part_of_a_split_op_falls_back_alone(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = row(3)
    middle = network.layers[1]
    faulty = Faulty(default_of(middle, first_soc), "halo", tmp_path)
    with_variants(monkeypatch, faulty)
    plan = make_plan(network, first_soc, [(3, "H", 0.5)], "missing")
    (chain,) = plan.chains
    changed = {**chain.variants[middle.name], "gpu": faulty.name}
    variants = {**chain.variants, middle.name: changed}
    plan = replace(plan, chains=(replace(chain, variants=variants),))
    bench = bench_of(network, image(network), first_soc)
    found = validate(bench, plan)
    assert [(one.part.layer.name, one.part.processor) for one in found.bad] == [
        (middle.name, "gpu")
    ]
    remedy = find_remedy(bench, found)
    assert remedy.ok
    (one,) = remedy.fallbacks
    assert (one.op, one.processor, one.variant) == (middle.name, "gpu", faulty.name)
    assert len(remedy.plan.chains) == 1, "another variant of the same processor is enough"


def test_half_precision_keeps_in_float32_what_overflows(first_soc: LocalSoc) -> None:
    """A convolution whose output no half can hold, and the one that reads it."""
    network = row(5)
    layers = list(network.layers)
    for number, factor in ((1, 1e5), (2, 1e-5)):
        own = layers[number]
        weights = {name: (value * factor).astype(np.float32) for name, value in own.weights.items()}
        layers[number] = replace(own, weights=weights)
    network = replace(network, layers=tuple(layers))
    bench = bench_of(network, image(network), first_soc)
    plan = preferring(network, first_soc.at("half_storage"), "gpu")
    assert all(own["gpu"].endswith("_fp16") for own in variants_of(plan).values())
    found = validate(bench, plan)
    verdicts = {one.part.layer.name: one.verdict for one in found.checks}
    names = [layer.name for layer in layers]
    assert [verdicts[name] for name in (names[0], names[3], names[4])] == ["ok"] * 3
    assert verdicts[names[1]] == "overflow"
    assert {one.part.layer.name for one in found.bad} == {names[1], names[2]}
    remedy = find_remedy(bench, found)
    assert remedy.ok
    kept = {one.op for one in remedy.fallbacks}
    assert {names[1], names[2]} <= kept
    stored = {name: own["gpu"].endswith("_fp16") for name, own in variants_of(remedy.plan).items()}
    assert {name for name, half in stored.items() if not half} == kept
    assert any(stored.values())


def test_a_model_that_drifts_has_the_fewest_ops_in_float32(first_soc: LocalSoc) -> None:
    """Every op is right for halves, and the outputs are wanted closer than halves give them."""
    network = row(6)
    bench = bench_of(network, image(network), first_soc)
    plan = preferring(network, first_soc.at("half_storage"), "gpu")
    loose = validate(bench, plan, cosine=0.999)
    assert loose.ok
    wanted = 1 - (1 - loose.whole.worst.cosine) / 4
    found = validate(bench, plan, cosine=wanted)
    assert found.first_bad is None
    assert not found.is_right
    assert "drifts" in found.diagnosis
    remedy = find_remedy(bench, found)
    assert remedy.ok
    assert 0 < len(remedy.fallbacks) < 6
    assert all(isinstance(one, OpFallback) for one in remedy.fallbacks)
