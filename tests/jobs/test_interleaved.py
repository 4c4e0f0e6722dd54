"""Evaluations: what the strategies of one model are compared by."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from support.devices import here
from support.synthetic_predictors import SyntheticPredictors

from codl.frontend.models.builder import ModelBuilder
from codl.jobs.interleaved import evaluate
from codl.machine.placement import LocalSoc
from codl.measure.timing import Effort
from codl.plan.cost_model import CostModel
from codl.plan.strategies import find
from codl.plan.strategies.base import Context

QUICK = Effort(min_rounds=2, min_seconds=0.0)


class SlowGpu(Context):
    """Predictors that think the GPU a thousand times slower than the CPU."""

    def cost(self, default: str, *, by_op: bool = False) -> CostModel:
        return CostModel(self.soc, SyntheticPredictors(gpu=1e-3), by_op)


def test_plans_that_become_the_same_executable_are_timed_as_one(
    first_soc: LocalSoc, tmp_path: Path
) -> None:
    b, path = ModelBuilder("small"), tmp_path / "small.onnx"
    b.output(b.relu(b.conv(b.input("image", (1, 3, 20, 16)), 32, 3, pad=1)))
    onnx.save(b.build(), path)
    context = SlowGpu(first_soc, dataset_root=tmp_path, target=here(first_soc))
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
