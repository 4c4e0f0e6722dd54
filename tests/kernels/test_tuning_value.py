"""Tuning as a value: which choices hold for which ops; no device, no files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.simulated import SOC

from codl.ir import Op, parse, to_text
from codl.ir.records.tuned import Choices, Trial, Tuned
from codl.kernels import registry
from codl.kernels.base import Choice
from codl.kernels.source import source_digest
from codl.kernels.tuning import Tuning

OP = parse("conv2d in=1x64x28x28 oc=64 kernel=3x3 pad=1")
OTHER = parse("conv2d in=1x32x28x28 oc=64 kernel=3x3 pad=1")


@pytest.fixture
def variant() -> Any:
    return registry.find(OP, "gpu_winograd")


def result(variant: Any, op: Op, choice: Choice, **changes: Any) -> Tuned:
    tuned = Tuned(
        op=to_text(op),
        variant=variant.name,
        source=source_digest(variant.plan(op, SOC, choice)),
        choice=choice,
        default_ms=2.0,
        best_ms=1.0,
        complete=True,
        trials=(Trial(choice, 1.0),),
        measured="2026-01-01",
        codl="0",
    )
    return replace(tuned, **changes)


def test_another_source_or_an_unknown_choice_does_not_hold(variant: Any) -> None:
    other = variant.choices(OP, SOC)[1]
    for stale in (
        result(variant, OP, other, source="another"),
        replace(result(variant, OP, other), choice={"nothing": 1}),
    ):
        assert Tuning.of([stale]).choice(variant, OP, SOC) is None


def test_a_batch_takes_the_choice_of_one_image_where_images_are_computed_one_by_one() -> None:
    batch = parse("conv2d in=3x64x28x28 oc=64 kernel=3x3 pad=1")
    for name in ("gpu_winograd", "gpu_direct", "gpu_gemm"):
        variant: Any = registry.find(OP, name)
        other = variant.choices(OP, SOC)[-1]
        of_one = Tuning.of([result(variant, OP, other)]).choice(variant, batch, SOC)
        assert of_one == (None if variant.plan(batch, SOC).whole_batch else other)


def test_the_fingerprint_tells_choices_apart_and_nothing_else(variant: Any) -> None:
    first, second = (result(variant, OP, choice) for choice in variant.choices(OP, SOC)[1:3])
    known = Tuning.of([first]).fingerprint
    assert known not in ("", Tuning.of([second]).fingerprint)
    assert Tuning.of([replace(first, best_ms=0.5, trials=(), measured="")]).fingerprint == known
    both = [first, result(variant, OTHER, first.choice)]
    assert Tuning.of(both).fingerprint == Tuning.of(both[::-1]).fingerprint != known
    default = replace(first, best_ms=2.0)
    assert Tuning.of([default]).fingerprint == "", "the default won"


def test_another_process_is_sent_the_same_choices(variant: Any) -> None:
    """Trials are not sent."""
    tuning = Tuning.of([result(variant, OP, variant.choices(OP, SOC)[1])])
    sent = msgspec.convert(msgspec.to_builtins(tuning.choices), Choices)
    assert not any(result.trials for result in sent.results)
    there = Tuning.of_choices(sent)
    assert there.fingerprint == tuning.fingerprint
    assert there.choice(variant, OP, SOC) == tuning.choice(variant, OP, SOC) is not None
