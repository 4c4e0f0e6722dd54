"""Dispatch, cold caches and contention: measured for real, predicted, and counted in plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulated import SOC

from codl.errors import CodlError, MismatchError
from codl.ir import parse, to_text
from codl.ir.soc import Soc
from codl.measure import surroundings
from codl.measure.collector import collect
from codl.measure.dataset import Dataset
from codl.measure.sampling import batch_tasks, surroundings_tasks
from codl.measure.tasks import BatchTask, ColdTask, ContentionTask, DispatchTask, SignalTask
from codl.measure.timing import Rounds
from codl.plan.cost_model import both_ends
from codl.predict import features
from codl.predict import training_set as samples
from codl.predict.context_terms import (
    Batch,
    Beside,
    Cold,
    EventWait,
    FirstLaunch,
    FlagWait,
    Launches,
    Workload,
)
from codl.targets.base import Target
from codl.targets.local import LocalTarget

OPS = [
    parse(text)
    for text in (
        "conv2d in=1x32x12x12 oc=32 kernel=3x3 pad=1",
        "pooling in=1x32x12x12 kernel=2 stride=2",
        "fc in=1x128x1x1 oc=64",
    )
]
QUICK = Rounds(visits=1, samples=1, span_s=0.0, more=1)
MS = st.floats(0.0, 100.0)
SLOWER = st.floats(1.0, 3.0)


def test_surroundings_are_measured_and_become_samples(target: Target, tmp_path: Path) -> None:
    dataset, tasks = Dataset.of("test", tmp_path), surroundings_tasks(OPS, target.soc, [3])
    kinds = {type(task) for task in tasks}
    assert kinds == {DispatchTask, SignalTask, ColdTask, ContentionTask, BatchTask}
    done = collect(target, dataset, tasks, rounds=QUICK)
    assert (done.left, done.failed) == (0, 0)
    found, notes = samples.read(dataset)
    assert not notes
    by_target = {own.target: own for own in found if own.samples}
    for name in ("dispatch_cpu", "dispatch_gpu", "first_launch_gpu", "event_wait_cpu",
                 "cold_cpu", "cold_gpu", "contention_cpu", "contention_gpu",
                 "batch_cpu", "batch_gpu"):  # fmt: skip
        own = by_target[name]
        assert own.processor == name[-3:]
        table = features.table("variant", name, own.items, target.soc)
        assert (table.values >= 0).all()
    pair = next(task for task in tasks if isinstance(task, ContentionTask))
    row = next(r for r in dataset.table("contention").read() if r.key == pair.key)
    beside = next(
        item
        for item in by_target["contention_gpu"].items
        if isinstance(item, Beside) and item.own.latency_ms == row.gpu_alone_ms
    )
    assert beside.own.bytes == pair.gpu.bytes
    assert beside.other.latency_ms == row.cpu_alone_ms


def test_large_caches_are_emptied_too(
    first_soc: Soc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "last_cache_bytes", lambda: 40 << 20)
    tasks = [task for task in surroundings_tasks(OPS[:1], first_soc) if isinstance(task, ColdTask)]
    collect(LocalTarget(first_soc), Dataset.of("test", tmp_path), tasks, rounds=QUICK)
    rows = Dataset.of("test", tmp_path).table("cold").read()
    assert {row.processor: row.evicted_bytes for row in rows} == {
        "cpu": 80 << 20,
        "gpu": (80 if first_soc.gpu.is_cpu else 64) << 20,
    }


@pytest.mark.parametrize(
    ("target", "item"),
    [
        ("dispatch_cpu", Launches(8)),
        ("first_launch_gpu", FirstLaunch(0.3)),
        ("event_wait_cpu", EventWait(1.0)),
        ("flag_wait_cpu", FlagWait(1.0)),
        ("cold_gpu", Cold(OPS[0], 0.125)),
        ("batch_cpu", Batch(OPS[2], 0.25, 8)),
        ("contention_cpu", Beside(Workload(1e6, 2e7, 0.3), Workload(4e5, 0.0, 0.01))),
    ],
)
def test_items_are_written_and_read(target: str, item: Any) -> None:
    assert features.read(target, features.write(item)) == item
    assert target in features.targets_of(item)
    with pytest.raises(CodlError, match=r"Cannot read '(\S+ )?nonsense': expected \w+=NUMBER"):
        type(item).read(f"{to_text(OPS[0])} " * isinstance(item, Cold | Batch) + "nonsense")
    with pytest.raises(MismatchError, match=f"{target} is predicted for {type(item).__name__}"):
        features.table("variant", target, [OPS[0]], None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_batches_are_of_ops_whose_inputs_are_images(kind: str) -> None:
    soc = replace(SOC, gpu=replace(SOC.gpu, type=kind))
    others = [parse("softmax in=8x9 axes=1"), parse("conv2d in=2x8x5x5 oc=8 kernel=1")]
    tasks = batch_tasks([*OPS, *others], soc, (2, 16))
    assert {task.op for task in tasks} == set(OPS)
    assert {task.images for task in tasks} == {2, 16}
    assert len({(task.processor, *task.key) for task in tasks}) == len(tasks)
    assert {task.op for task in tasks if task.processor == "cpu"} == set(OPS)
    # Of an OpenCL device that is a CPU only kernels that take all images at once.
    on_gpu = OPS[1:] if kind == "cpu" else OPS
    assert {task.op for task in tasks if task.processor == "gpu"} == set(on_gpu)


@given(st.tuples(MS, MS), st.tuples(SLOWER, SLOWER))
def test_two_works_end_as_small_steps_say(
    works: tuple[float, float], slowdowns: tuple[float, float]
) -> None:
    """Against a simulation in small steps, and between never and always being slowed down."""
    ends = both_ends(works, slowdowns)
    for i in (0, 1):
        assert works[i] <= ends[i] * (1 + 1e-9) + 1e-9
        assert ends[i] <= works[i] * slowdowns[i] + 1e-6
    step, now, left, expected = 0.05, 0.0, list(works), [0.0, 0.0]
    while max(left) > 1e-12 and now < 1000:
        active = [mine > 1e-12 for mine in left]
        for i in (0, 1):
            if active[i]:
                left[i] -= step / (slowdowns[i] if all(active) else 1.0)
                expected[i] = now + step
        now += step
    assert np.allclose(ends, expected, atol=6 * step)
