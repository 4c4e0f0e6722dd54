"""Benchmarks and evaluations in turns: interfaces beside engines, strategies beside each other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from support.devices import here
from support.synthetic_predictors import SyntheticContext, SyntheticPredictors

from codl.frontend.models.builder import ModelBuilder
from codl.ir.records.gpu_limits import GpuLimits
from codl.jobs.bench import LADDER, bench_ui, loosest_limits
from codl.jobs.interleaved import evaluate
from codl.machine.placement import LocalSoc
from codl.measure.budget import Budget
from codl.measure.timing import Effort
from codl.measure.ui_frames import PERIOD_MS, Drawn
from codl.plan.strategies import find

#: One frame on time and one that is late by a refresh.
DRAWN: Drawn = ((0, 3.0), (1, 1.5 * PERIOD_MS))


class Interface:
    """Draws the same frames each time; Ctrl-C comes at the one that is named."""

    def __init__(self, ends_at: int | None = None) -> None:
        self.asked: list[float] = []
        self.ends_at = ends_at

    def draw_frames(self, seconds: float) -> Drawn:
        self.asked.append(seconds)
        if len(self.asked) == self.ends_at:
            raise KeyboardInterrupt
        return DRAWN


class Runs:
    """An engine that only counts its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.plan, self.limited = SimpleNamespace(predicted_ms=2.0), None

    def __call__(self, inputs: Any) -> None:
        self.run()

    def run(self) -> None:
        self.runs += 1


def drawn_beside(interface: Interface, budget: Budget | None = None) -> dict[str, Any]:
    engines: Any = {"plain": Runs(), "limited": Runs()}
    rows = bench_ui(engines, interface, {}, seconds=4.0, budget=budget)  # type: ignore[arg-type]
    return {row.beside: row for row in rows}


def test_each_has_the_same_turns_and_its_own_row() -> None:
    interface = Interface()
    rows = drawn_beside(interface)
    assert list(rows) == ["nothing", "plain", "limited"]
    first, *turns = interface.asked
    assert first == 0.0, "what opens the device is no turn"
    assert sum(turns) == pytest.approx(3 * 4.0)
    for row in rows.values():
        assert row.frames.on_time == pytest.approx(2 / 3)
        assert row.frames.worst_stall_ms == pytest.approx(2 * PERIOD_MS)
    assert rows["nothing"].latency_ms is None
    assert rows["plain"].predicted_ms == 2.0


def test_ctrl_c_keeps_whole_rounds() -> None:
    budget = Budget()
    rows = drawn_beside(Interface(ends_at=6), budget)  # in the second round
    assert budget.ended == "interrupted"
    assert rows["limited"].frames.refreshes == 3


@pytest.mark.parametrize(("wanted", "at"), [(20, 0), (45, 5), (59, len(LADDER) - 1)])
def test_the_loosest_limits_with_a_frame_rate_are_found(wanted: float, at: int) -> None:
    """Each step lets the interface draw 5 frames a second more, up to 55."""
    tried: list[GpuLimits] = []

    def frames_per_s(limits: GpuLimits) -> float:
        tried.append(limits)
        return min(20.0 + 5 * LADDER.index(limits), 55.0)

    assert loosest_limits(frames_per_s, wanted) == LADDER[at]
    assert len(tried) == len(set(tried)) <= 4
    assert [*LADDER] == sorted(LADDER, key=lambda x: (x.max_kernel_ms, x.gpu_duty), reverse=True)


QUICK = Effort(min_rounds=2, min_seconds=0.0)


def test_plans_that_become_the_same_executable_are_timed_as_one(
    first_soc: LocalSoc, tmp_path: Path
) -> None:
    b, path = ModelBuilder("small"), tmp_path / "small.onnx"
    b.output(b.relu(b.conv(b.input("image", (1, 3, 20, 16)), 32, 3, pad=1)))
    onnx.save(b.build(), path)
    (tmp_path / first_soc.name).mkdir()
    slow_gpu = SyntheticPredictors(gpu=1e-3)
    folders = {"dataset_root": tmp_path, "predictors_folder": tmp_path}
    target = here(first_soc)
    context = SyntheticContext(first_soc, predictors=slow_gpu, target=target, **folders)  # type: ignore[arg-type]
    names = ["cpu", "gpu", "codl"]
    found = evaluate(str(path), [find(n) for n in names], context, effort=QUICK)
    rows, spans = found.rows, found.timelines
    cpu, gpu, codl = rows
    assert [row.strategy for row in rows] == names
    assert (cpu.same_as, gpu.same_as, codl.same_as) == ("", "", "cpu")
    assert codl.latency_ms == cpu.latency_ms != gpu.latency_ms
    assert codl.cold_ms == cpu.cold_ms != gpu.cold_ms
    assert cpu.latency_ms is not None
    assert cpu.cold_ms is not None
    assert (cpu.cold_ms.runs, cpu.latency_ms.runs) == (2, 2 * QUICK.warm)
    assert set(spans) == set(names)
    assert spans["codl"] == spans["cpu"]
    assert set(found.predicted) == set(names)
    ends_ms = {name: max(span.end_ms for span in found.predicted[name]) for name in names}
    assert ends_ms == pytest.approx({row.strategy: row.predicted_ms for row in rows})
    assert {row.plan for row in rows} == {*found.plans}
    assert all(plan.digest and key == plan.fingerprint for key, plan in found.plans.items())
