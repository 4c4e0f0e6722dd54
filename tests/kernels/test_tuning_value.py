"""Tuning as a value: which choices hold for which ops; no device, no files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.simulated import SOC

from codl.ir import Op, parse, to_text
from codl.kernels import registry
from codl.kernels.base import Choice
from codl.kernels.cpu_device.registers import typical_ops
from codl.kernels.source import source_digest
from codl.kernels.tuning import Tuning
from codl.records.soc import Soc
from codl.records.tuned import Choices, Trial, Tuned

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


def test_nothing_is_tuned_by_default(variant: Any) -> None:
    tuning = Tuning()
    assert tuning.choice(variant, OP, SOC) is None
    assert tuning.plan(variant, OP, SOC).defines == variant.plan(OP, SOC).defines
    assert tuning.features(variant, OP, SOC) == variant.features(OP, SOC)
    assert tuning.fingerprint == ""


def test_a_result_holds_for_its_op_and_variant_alone(variant: Any) -> None:
    other = variant.choices(OP, SOC)[1]
    tuning = Tuning.of([result(variant, OP, other)], SOC)
    assert tuning.choice(variant, OP, SOC) == other
    assert tuning.plan(variant, OP, SOC).defines == variant.plan(OP, SOC, other).defines
    assert tuning.features(variant, OP, SOC) == variant.features(OP, SOC, other)
    assert tuning.choice(variant, OTHER, SOC) is None
    assert tuning.choice(registry.find(OP, "gpu_direct"), OP, SOC) is None  # type: ignore[arg-type]


def test_another_source_or_an_unknown_choice_does_not_hold(variant: Any) -> None:
    other = variant.choices(OP, SOC)[1]
    for stale in (
        result(variant, OP, other, source="another"),
        replace(result(variant, OP, other), choice={"nothing": 1}),
    ):
        assert Tuning.of([stale], SOC).choice(variant, OP, SOC) is None


def test_a_batch_takes_the_choice_of_one_image_where_images_are_computed_one_by_one() -> None:
    batch = parse("conv2d in=3x64x28x28 oc=64 kernel=3x3 pad=1")
    for name in ("gpu_winograd", "gpu_direct", "gpu_gemm"):
        variant: Any = registry.find(OP, name)
        other = variant.choices(OP, SOC)[-1]
        of_one = Tuning.of([result(variant, OP, other)], SOC).choice(variant, batch, SOC)
        assert of_one == (None if variant.plan(batch, SOC).whole_batch else other)


def test_features_of_many_ops_are_those_of_each(variant: Any) -> None:
    other = variant.choices(OP, SOC)[1]
    tuning, ops = Tuning.of([result(variant, OP, other)], SOC), [OTHER, OP, OTHER]
    rows = [tuning.features(variant, op, SOC) for op in ops]
    assert tuning.feature_rows(variant, ops, SOC) == rows
    columns = tuning.feature_columns(variant, ops, SOC)
    assert [{name: own[at] for name, own in columns.items()} for at in range(3)] == rows


def test_later_results_take_the_place_of_earlier_ones(variant: Any) -> None:
    first, second = (result(variant, OP, choice) for choice in variant.choices(OP, SOC)[1:3])
    tuning = Tuning.of([first], SOC).with_results([second], SOC)
    assert tuning == Tuning.of([second], SOC)
    assert tuning.choice(variant, OP, SOC) == second.choice


def test_the_fingerprint_tells_choices_apart_and_nothing_else(variant: Any) -> None:
    first, second = (result(variant, OP, choice) for choice in variant.choices(OP, SOC)[1:3])
    known = Tuning.of([first], SOC).fingerprint
    assert known not in ("", Tuning.of([second], SOC).fingerprint)
    assert (
        Tuning.of([replace(first, best_ms=0.5, trials=(), measured="")], SOC).fingerprint == known
    )
    both = [first, result(variant, OTHER, first.choice)]
    assert Tuning.of(both, SOC).fingerprint == Tuning.of(both[::-1], SOC).fingerprint != known
    default = replace(first, best_ms=2.0)
    assert Tuning.of([default], SOC).fingerprint == "", "the default won"


CPU = replace(
    SOC, gpu=replace(SOC.gpu, type="cpu", vector_width=8, vector_registers=16, wave_size=1)
)


def found_best(variant: Any, blocks: int, soc: Soc = CPU, count: int = 4) -> list[Tuned]:
    """Typical ops that are fastest with so many blocks, by a search of more than the default."""
    results = []
    for op in typical_ops()[:count]:
        if variant.refusal(op, soc) is None:
            choice = variant.block_choice(op, soc, blocks)
            usual = variant.choices(op, soc)[0]
            own = result(variant, op, choice, best_ms=1.0 if choice != usual else 2.0)
            source = source_digest(variant.plan(op, soc, choice))
            results.append(
                replace(own, source=source, trials=(Trial(usual, 2.0), Trial(choice, 1.0)))
            )
    return results


@pytest.mark.parametrize("name", ["gpu_direct", "gpu_winograd"])
def test_an_op_that_was_not_tuned_has_the_blocks_of_typical_ones(name: str) -> None:
    variant: Any = registry.find(OP, name)
    tuning, usual = Tuning.of(found_best(variant, 4), CPU), variant.choices(OP, CPU)[0]
    assert usual["outs"] == 2
    wide = parse("conv2d in=1x64x28x28 oc=96 kernel=3x3 pad=1")
    choice = tuning.choice(variant, wide, CPU)
    assert choice is not None
    assert choice["outs"] == 4
    assert tuning.plan(variant, wide, CPU).defines["OUTS"] == 4
    row = tuning.features(variant, wide, CPU)
    assert row == variant.features(wide, CPU, choice) != variant.features(wide, CPU)
    assert tuning.feature_rows(variant, [OP, wide], CPU)[1] == row
    columns = tuning.feature_columns(variant, [OP, wide], CPU)
    assert {key: own[1] for key, own in columns.items()} == row
    assert Tuning().choice(variant, wide, CPU) is None


def test_own_results_go_before_those_of_typical_ops() -> None:
    variant: Any = registry.find(OP, "gpu_direct")
    own = variant.block_choice(OP, CPU, 1)
    source = source_digest(variant.plan(OP, CPU, own))
    tuning = Tuning.of(
        [*found_best(variant, 4), replace(result(variant, OP, own), source=source)], CPU
    )
    assert tuning.choice(variant, OP, CPU) == own
    assert tuning.choice(variant, OTHER, CPU) == variant.block_choice(OTHER, CPU, 4)


def test_one_typical_op_is_not_enough_and_neither_is_a_tie() -> None:
    variant: Any = registry.find(OP, "gpu_direct")
    assert Tuning.of(found_best(variant, 4, count=1), CPU).blocks == {}
    usual, others = found_best(variant, 2), found_best(variant, 4)
    assert Tuning.of(usual, CPU).blocks == {}
    assert Tuning.of([*usual[:2], *others[2:]], CPU).blocks == {}
    assert Tuning.of([*usual[:1], *others[1:]], CPU).blocks == {("conv2d", "gpu_direct"): 4}
    stopped = [replace(own, trials=own.trials[:1]) for own in others]
    assert Tuning.of(stopped, CPU).blocks == {}, "only the default had its turn"
    assert (
        Tuning.of(others, CPU).fingerprint != Tuning.of([*usual[:1], *others[1:]], CPU).fingerprint
    )


def test_blocks_of_another_kernel_source_do_not_hold() -> None:
    variant: Any = registry.find(OP, "gpu_direct")
    old = [replace(own, source="older") for own in found_best(variant, 4)]
    assert Tuning.of(old, CPU).blocks == {}


def test_what_convolutions_voted_for_is_no_other_kinds() -> None:
    """Ops of several kinds have a `gpu_direct`; only convolutions were tuned."""
    direct: Any = registry.find(OP, "gpu_direct")
    alike = [v for v in registry.VARIANTS.values() if v.name == direct.name]
    assert len({variant.op_kind for variant in alike}) > 5
    tuning = Tuning.of(found_best(direct, 4), CPU)
    assert tuning.blocks == {("conv2d", direct.name): 4}
    pooling = parse("pooling in=1x64x28x28 kernel=2x2 stride=2 mode=max")
    variant: Any = registry.find(pooling, "gpu_direct")
    assert tuning.choice(variant, pooling, CPU) is None
    assert tuning.feature_rows(variant, [pooling], CPU) == [variant.features(pooling, CPU)]


def test_another_process_is_sent_the_same_choices() -> None:
    """Trials are not sent, and typical ops vote by what was tried: their vote is, too."""
    variant: Any = registry.find(OP, "gpu_direct")
    tuning = Tuning.of(found_best(variant, 4), CPU)
    sent = msgspec.convert(msgspec.to_builtins(tuning.choices), Choices)
    assert not any(result.trials for result in sent.results)
    there = Tuning.of_choices(sent)
    assert there.fingerprint == tuning.fingerprint
    for op in (OP, OTHER, *typical_ops()):
        assert there.choice(variant, op, CPU) == tuning.choice(variant, op, CPU) is not None


def test_the_fingerprint_tells_votes_apart() -> None:
    """A search that was cut short does not vote: its choice is the same, and others win."""
    variant: Any = registry.find(OP, "gpu_direct")
    usual, others = found_best(variant, 2), found_best(variant, 4)
    tie = Tuning.of([*usual[:2], *others[2:]], CPU)
    cut = [replace(result, trials=result.trials[:1]) for result in usual[:2]]
    won = Tuning.of([*cut, *others[2:]], CPU)
    assert (tie.blocks, won.blocks) == ({}, {("conv2d", "gpu_direct"): 4})
    assert tie.fingerprint != won.fingerprint
