"""Ops like those of models: between and around them, valid, and never more expensive."""

from __future__ import annotations

from collections import Counter

from support.op_examples import OF_MODELS
from support.simulated import SOC

from codl.ir import Op, parse, to_text
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.window import Pool2d
from codl.measure.extra_ops import similar_ops
from codl.measure.tasks import SharingTask, make_tasks


def of_kind(ops: list[Op], kind: str) -> list[Op]:
    return [op for op in ops if op.kind == kind]


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


def test_every_kind_and_class_gets_its_share_at_no_higher_cost() -> None:
    found = similar_ops(OF_MODELS, 310)
    counts = {kind: len(of_kind(found, kind)) for kind in {op.kind for op in OF_MODELS}}
    assert counts["softmax"] == 0
    assert counts["conv2d"] > 2 * counts["fc"] > 0
    assert counts["pooling"] > counts["fc"] > counts["eltwise"] > counts["concat"] > 0
    windows = Counter((op.kernel, op.groups > 1) for op in found if isinstance(op, Conv2d))
    assert windows.keys() == {((3, 3), False), ((1, 1), False), ((7, 7), False), ((3, 3), True)}
    assert windows[(3, 3), False] >= 2 * windows[(1, 1), False]
    depthwise = [op for op in found if isinstance(op, Conv2d) and op.groups > 1]
    assert all(op.groups == op.input.c == op.out_channels for op in depthwise)
    assert {op.mode for op in found if isinstance(op, Pool2d)} == {"max", "avg"}
    for kind in counts:
        largest = max((op.flops for op in of_kind(OF_MODELS, kind)), default=0)
        assert all(op.flops <= largest for op in of_kind(found, kind))


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
