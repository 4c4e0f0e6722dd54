"""The planning loop on a scripted device: the plan taken, the profile kept, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.devices import here
from support.plans import image, row
from support.references import converted
from support.scripted_target import LOAD_S, LOCAL, ScriptedTarget, context_of
from support.synthetic_predictors import SyntheticContext, SyntheticPredictors, inside

from codl.engine.engine import Engine
from codl.errors import DeviceError, MismatchError
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network
from codl.ir.executable import Executable
from codl.ir.records.profile import load_profile
from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.measure.timing import AnchorTime, TimedTogether
from codl.plan.build_plan import default_plan
from codl.plan.corrections import waiting
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.price import walk
from codl.plan.strategies import device_loop, find
from codl.plan.strategies.base import Profiling
from codl.plan.strategies.device_loop import keep_run

#: Two processors that share no memory bandwidth: the GPU is 1.3 times as fast.
LAWS = SyntheticPredictors.with_all_terms(
    flops=2e6, gpu=1.3, inside={"cpu": inside(0.004, 0.0), "gpu": inside(0.001, 0.0)}
)


@pytest.fixture(scope="module")
def network() -> Network:
    """Ten convolutions that either processor computes in about the same time."""
    b = ModelBuilder("ten")
    x = b.input("image", (1, 3, 96, 96))
    for number, channels in enumerate((32, 32, 48, 48, 64, 64, 80, 80, 96, 96)):
        x = b.relu(b.conv(x, channels, 3, pad=1))
        if number in (3, 6):
            x = b.max_pool(x, 2, 2)
    b.output(x)
    return converted(b)


def scripted(network: Network, **how: Any) -> ScriptedTarget:
    return ScriptedTarget(covered(CostModel(LOCAL, LAWS), network), **how)


def executable_of(network: Network, plan: Any, context: SyntheticContext) -> Executable:
    return lower(network, plan, context.local, context.tuning)


SHARDS_UNLIKE_WHOLE = {"alone": {"cpu": 1.5}, "shards": {"cpu": 1.1}}


@pytest.mark.parametrize("how", [{"slower": 30.0}, SHARDS_UNLIKE_WHOLE, {"layers": 0.3}])
def test_the_plan_is_split_and_balanced_however_slow_or_mispredicted_the_device_is(
    how: dict[str, Any], network: Network, tmp_path: Path
) -> None:
    target = scripted(network, **how)
    context = context_of(target, LAWS, Profiling(tmp_path))
    plan = find("codl").plan(network, context)
    assert plan.is_split
    executable = executable_of(network, plan, context)
    assert waiting(target.times(executable)) <= 0.05
    ran_ms = [walk(each, target.times(each)).latency_ms for each in target.loaded]
    chosen_ms = walk(executable, target.times(executable)).latency_ms
    assert chosen_ms == pytest.approx(min(ran_ms))
    # Loading and running, in runs of the faster processor alone.
    alone_ms = sorted(ms for ms, each in zip(ran_ms, target.loaded, strict=True)
                      if not (each.nets and each.needs_gpu))[0]  # fmt: skip
    assert 1e3 * target.ran_s <= 60 * alone_ms


def test_a_burst_of_other_work_in_some_comparisons_changes_no_choice(
    network: Network, tmp_path: Path
) -> None:
    chosen = []
    for disturbed in ((), range(1, 100, 2)):
        target = scripted(network, layers=0.3, disturbed=disturbed)
        context = context_of(target, LAWS, Profiling(tmp_path / str(len(disturbed))))
        plan = find("codl").plan(network, context)
        assert plan.is_split
        executable = executable_of(network, plan, context)
        chosen.append(walk(executable, target.times(executable)).latency_ms)
    assert chosen[1] == pytest.approx(chosen[0])


def test_a_plan_that_fails_when_a_comparison_is_repeated_is_not_kept(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = scripted(network, layers=0.3, disturbed=range(1, 100, 2))
    compared: list[set[str]] = []
    failed: set[str] = set()

    def time(models: Any, effort: Any, *, anchors: Any = None) -> TimedTogether:
        found = ScriptedTarget.time(target, models, effort, anchors=anchors)
        if not failed and compared and set(models) == compared[-1]:
            failed.update(set(models) - set.union(*compared[:-1]))
            assert failed
            left = {name: ms for name, ms in found.latency_ms.items() if name not in failed}
            found = replace(found, latency_ms=left, failed=dict.fromkeys(failed, "It was lost."))
        compared.append(set(models))
        return found

    monkeypatch.setattr(target, "time", time)
    find("codl").plan(network, context_of(target, LAWS, Profiling(tmp_path)))
    assert failed
    assert failed.isdisjoint(compared[-1])
    (file,) = tmp_path.rglob("*.json")
    assert failed.isdisjoint(run.plan.fingerprint for run in load_profile(file).runs)


def test_two_processors_must_be_worth_it(network: Network, tmp_path: Path) -> None:
    """Where shards take twice as long, one processor alone is taken."""
    target = scripted(network, shards={"cpu": 2.5, "gpu": 2.5})
    plan = find("codl").plan(network, context_of(target, LAWS, Profiling(tmp_path)))
    assert not plan.is_split


def test_a_plan_time_goes_on_where_rounds_gain_nothing(network: Network, tmp_path: Path) -> None:
    usual, longer = scripted(network), scripted(network)
    find("codl").plan(network, context_of(usual, LAWS, Profiling(tmp_path / "usual")))
    context = context_of(longer, LAWS, Profiling(tmp_path / "longer"), plan_time_s=120.0)
    begin = longer.now
    find("codl").plan(network, context)
    assert len(longer.loaded) > len(usual.loaded)
    assert longer.now - begin < 120.0 + 20 * LOAD_S


def test_what_was_measured_is_kept_and_nothing_runs_again(network: Network, tmp_path: Path) -> None:
    first = scripted(network)
    plan = find("codl").plan(network, context_of(first, LAWS, Profiling(tmp_path)))
    again = scripted(network)
    context = context_of(again, LAWS, Profiling(tmp_path))
    assert find("codl").plan(network, context).chains == plan.chains
    assert not again.loaded


def test_what_another_run_shows_is_kept_and_worth_one_more_plan(
    network: Network, tmp_path: Path
) -> None:
    target = scripted(network, layers=0.3)
    context = context_of(target, LAWS, Profiling(tmp_path))
    plan = find("codl").plan(network, context)
    with Engine(network, plan, target) as engine:  # type: ignore[arg-type]
        keep_run(engine, context, 1e6)
    (file,) = tmp_path.rglob("*.json")
    kept = load_profile(file).run_of(plan)
    assert kept is not None
    assert kept.latency_ms < 1e6
    again = scripted(network, layers=0.3)
    find("codl").plan(network, context_of(again, LAWS, Profiling(tmp_path)))
    assert len(again.loaded) <= 2  # one plan, and the fastest before


@pytest.mark.parametrize("unlike", ["driver", "network", "tuning", "ncnn"])
def test_a_profile_of_something_else_is_refused_by_name_and_made_anew_where_it_lies(
    unlike: str, network: Network, tmp_path: Path
) -> None:
    find("codl").plan(network, context_of(scripted(network), LAWS, Profiling(tmp_path)))
    (file,) = tmp_path.rglob("*.json")
    profile = load_profile(file)
    if unlike in ("tuning", "network"):
        replace(profile, **{unlike: "other"}).save(file)
    else:
        replace(profile, device={**profile.device, unlike: "0.1"}).save(file)
    notes: list[str] = []
    with pytest.raises(MismatchError, match=f"is of the {unlike} "):
        find("codl").plan(network, context_of(scripted(network), LAWS, Profiling(file=file)))
    target = scripted(network)
    context = context_of(target, LAWS, Profiling(tmp_path), note=notes.append)
    find("codl").plan(network, context)
    assert target.loaded
    assert any(f"is of the {unlike} " in note for note in notes)


def test_a_profile_of_a_busy_device_is_reported_and_not_kept(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {("op", "cpu"): 1.0}
    monkeypatch.setattr(device_loop.drift, "first_ms", lambda dataset: usual)
    notes: list[str] = []
    target = scripted(network, anchor=1.5)
    find("codl").plan(network, context_of(target, LAWS, Profiling(tmp_path), note=notes.append))
    assert AnchorTime("op", "cpu", 1.5).latency_ms == target.anchor
    assert not [*tmp_path.rglob("*.json")]
    assert any("anchors of the cpu take 1.50 times" in note for note in notes)


def test_ctrl_c_takes_the_best_so_far_and_ends_it_where_there_is_none(
    network: Network, tmp_path: Path
) -> None:
    for most in (0, 1, 4):
        target = scripted(network)

        def interrupt(executable: Executable, at: int = most, on: Any = target) -> None:
            if len(on.loaded) == at:
                raise KeyboardInterrupt

        target.fails = interrupt
        notes: list[str] = []
        folder = tmp_path / str(most)
        context = context_of(target, LAWS, Profiling(folder), note=notes.append)
        if not most:
            with pytest.raises(KeyboardInterrupt):
                find("codl").plan(network, context)
            continue
        assert find("codl").plan(network, context).is_split
        assert any("interrupted. The best plan so far" in note for note in notes)
        (file,) = folder.rglob("*.json")
        assert len(load_profile(file).runs) == most


@pytest.mark.parametrize("after", [2, 4])
def test_a_device_that_fails_in_a_round_leaves_the_best_plan_so_far(
    after: int, network: Network, tmp_path: Path
) -> None:
    target = scripted(network)

    def fail(executable: Executable) -> None:
        if len(target.loaded) >= after:
            raise DeviceError("The device was lost.")

    target.fails = fail
    notes: list[str] = []
    context = context_of(target, LAWS, Profiling(tmp_path), note=notes.append)
    assert find("codl").plan(network, context).is_split
    assert any("The device was lost." in note for note in notes)


def test_where_nothing_runs_predictions_decide_and_the_note_says_so(
    network: Network, tmp_path: Path
) -> None:
    target = scripted(network)

    def fail(executable: Executable) -> None:
        raise DeviceError("The device was lost.")

    target.fails = fail
    notes: list[str] = []
    context = context_of(target, LAWS, Profiling(tmp_path), note=notes.append)
    plan = find("codl").plan(network, context)
    assert plan.is_split
    assert "that ran" not in plan.method
    assert any("no plan ran, so predictions decide" in note for note in notes)


@pytest.mark.parametrize("gpu", [1e3, 1e-3])
@pytest.mark.device
def test_a_mistaken_predictor_still_gives_a_plan_that_runs(
    gpu: float, first_soc: Soc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_loop, "doubts", lambda latency: ())  # other programs are at work
    monkeypatch.setattr(device_loop, "BUSY", 100.0)
    network = row(3)
    context = SyntheticContext(
        first_soc,
        target=here(first_soc),  # type: ignore[arg-type]
        predictors=SyntheticPredictors(gpu=gpu),
        profiling=Profiling(tmp_path),
    )
    plan = find("codl").plan(network, context)
    assert "that ran" in plan.method
    (file,) = tmp_path.rglob("*.json")
    (alone,) = [run for run in load_profile(file).runs if run.plan.chains[0].gpu_ratio == 0][:1]
    # Every layer of the one net was timed, and together they take what the net takes.
    layers = alone.parts_ms["layer"]
    assert list(layers) == [layer.name for layer in network.layers]
    assert sum(layers.values()) == pytest.approx(sum(alone.parts_ms["net"].values()))
    inputs = image(network)
    with (
        Engine(network, plan, here(first_soc), Tuning()) as engine,  # type: ignore[arg-type]
        Engine(network, default_plan(network, first_soc, "cpu"), here(first_soc)) as reference,  # type: ignore[arg-type]
    ):
        for name, expected in reference(inputs).items():
            np.testing.assert_allclose(engine(inputs)[name], expected, rtol=1e-4, atol=1e-5)
