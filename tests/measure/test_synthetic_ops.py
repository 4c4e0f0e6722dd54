"""Ops like those of models: between and around them, valid, and never more expensive."""

from __future__ import annotations

from collections import Counter

import numpy as np
from support.op_examples import OF_MODELS
from support.simulated import SOC

from codl.ir import Op, parse, to_text
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.matmul import FullyConnected
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


def test_sizes_fill_the_range_around_those_of_the_models() -> None:
    found = similar_ops(OF_MODELS, 400)
    features = [op.in_features for op in found if isinstance(op, FullyConnected)]
    assert len(set(features)) > 0.8 * len(features)
    inside = [2048 <= value <= 25088 for value in features]
    assert 0.3 < np.mean(inside) < 1
    # On a logarithmic scale no part of the range has many more than another.
    flops = [np.log2(op.flops) for op in found if isinstance(op, FullyConnected)]
    middle = np.percentile(flops, [10, 50, 90])
    assert 0.5 < (middle[1] - middle[0]) / (middle[2] - middle[1]) < 2


def test_maps_and_channels_are_those_of_networks_and_their_parts() -> None:
    found = [op for op in similar_ops(OF_MODELS, 600) if isinstance(op, Conv2d)]
    one_sided = [
        op.pad.top != op.pad.bottom or (op.kernel.h == 3 and not op.pad.top) for op in found
    ]
    assert 0.05 < np.mean(one_sided) < 0.5
    for op in found:
        is_whole = op.pad.top == op.pad.bottom == op.pad.left
        if is_whole:  # parts have fewer rows, and fewer channels on one side
            assert 0.5 < op.input.w / op.input.h < 2 or op.kernel == (1, 1)
        assert op.input.c > 3 or op.input.c == 3
        assert 1 / 90 < op.out_channels / op.input.c < 90
    squares = [op.input.h == op.input.w for op in found]
    assert 0.3 < np.mean(squares) < 0.9
    images = [op for op in found if op.kernel == (7, 7)]
    assert images
    assert {op.input.c for op in images} == {3}
    deep = [op for op in found if op.input.c == 512 and op.groups == 1]
    assert all(op.input.h <= 28 for op in deep)


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
