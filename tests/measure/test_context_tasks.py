"""Launches, batches and stages: measured for real, and what becomes of their rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.simulated import SOC
from support.whole_way import QUICK

from codl.errors import CodlError, MismatchError
from codl.ir import Activation, Op, parse, to_text
from codl.ir.records.soc import CpuCache
from codl.kernels.tuning import Tuning
from codl.machine.examination import Memory
from codl.measure.collector import Collection
from codl.measure.dataset import SEPARATOR, Dataset
from codl.measure.exchanges import evicting_op
from codl.measure.measurement_order import context_tasks, stage_tasks
from codl.measure.stages import StageTimer
from codl.measure.tasks import DispatchTask, SignalTask, StageTask
from codl.predict import features
from codl.predict import training_set as samples
from codl.predict.features import Batch, EventWait, FirstLaunch, Launches
from codl.runtime.opencl import OpenClDevice
from codl.targets.base import Target

OPS = [
    parse(text)
    for text in (
        "conv2d in=1x32x12x12 oc=32 kernel=3x3 pad=1",
        "pooling in=1x32x12x12 kernel=2 stride=2",
        "fc in=1x128x1x1 oc=64",
    )
]


def test_ops_in_context_are_measured_and_become_samples(target: Target, tmp_path: Path) -> None:
    dataset, tasks = Dataset.of("test", tmp_path), context_tasks(OPS, target.soc)
    kinds = {type(task) for task in tasks}
    assert kinds == {DispatchTask, SignalTask, StageTask}
    done = Collection(target, dataset, tasks, rounds=QUICK).run()
    assert (done.left, done.failed) == (0, 0)
    found, notes = samples.read(dataset)
    assert not notes
    by_target = {own.target: own for own in found if own.samples}
    for name in ("dispatch_gpu", "first_launch_gpu", "event_wait_cpu"):
        own = by_target[name]
        assert own.processor == name[-3:]
        table = features.table("variant", name, own.items, target.soc)
        assert (table.values >= 0).all()
    stages = [task for task in tasks if isinstance(task, StageTask)]
    rows = {row.key: row for row in dataset.table("stage").read()}
    assert rows.keys() == {task.key for task in stages}
    for task in stages:
        row, chain = rows[task.key], [replace(op, activation=Activation()) for op in task.ops]
        shards = [_ops(text) for text in (row.cpu_ops, row.gpu_ops)]
        for ops, ratio in zip(shards, (1 - task.gpu_ratio, task.gpu_ratio), strict=True):
            assert [op.kind for op in ops] == ([op.kind for op in chain] if ratio else [])
        assert sum(ops[-1].output.elements for ops in shards if ops) == chain[-1].output.elements
        assert max(row.cpu_ms, row.gpu_ms) == row.latency_ms
        assert bool(row.cpu_ops) == bool(row.cpu_ms) == bool(row.cpu_calls)
        assert bool(row.gpu_ops) == bool(row.gpu_ms) == bool(row.gpu_calls)
        assert ("load" in row.packed and "store" in row.packed) == bool(row.cpu_ops)


def test_the_caches_are_emptied_before_every_run_of_a_stage(first_gpu: OpenClDevice) -> None:
    calls: list[int] = []
    task = next(one for one in stage_tasks(OPS, first_gpu.soc) if 0 < one.gpu_ratio < 1)
    timer = StageTimer(task, first_gpu, Tuning(), lambda: calls.append(len(calls)))
    assert all(seconds > 0 for seconds in timer.sample(3).values())
    assert calls == [0, 1, 2]


def _ops(texts: str) -> list[Op]:
    return [parse(text.partition(" ")[2]) for text in filter(None, texts.split(SEPARATOR))]


@pytest.mark.parametrize(
    ("target", "item"),
    [
        ("dispatch_gpu", Launches(8)),
        ("first_launch_gpu", FirstLaunch(0.3)),
        ("event_wait_cpu", EventWait(1.0)),
        ("batch_cpu", Batch(OPS[2], 0.25, 8)),
    ],
)
def test_items_are_written_and_read(target: str, item: Any) -> None:
    assert features.read(target, features.write(item)) == item
    assert target in features.targets_of(item)
    with pytest.raises(CodlError, match=r"Cannot read '(\S+ )?nonsense': expected \w+=NUMBER"):
        type(item).read(f"{to_text(OPS[0])} " * isinstance(item, Batch) + "nonsense")
    with pytest.raises(MismatchError, match=f"{target} is predicted for {type(item).__name__}"):
        features.table("variant", target, [OPS[0]], None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cache", "memory", "moved"),
    [
        (1 << 20, 8 << 30, 64 << 20),
        (50 << 20, 64 << 30, 100 << 20),
        (300 << 20, 64 << 30, 128 << 20),
        (50 << 20, 1 << 30, 64 << 20),
        (300 << 20, 0, 64 << 20),
    ],
)
def test_caches_are_emptied_by_twice_their_size_within_limits(
    monkeypatch: pytest.MonkeyPatch, cache: int, memory: int, moved: int
) -> None:
    caches = (CpuCache(3, "unified", cache, 2, 1),)
    monkeypatch.setattr("codl.measure.exchanges.memory_of", lambda: Memory(memory, memory))
    op = evicting_op(replace(SOC, cpu=replace(SOC.cpu, caches=caches)))
    assert op.bytes == pytest.approx(moved, rel=0.01)
