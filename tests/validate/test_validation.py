"""Plans that are right, plans with a faulty kernel, and models that drift: told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.devices import here
from support.faults import FAULTS, Faulty, Planted, default_of, every_kind, plant
from support.variants import with_variants

from codl.kernels.tuning import Tuning
from codl.measure.check_variants import OPS
from codl.plan.build_plan import preferring
from codl.runtime.placement import LocalSoc
from codl.validate.references import ModelAndSource
from codl.validate.validation import (
    ModelUnderTest,
    validate,
)

#: Of each kind of op the first.
ONE_EACH = tuple({text.partition(" ")[0]: text for text in reversed(OPS)}.values())


def bench_of(planted: Planted, soc: LocalSoc) -> ModelUnderTest:
    return ModelUnderTest(ModelAndSource(planted.network), here(soc), Tuning(), [planted.inputs])


def faulty_of(network: Any, soc: LocalSoc, folder: Path) -> dict[str, Faulty]:
    """Every layer with a variant that is faulty in one way or another."""
    faults = list(FAULTS)
    return {
        layer.name: Faulty(default_of(layer, soc), faults[number % len(faults)], folder)
        for number, layer in enumerate(network.layers)
    }


def test_kernels_of_every_kind_of_op_are_right(first_soc: LocalSoc) -> None:
    network, inputs = every_kind(ONE_EACH)
    plan = preferring(network, first_soc, "gpu")
    found = validate(bench_of(Planted(network, inputs, plan, ()), first_soc), plan)
    assert found.ok, found.diagnosis
    assert found.first_bad is None
    assert {one.part.layer.name for one in found.ops.checks} == {x.name for x in network.layers}
    assert found.ops.accumulated.keys() == {x.name for x in network.layers}


def test_a_fault_in_every_kind_of_op_is_named(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, inputs = every_kind(ONE_EACH)
    faulty = faulty_of(network, first_soc, tmp_path)
    with_variants(monkeypatch, *{(v.op_kind, v.name): v for v in faulty.values()}.values())
    planted = plant(network, inputs, first_soc, faulty)
    found = validate(bench_of(planted, first_soc), planted.plan)
    verdicts = {one.part.layer.name: one.verdict for one in found.ops.checks}
    assert [name for name, verdict in verdicts.items() if verdict == "ok"] == []
    assert set(verdicts.values()) >= {"wrong", "not a number"}
    assert found.first_bad is not None
    assert found.first_bad.part.layer.name == network.layers[0].name
    assert not found.is_right


def test_one_faulty_op_among_many_is_the_only_one_named(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, inputs = every_kind(ONE_EACH)
    layer = next(layer for layer in network.layers if layer.op.kind == "softmax")
    faulty = Faulty(default_of(layer, first_soc), "border", tmp_path)
    with_variants(monkeypatch, faulty)
    planted = plant(network, inputs, first_soc, {layer.name: faulty})
    found = validate(bench_of(planted, first_soc), planted.plan)
    assert [one.part.layer.name for one in found.bad] == [layer.name]
    assert found.first_bad is found.bad[0]
    assert not found.is_right
