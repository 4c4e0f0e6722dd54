"""Tuning: what is searched, and that measuring, training and benching see its choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.devices import here
from support.simulated import SOC
from support.variants import with_variants
from support.whole_way import QUICK

from codl.errors import CodlWarning, DeviceError, MismatchError
from codl.ir import Op, parse, to_text
from codl.ir.columns import FeatureColumns
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.records.soc import Soc
from codl.ir.records.tuned import Trial, Tuned
from codl.kernels import registry
from codl.kernels.base import Choice, KernelPlan
from codl.kernels.conv2d.gpu_direct import GpuDirect
from codl.kernels.source import source_digest
from codl.kernels.tiling import ChoiceColumns
from codl.kernels.tuning import Tuning
from codl.measure import tuner
from codl.measure.budget import Budget
from codl.measure.collector import Collection
from codl.measure.dataset import Dataset
from codl.measure.op_runner import bench, operands
from codl.measure.runner import Bench
from codl.measure.tasks import OpTask, make_tasks
from codl.measure.timing import Protocol
from codl.measure.tuner import TuneTask, check_same, is_faster, propose, tune
from codl.predict import features
from codl.predict.training import train
from codl.runtime.opencl import OpenClDevice
from codl.targets.local import LocalTarget

OP = parse("conv2d in=1x16x12x12 oc=32 kernel=3 pad=1")
SLOW, FAST, WRONG, BROKEN = ({"repeats": repeats} for repeats in (30, 1, 0, -1))


class Repeating(GpuDirect):
    """A direct convolution that a choice repeats: a slow default, and choices of every kind."""

    def __init__(self, choices: tuple[Choice, ...] = (SLOW, BROKEN, FAST, WRONG)) -> None:
        super().__init__()
        self.name = "gpu_repeating"
        self.all = choices

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        return self.all

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        return {"repeats": np.full(len(ops), float(self.all[0]["repeats"]))}

    def feature_columns(
        self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        repeats = (choice or self.default_columns(ops, soc))["repeats"]
        return {"repeats": np.broadcast_to(np.float64(repeats), len(ops))}

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        plan, repeats = GpuDirect().plan(op, soc), (choice or self.all[0])["repeats"]
        if repeats < 0:
            return replace(plan, defines={**plan.defines, "V": 5})
        launches = plan.launches * repeats
        if not repeats:  # one that computes only a part
            first = plan.launches[0]
            # One work-group: a small map may lie in it, but not all channels.
            one = first.local_size or (1,) * len(first.global_size)
            launches = (replace(first, global_size=one),)
        return replace(plan, launches=launches)


@pytest.fixture
def variant(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = Repeating()
    with_variants(monkeypatch, made)
    return made


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where every kernel takes a tenth of a millisecond, whatever else runs on it."""

    def measured(works: Any, protocol: Protocol) -> list[list[float]]:
        return [[1e-4 * len(work._kernels)] * 15 for work in works]

    monkeypatch.setattr(tuner, "measure_together", measured)


def result(variant: Any, soc: Soc, choice: Choice, op: Any = OP, **changes: Any) -> Tuned:
    made = Tuned(
        op=to_text(op),
        variant=variant.name,
        source=source_digest(variant.plan(op, soc, choice)),
        choice=choice,
        default_ms=2.0,
        best_ms=1.0,
        complete=True,
        trials=(Trial(choice, 1.0), Trial(BROKEN, None, "no luck")),
        measured="now",
        codl="0",
    )
    return replace(made, **changes)


def tuned(*given: Any, **more: Any) -> list[Any]:
    """The results of `tune`."""
    found: list[Any] = []
    tune(*given, emit=lambda kind, index, one: kind == "done" and found.append(one), **more)
    return found


@pytest.mark.usefixtures("_quiet")
def test_the_fastest_choice_is_found_and_kept(gpu: OpenClDevice, variant: Any) -> None:
    soc, task = gpu.soc, TuneTask(OP, variant)
    (found,) = tuned(gpu, [task])
    assert found.choice == FAST
    assert found.complete
    assert (found.default_ms, found.best_ms) == (pytest.approx(3.0), pytest.approx(0.1))
    trials = {trial.choice["repeats"]: trial for trial in found.trials}
    assert set(trials) == {30, 1, 0, -1}
    assert trials[-1].latency_ms is trials[0].latency_ms is None
    assert "does not build" in trials[-1].reason
    assert "differs from the default's" in trials[0].reason
    tuning = Tuning.of([found])
    assert tuning.choice(variant, OP, soc) == FAST
    assert len(tuning.plan(variant, OP, soc).launches) == 1
    assert tuning.features(variant, OP, soc) == {"repeats": 1.0}
    before = gpu.programs.compiled
    (again,) = tuned(gpu, [task], [found])
    assert (again.choice, again.trials) == (found.choice, found.trials)
    assert gpu.programs.compiled == before


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_so_in_both_and_hides_nothing(odd: float) -> None:
    variant = GpuDirect()
    expected = np.linspace(-4, 4, 50, dtype=np.float32)
    with_odd, zero, other = expected.copy(), expected.copy(), expected.copy()
    with_odd[7], zero[7], other[7] = odd, 0, np.inf if np.isnan(odd) else -odd
    for rival in (zero, other):
        assert not _is_same(variant, with_odd, rival)
        assert not _is_same(variant, rival, with_odd)
    assert _is_same(variant, with_odd.copy(), with_odd)
    faulty = with_odd.copy()
    faulty[9] += 4e-3
    assert not _is_same(variant, faulty, with_odd)


def test_a_tap_that_skips_a_block_of_channels_is_refused() -> None:
    op = parse("conv2d in=1x512x7x7 oc=8 kernel=3x3 pad=1")
    inputs, weights = operands(op)
    faulty = {name: array.copy() for name, array in weights.items()}
    faulty["weight"][:, -4:, 2, 2] = 0
    expected, output = (op.reference(inputs, own) for own in (weights, faulty))
    assert 0 < np.abs(output - expected).max() < 0.05 * np.abs(expected).max()
    assert not _is_same(GpuDirect(), output, expected)


def _is_same(variant: Any, output: Any, default: Any) -> bool:
    try:
        check_same(variant, output, default)
    except DeviceError:
        return False
    return True


def test_training_planning_and_running_see_the_same_choice(soc: Soc, variant: Any) -> None:
    tuning = Tuning.of([result(variant, soc, FAST)])

    def repeats(op: Op, tuning: Tuning) -> float:
        table = features.table("variant", registry.target(variant, op), [op], soc, tuning)
        return float(table.values[0, table.names.index("repeats")])

    assert (repeats(OP, Tuning()), repeats(OP, tuning)) == (30.0, 1.0)
    assert repeats(parse("conv2d in=1x16x12x12 oc=48 kernel=3 pad=1"), tuning) == 30.0
    task = OpTask((), variant.name, "gpu", OP, "H", 1.0, OP)
    works: list[Any] = [
        Bench(here(soc).device, "", tuning=own).work(task) for own in (Tuning(), tuning)
    ]
    assert [len(work._kernels) for work in works] == [30, 1]


def test_where_every_choice_fails_there_is_a_reason(gpu: OpenClDevice, variant: Any) -> None:
    variant.all = (BROKEN, {"repeats": -2})
    (failure,) = tuned(gpu, [TuneTask(OP, variant)])
    assert "does not build" in failure.reason
    assert all(trial.latency_ms is None for trial in failure.trials)


@pytest.mark.usefixtures("_quiet")
def test_a_search_that_was_cut_short_goes_on(gpu: OpenClDevice, variant: Any) -> None:
    soc = gpu.soc
    cut = result(variant, soc, SLOW, complete=False, trials=(Trial(SLOW, 1.0), Trial(FAST, 0.9)))
    assert tuned(gpu, [TuneTask(OP, variant)], [cut], budget=Budget(0)) == []
    (found,) = tuned(gpu, [TuneTask(OP, variant)], [cut])
    assert found.complete
    assert Trial(FAST, 0.9) in found.trials, "measured before, and not again"
    assert found.choice == FAST


def test_nothing_is_tuned_under_another_drivers_name(soc: Soc, variant: Any) -> None:
    stale = replace(soc, gpu=replace(soc.gpu, driver="older"))
    with (
        pytest.warns(CodlWarning, match="the SoC file says 'older': `codl soc detect"),
        pytest.raises(MismatchError, match="writes it anew"),
    ):
        tune(here(stale).device, [TuneTask(OP, variant)])


def fake_trials(choices: Any, cost: Callable[[Choice], float]) -> dict[Any, Trial]:
    trials: dict[Any, Trial] = {}
    while proposed := propose(choices, trials):
        for choice in proposed[:5]:
            trials[tuple(sorted(choice.items()))] = Trial(choice, cost(choice))
    return trials


def test_few_choices_are_all_tried_and_many_are_searched() -> None:
    def cost(choice: Choice) -> float:
        return 1.0 + sum(abs(value - 3) for value in choice.values())

    few = [{"a": a, "b": b} for a, b in product(range(6), range(6))]
    assert len(fake_trials(few, cost)) == len(few)
    many = [dict(zip("abcd", v, strict=True)) for v in product(range(5), repeat=4)]
    trials = fake_trials(many, cost)
    assert len(trials) < len(many) / 4
    assert min(trial.latency_ms or 9 for trial in trials.values()) == 1.0
    assert tuple(sorted(many[0].items())) in trials, "the default is always tried"


def test_a_gain_within_the_noise_is_none() -> None:
    random = np.random.default_rng(0)
    base = 1 + 0.1 * random.random(50)
    assert is_faster(0.9 * base, base)
    assert not is_faster(0.985 * base, base), "too small to count"
    noisy = random.permutation(base) * np.where(random.random(50) < 0.5, 0.9, 1.3)
    assert not is_faster(noisy, base), "won in half of the rounds"
    disturbed = 0.8 * base + 5 * (random.random(50) < 0.2)
    assert is_faster(disturbed, base), "a few bad rounds do not count"
    assert not is_faster(base, base)


def test_a_bench_has_every_variant_or_its_reason(soc: Soc, variant: Any) -> None:
    variant.all = (BROKEN, FAST)
    quick = Protocol(warm_up=1, min_samples=1, min_time_s=0.0, max_time_s=0.0)
    rows, refused = bench(here(soc).device, OP, protocol=quick)
    names = {row.variant for row in rows} | {each.variant for each in refused}
    assert names == {v.name for v in registry.of_kind("conv2d")}
    assert {row.processor for row in rows} == {"cpu", "gpu"}
    assert all(row.latency.median > 0 and row.gflops > 0 for row in rows)
    reasons = {each.variant: each.reason for each in refused}
    assert "does not build" in reasons["gpu_repeating"]
    assert reasons["gpu_depthwise"].startswith("groups, input and output channels must be equal")
    tuning = Tuning.of([result(variant, soc, FAST)])
    rows, _ = bench(here(soc).device, OP, tuning, protocol=quick)
    assert {row.variant: row.choice for row in rows}["gpu_repeating"] == FAST


def test_training_on_what_was_measured_before_the_tuning_says_so(
    first_soc: Soc, variant: Any, tmp_path: Path
) -> None:
    soc, dataset = first_soc, Dataset.of("test", tmp_path)
    tasks = make_tasks([parse("fc in=1x32x5x5 oc=40")], soc, [0.5, 1.0])
    Collection(LocalTarget(soc), dataset, tasks, rounds=QUICK).run()
    how = {"predictors": ["codl_linear"], "folder": tmp_path / "predictors"}
    assert "tuned" not in "".join(train(soc, dataset, **how).notes)  # type: ignore[arg-type]
    tuning = Tuning.of([result(variant, soc, FAST)])
    (note,) = (n for n in train(soc, dataset, tuning, **how).notes if "tuned" in n)  # type: ignore[arg-type]
    assert "Kernels were tuned after run1" in note


OTHER = parse("conv2d in=1x32x28x28 oc=64 kernel=3x3 pad=1")


@pytest.fixture
def winograd() -> Any:
    return registry.find(OP, "gpu_winograd")


def test_another_source_or_an_unknown_choice_does_not_hold(winograd: Any) -> None:
    other = winograd.choices(OP, SOC)[1]
    for stale in (
        result(winograd, SOC, other, source="another"),
        replace(result(winograd, SOC, other), choice={"nothing": 1}),
    ):
        assert Tuning.of([stale]).choice(winograd, OP, SOC) is None


def test_a_batch_takes_the_choice_of_one_image_where_images_are_computed_one_by_one() -> None:
    batch = parse("conv2d in=3x16x12x12 oc=32 kernel=3 pad=1")
    for name in ("gpu_winograd", "gpu_direct", "gpu_gemm"):
        variant: Any = registry.find(OP, name)
        other = variant.choices(OP, SOC)[-1]
        of_one = Tuning.of([result(variant, SOC, other)]).choice(variant, batch, SOC)
        assert of_one == (None if variant.plan(batch, SOC).whole_batch else other)


def test_the_fingerprint_tells_choices_apart_and_nothing_else(winograd: Any) -> None:
    first, second = (result(winograd, SOC, choice) for choice in winograd.choices(OP, SOC)[1:3])
    known = Tuning.of([first]).fingerprint
    assert known not in ("", Tuning.of([second]).fingerprint)
    assert Tuning.of([replace(first, best_ms=0.5, trials=(), measured="")]).fingerprint == known
    both = [first, result(winograd, SOC, first.choice, OTHER)]
    assert Tuning.of(both).fingerprint == Tuning.of(both[::-1]).fingerprint != known
    default = replace(first, best_ms=2.0)
    assert Tuning.of([default]).fingerprint == "", "the default won"


def test_another_process_is_sent_the_same_choices(winograd: Any) -> None:
    """Trials are not sent."""
    tuning = Tuning.of([result(winograd, SOC, winograd.choices(OP, SOC)[1])])
    sent = msgspec.convert(msgspec.to_builtins(tuning.choices), tuple[Tuned, ...])
    assert not any(result.trials for result in sent)
    there = Tuning.of(sent)
    assert there.fingerprint == tuning.fingerprint
    assert there.choice(winograd, OP, SOC) == tuning.choice(winograd, OP, SOC) is not None
