"""What a budget is spent on, and that it is spent on the models' own ops first."""

from __future__ import annotations

from pathlib import Path

from support.op_examples import OF_MODELS
from support.simulated import SOC, conv_tasks, noisy_dataset

from codl.ir import Op, Shape, parse, to_text
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.matmul import Attention, MatMul, merged
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS
from codl.kernels import registry
from codl.measure.extra_ops import attention_ops, conv_ops
from codl.measure.measurement_order import (
    ATTENTION,
    CONVOLUTIONS,
    LEAST_SIMILAR,
    TASK_S,
    OpSelection,
    TaskFilter,
    Tier,
    context_tasks,
    mixed,
    other_tasks,
    within,
)
from codl.measure.tasks import DispatchTask, OpTask, SharingTask, Task, make_tasks, op_tasks
from codl.predict.active_learning import ActiveLearner

SHARES = [0.5, 1.0]
BUDGET_S = 100.0


def chosen(soc: Soc, budget_s: float, similar: int | None = None) -> OpSelection:
    return within(budget_s, TaskFilter(OF_MODELS, SHARES, similar), soc)


def added(selection: OpSelection) -> set[Op]:
    """The ops that no model has."""
    return {task.op for task in selection.tasks if isinstance(task, OpTask)} - set(OF_MODELS)


def test_whole_ops_come_first_and_then_their_parts() -> None:
    found = chosen(SOC, 600.0, similar=30)
    assert len(found.tasks) == len(set(found.tasks))
    own = set(make_tasks(OF_MODELS, SOC, SHARES))
    in_context = set(context_tasks(OF_MODELS, SOC))
    assert own | in_context < set(found.tasks)
    tiers = [found.tiers[task] for task in found.tasks if task not in in_context]
    assert tiers == sorted(tiers)
    for task in found.tasks:
        if isinstance(task, OpTask):
            is_whole = task.op in OF_MODELS and task.share == 1
            assert (found.tiers[task] is Tier.WHOLE) == is_whole
        assert (found.tiers[task] is Tier.MORE) == (task not in own | in_context)


def test_exchanges_of_every_direction_come_before_any_op() -> None:
    selection = chosen(SOC, 1.0)
    ops_at = [at for at, task in enumerate(selection.tasks) if isinstance(task, OpTask)]
    before = selection.tasks[: ops_at[0]]
    exchanges = {task.direction for task in before if isinstance(task, SharingTask)}
    optional = {"load_openvino", "store_openvino"}
    assert exchanges - optional == {"to_gpu", "to_cpu", "load", "store"}


def test_with_little_time_some_parts_wait_behind_the_whole_ops() -> None:
    own = make_tasks(OF_MODELS, SOC, SHARES)
    short = chosen(SOC, len(own) * TASK_S)
    wholes = [t for t in own if isinstance(t, OpTask) and t.share == 1]
    assert all(short.tiers[task] is Tier.WHOLE for task in wholes)
    first = [task for task in own if short.tiers[task] is not Tier.MORE]
    assert len(wholes) < len(first) < len(own)
    assert set(own) <= set(short.tasks)


def test_a_longer_budget_has_more_similar_ops() -> None:
    short, long, longer = (chosen(SOC, seconds) for seconds in (1.0, 150.0, 200.0))
    assert 0 < len(added(short)) <= LEAST_SIMILAR < len(added(long)) < len(added(longer))
    assert added(short) < added(long) < added(longer)
    assert not added(chosen(SOC, 100.0, similar=0))


def test_what_must_be_measured_comes_first(tmp_path: Path) -> None:
    everything: list[Task] = [*conv_tasks()]
    measured = noisy_dataset(tmp_path, conv_tasks()[:200], noise=0.01)
    left = everything[200:]
    tiers = dict.fromkeys(left[:-8], Tier.MORE)
    tiers |= dict.fromkeys(left[-8:-4], Tier.WHOLE) | dict.fromkeys(left[-4:], Tier.OWN)
    order = ActiveLearner(SOC, measured, BUDGET_S, tiers).choose(left, BUDGET_S)
    assert set(order[:4]) == set(left[-8:-4])
    assert set(order[4:8]) == set(left[-4:])


def test_slow_tasks_are_spread_over_the_others() -> None:
    slow = [DispatchTask(count) for count in range(4)]
    others = [SharingTask("to_gpu", Shape(1, 1, 1, c)) for c in range(20)]
    found = mixed(slow, others)
    assert [task for task in found if task in others] == others
    assert sorted(found.index(task) for task in slow) == [8, 17, 22, 23]
    assert mixed(slow, []) != slow
    assert set(mixed(slow, [])) == set(slow)


def test_ops_of_other_networks_come_right_after_the_models_whole_ops() -> None:
    found = within(600.0, TaskFilter(OF_MODELS, SHARES, similar=30, others=True), SOC)
    assert len(found.tasks) == len(set(found.tasks))
    unusual = []
    for ops, share in ((attention_ops(16), ATTENTION), (conv_ops(16), CONVOLUTIONS)):
        of_these = [t for t in found.tasks if isinstance(t, OpTask) and t.op in ops]
        assert 0 < len(of_these) * TASK_S < 1.2 * share * 600.0
        unusual += of_these
    assert {found.tiers[task] for task in unusual if task.op not in OF_MODELS} == {Tier.WHOLE}
    tiers = [found.tiers[t] for t in found.tasks if isinstance(t, OpTask)]
    assert tiers == sorted(tiers)
    assert not set(
        other_tasks(attention_ops(2) + conv_ops(2), SOC, exclude=found.tasks)
    ).intersection(found.tasks)


def test_blocks_have_the_convolutions_that_networks_differ_in() -> None:
    """Every window of a depthwise convolution at both strides, groups, stems, maps of a pixel."""
    ops = conv_ops(16)
    assert ops == list(dict.fromkeys(ops))
    assert ops[: len(conv_ops(3))] == conv_ops(3)
    convs = [op for op in ops if isinstance(op, Conv2d)]
    depthwise = {(op.kernel.h, op.stride.h) for op in convs if op.groups == op.input.c}
    assert depthwise == {(k, s) for k in (3, 5, 7) for s in (1, 2)}
    widths = {op.input.c // op.groups for op in convs if 1 < op.groups < op.input.c}
    assert widths == {4, 8, 16, 24, 32, 64}
    assert {op.kernel.h for op in convs if op.input.c == 3} >= {3, 4, 5, 7}
    assert any(op.output.h == 1 for op in convs)
    for processor in PROCESSORS:
        able = [op for op in ops if op_tasks(op, processor, SOC, [1.0])]
        assert len(able) == len(ops)


def test_attention_has_a_few_of_every_variant() -> None:
    """So that no network of attention is planned by estimates."""
    ops = attention_ops(16)
    assert ops[: len(attention_ops(3))] == attention_ops(3)
    assert all(parse(to_text(op)) == op for op in ops)
    counts: dict[str, int] = {}
    for op in ops:
        for processor in PROCESSORS:
            for variant in registry.variants(op, processor, SOC):
                name = registry.target(variant, op)
                counts[name] = counts.get(name, 0) + 1
    kinds = "matmul norm softmax transpose reshape slice reduce tile gather attention"
    for kind in kinds.split():
        assert any(name.startswith(kind) for name in counts)
    assert min(n for name, n in counts.items() if not name.startswith("concat")) >= 8


def test_some_of_attention_is_as_large_as_in_models() -> None:
    """Whisper's encoder has 1,500 tokens of 6 heads; matrices of one row stream from memory."""
    ops, pairs = attention_ops(7), 6 * 1500**2
    large = [op for op in ops if isinstance(op, Attention) and op.queries >= 1500]
    assert any(op.heads * op.queries * op.keys > pairs for op in large)
    products = [op for op in ops if isinstance(op, MatMul)]
    assert max(op.flops for op in products) > 2 * 128 * 576 * 1536
    assert max(op.bytes for op in products if op.matrix and merged(op)[0] == 1) > 32 << 20
    for is_flavored in (True, False):
        assert sum(bool(op.flavor) == is_flavored for op in ops if op.kind == "attention") >= 8
