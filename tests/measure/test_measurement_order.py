"""What a budget is spent on first, made-up ops, and launches, batches and stages for real."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from support.op_examples import OF_MODELS
from support.simulated import SOC
from support.whole_way import QUICK

from codl.ir import Activation, Op, parse, to_text
from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.measure import extra_ops
from codl.measure.collector import Collection
from codl.measure.dataset import SEPARATOR, Dataset
from codl.measure.extra_ops import block_ops, similar_ops
from codl.measure.measurement_order import (
    ATTENTION,
    CONVOLUTIONS,
    LEAST_SIMILAR,
    TASK_S,
    TaskFilter,
    context_tasks,
    other_tasks,
    stage_tasks,
    within,
)
from codl.measure.stages import StageTimer
from codl.measure.tasks import (
    DispatchTask,
    OpTask,
    SharingTask,
    StageTask,
    Task,
    WaitTask,
    make_tasks,
)
from codl.predict import features
from codl.predict import training_set as samples
from codl.runtime.opencl import OpenClDevice
from codl.targets.base import Target

SHARES = [0.5, 1.0]


def chosen(soc: Soc, budget_s: float, similar: int | None = None) -> list[Task]:
    return within(budget_s, TaskFilter(OF_MODELS, SHARES, similar), soc)


def added(selection: list[Task]) -> set[Op]:
    """The ops that no model has."""
    return {task.op for task in selection if isinstance(task, OpTask)} - set(OF_MODELS)


def test_whole_ops_come_first_and_then_their_parts() -> None:
    found = chosen(SOC, 600.0, similar=30)
    assert len(found) == len(set(found))
    own = set(make_tasks(OF_MODELS, SOC, SHARES))
    in_context = set(context_tasks(OF_MODELS, SOC))
    assert own | in_context < set(found)
    groups = [
        (task not in own, isinstance(task, OpTask) and task.share != 1)
        for task in found
        if task not in in_context and not isinstance(task, SharingTask)
    ]
    assert groups == sorted(groups)
    exchanges = [task not in own for task in found if isinstance(task, SharingTask)]
    assert exchanges == sorted(exchanges)


def test_exchanges_of_every_direction_come_before_any_op() -> None:
    selection = chosen(SOC, 1.0)
    ops_at = [at for at, task in enumerate(selection) if isinstance(task, OpTask)]
    before = selection[: ops_at[0]]
    exchanges = {task.direction for task in before if isinstance(task, SharingTask)}
    optional = {"load_openvino", "store_openvino"}
    assert exchanges - optional == {"to_gpu", "to_cpu", "load", "store"}


def test_a_longer_budget_has_more_similar_ops() -> None:
    short, long, longer = (chosen(SOC, seconds) for seconds in (1.0, 150.0, 200.0))
    assert 0 < len(added(short)) <= LEAST_SIMILAR < len(added(long)) < len(added(longer))
    assert added(short) < added(long) < added(longer)
    assert not added(chosen(SOC, 100.0, similar=0))


def test_ops_of_other_networks_come_right_after_the_models_whole_ops() -> None:
    found = within(600.0, TaskFilter(OF_MODELS, SHARES, similar=30, others=True), SOC)
    assert len(found) == len(set(found))
    unusual = []
    for ops, share in (
        (block_ops("attention", 16), ATTENTION),
        (block_ops("conv", 16), CONVOLUTIONS),
    ):
        of_these = [t for t in found if isinstance(t, OpTask) and t.op in ops]
        assert 0 < len(of_these) * TASK_S < 1.2 * share * 600.0
        unusual += of_these
    others = set(unusual) - set(make_tasks(OF_MODELS, SOC, SHARES))
    parts_at = [at for at, t in enumerate(found) if isinstance(t, OpTask) and t.share != 1]
    assert max(found.index(task) for task in others) < parts_at[0]
    assert not set(
        other_tasks(block_ops("attention", 2) + block_ops("conv", 2), SOC, exclude=found)
    ).intersection(found)


def test_ops_of_random_blocks_are_those_that_the_script_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "scripts"))
    import_module("block_ops").main(tmp_path)
    for drawn in tmp_path.iterdir():
        assert drawn.read_text() == Path(extra_ops.__file__).with_name(drawn.name).read_text()
    few, more = (block_ops("attention", blocks) for blocks in (2, 3))
    assert more[: len(few)] == few


def test_new_ops_are_valid_and_none_is_a_models_own() -> None:
    found = similar_ops(OF_MODELS, 120)
    assert 100 <= len(found) <= 120
    assert not set(found) & set(OF_MODELS)
    assert len(set(found)) == len(found)
    for op in found:
        assert parse(to_text(op)) == op
        assert min(op.output) >= 1
    assert found == similar_ops(OF_MODELS, 120)
    assert similar_ops(OF_MODELS, 0) == []


def test_similar_ops_are_measured_whole() -> None:
    similar = similar_ops(OF_MODELS, 20)
    plain = make_tasks(OF_MODELS[:1], SOC, [0.5, 1.0])
    tasks = make_tasks(OF_MODELS[:1], SOC, [0.5, 1.0], similar)
    added = set(tasks) - set(plain)
    assert set(plain) <= set(tasks)
    shared = {task.shape for task in added if isinstance(task, SharingTask)}
    assert shared == {op.inputs[0] for op in similar}
    own = [task for task in added if not isinstance(task, SharingTask)]
    assert {task.op for task in own} == set(similar)
    assert all(task.share == 1 for task in own)


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
    assert kinds == {DispatchTask, WaitTask, StageTask}
    done = Collection(target, dataset, tasks, rounds=QUICK).run()
    assert (done.left, done.failed) == (0, 0)
    found, notes = samples.read(dataset)
    assert not notes
    by_target = {own.target: own for own in found if own.samples}
    for name in ("dispatch_gpu", "event_wait_cpu"):
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


def _ops(texts: str) -> list[Op]:
    return [parse(text.partition(" ")[2]) for text in filter(None, texts.split(SEPARATOR))]


def test_the_caches_are_emptied_before_every_run_of_a_stage(first_gpu: OpenClDevice) -> None:
    calls: list[int] = []
    task = next(one for one in stage_tasks(OPS, first_gpu.soc) if 0 < one.gpu_ratio < 1)
    timer = StageTimer(task, first_gpu, Tuning(), lambda: calls.append(len(calls)))
    assert all(seconds > 0 for seconds in timer.sample(3).values())
    assert calls == [0, 1, 2]
