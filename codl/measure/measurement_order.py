"""The order of measurement: ops of models, in a budget as far as they fit, then similar ones.

Ops in their context come too: launches, batches, and stages of small networks. That is slow, so
only a sample is measured.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from random import Random
from typing import Any, NamedTuple, get_args

import numpy as np

from codl.ir import Dim, Op, Shape, to_text
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.types import PROCESSORS, Processor, Signalling
from codl.kernels import registry
from codl.measure.conv_blocks import conv_ops
from codl.measure.extra_ops import attention_ops, similar_ops
from codl.measure.tasks import (
    SEED,
    BatchTask,
    ContextTask,
    DispatchTask,
    OpTask,
    SharingTask,
    SignalTask,
    StageTask,
    Task,
    cuts_of,
    make_tasks,
    op_tasks,
    part_of,
)
from codl.records.soc import Soc

#: Kernels, or layers of one net, that are dispatched together.
COUNTS = (1, 2, 4, 8, 16, 32)
#: How long a queue is empty before a launch, and the CPU waits for a kernel: as in networks.
GAPS_MS = (0.1, 0.3, 1.0, 3.0)
#: Stages that are measured, and how many ops one has at most.
STAGES, LONGEST = 120, 5
#: Stages for each op.
EACH = 2
#: The GPU's shares of them; one processor alone shows what the other one at work costs.
STAGE_RATIOS = (0.35, 0.45, 0.5, 0.55, 0.65, 0.5, 0.0, 1.0)
#: Draws for a stage that comes to be.
DRAWS = 8
#: Ops that are measured in batches, and the most bytes that one may read and write.
BATCH_OPS = 32
MOST_BATCH_BYTES = 1 << 30
#: Ops that read more than this would take the time, and the memory, of many others.
MOST_BYTES = 512 << 20


def context_tasks(ops: Iterable[Op], soc: Soc, batches: Sequence[int] = ()) -> list[ContextTask]:
    """Launches, waits and stages of `ops`; and batches of `batches` images, where there are any."""
    ops = list(ops)
    tasks: list[ContextTask] = [*batch_tasks(ops, soc, batches)]
    tasks += [DispatchTask(count) for count in COUNTS]
    tasks += signal_tasks(soc)
    tasks += stage_tasks(ops, soc)
    return tasks


def stage_tasks(ops: Iterable[Op], soc: Soc) -> list[StageTask]:
    """Random walks over ops, each to one that reads what the op before makes; the same every time.

    So they are stages as those of the ops' networks. Ops that read several tensors begin a walk.
    """
    fitting = {
        op
        for op in ops
        if op.bytes <= MOST_BYTES and op.images == 1 and not isinstance(op, OnnxModel)
    }
    able = sorted(fitting, key=to_text)
    readers: dict[Shape, list[Op]] = {}
    for op in able:
        if len(op.inputs) == 1:
            readers.setdefault(op.inputs[0], []).append(op)
    starts = [op for op in able if op.output in readers]
    dice, tasks = Random(SEED), dict[StageTask, None]()
    wanted = min(STAGES, EACH * len(able)) if starts else 0
    for _ in range(DRAWS * wanted):
        ratio = STAGE_RATIOS[len(tasks) % len(STAGE_RATIOS)]
        task = _walk(dice, starts, readers, ratio, soc)
        if task is not None:
            tasks.setdefault(task)
        if len(tasks) == wanted:
            break
    return list(tasks)


def _walk(
    dice: Random, starts: Sequence[Op], readers: dict[Shape, list[Op]], ratio: float, soc: Soc
) -> StageTask | None:
    """One walk; None where it comes to nothing that both processors can do."""
    before = dice.choice(starts)
    first = dice.choice(readers[before.output])
    dims = cuts_of(first)
    if not dims:
        return None
    dim = dice.choice(dims)
    length = dice.randint(1, LONGEST)
    chain = [first]
    while len(chain) < length and chain[-1].output in readers:
        following = dice.choice(readers[chain[-1].output])
        if dim not in cuts_of(following) or not (dim == "H" or following.carries_channels):
            break
        chain.append(following)
    sides = [side for side, none in (("cpu", 1.0), ("gpu", 0.0)) if ratio != none]
    if not all(_is_able(op, side, dim, ratio, soc) for op in (before, *chain) for side in sides):  # type: ignore[arg-type]
        return None
    return StageTask(before, tuple(chain), dim, ratio)


def _is_able(op: Op, side: Processor, dim: Dim, ratio: float, soc: Soc) -> bool:
    """Whether a processor has a variant for its part of an op."""
    if not 0 < ratio < 1 or dim not in op.dims:
        return bool(_default(op, side, soc))
    part = part_of(op, side, dim, ratio if side == "gpu" else round(1 - ratio, 6), soc)
    return part is not None and bool(_default(part, side, soc))


def signal_tasks(soc: Soc) -> list[SignalTask]:
    """What it takes the processors to know of each other's work; by flags where there can be."""
    kinds = [kind for kind in get_args(Signalling) if kind != "flag_wait" or soc.gpu.has_flags]
    return [SignalTask(kind, gap_ms) for kind in kinds for gap_ms in GAPS_MS]


def batch_tasks(ops: Iterable[Op], soc: Soc, batches: Sequence[int]) -> list[BatchTask]:
    """A sample of `ops`, with every size of `batches` at once on either processor.

    Both share what one image cannot: the CPU has images side by side, the GPU all in one launch.
    """
    batched = [op for op in dict.fromkeys(ops) if in_batch(op, 2)]
    batched.sort(key=lambda op: (op.flops / op.bytes, to_text(op)))
    tasks = []
    for side in PROCESSORS:
        able = [op for op in batched if _default(op, side, soc)]
        for op in _evenly(able, BATCH_OPS):
            for images in batches:
                batch = in_batch(op, images)
                if batch is None or batch.bytes > MOST_BATCH_BYTES:
                    continue
                variant = next(iter(registry.variants(batch, side, soc)), None)
                if variant is not None and variant.takes_batch:
                    tasks.append(BatchTask(side, op, images, variant.name))
    return tasks


def in_batch(op: Op, images: int) -> Op | None:
    """The op with `images` images, from one with one; None where its inputs are no images."""
    if not op.is_batched or any(shape.n != 1 for shape in op.inputs):
        return None
    return replace(op, inputs=tuple(shape._replace(n=images) for shape in op.inputs))


def _evenly(items: Sequence[Any], count: int) -> list[Any]:
    if len(items) <= count:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, count).astype(int)]


def _default(op: Op, processor: Processor, soc: Soc) -> str:
    """The name of the default variant; empty where the processor has none."""
    return next((v.name for v in registry.variants(op, processor, soc)), "")


#: Seconds that a task takes in the mean, building and looking at the rows included: 5,500 of them
#: took 507 s on two cores of a server.
TASK_S = 0.09
#: Of what fits in the budget, the models' own ops take so much at most; the rest goes to similar
#: ones, from whose shapes the accuracy on shapes never seen comes.
OWN = 0.75
#: At most this many exchanges of the models' tensors come with their ops, and in a budget at most
#: this part of what fits there: data sharing has few features, and parts of ops have many.
EXCHANGES, EXCHANGES_PART = 1000, 0.2
#: At least this many come before any part: without them nothing can be planned.
FIRST_EXCHANGES = 96
#: Similar ops, at most and at least, and how many tasks one makes in the mean.
MOST_SIMILAR, LEAST_SIMILAR, TASKS_EACH = 800, 100, 5.5
#: What surrounds ops is slow to measure, and comes after every 8 other tasks.
EVERY = 8
#: Blocks of networks that no model here is of, whose whole ops come right after the models' own: at
#: most, and as many as take this part of a budget where one makes so many tasks.
BLOCKS = 16
ATTENTION, TASKS_A_BLOCK = 0.15, 120
CONVOLUTIONS, TASKS_A_CONV_BLOCK = 0.15, 95


class Tier(IntEnum):
    """What comes before what: whole ops of the models and some exchanges, then parts, then others.

    The first two are measured even where accuracy has settled: plans need them.
    """

    WHOLE = 0
    OWN = 1
    MORE = 2


@dataclass(frozen=True)
class TaskFilter:
    """The ops that a dataset covers, and which tasks are made of them.

    Parts of ops have these `shares` of an output, 0 ... 1. With `similar` that is how many more
    ops, as the models would have them for other images or widths; None is as many as there is time
    for. Some ops are measured for each of `batches` images at once too; with `others`, whole ops of
    networks that no model here is of.
    """

    ops: Sequence[Op]
    shares: Sequence[float]
    similar: int | None = None
    batches: Sequence[int] = ()
    others: bool = False


class OpSelection(NamedTuple):
    """Tasks in an order of which, within a tier, any first part is representative."""

    tasks: Sequence[Task]
    tiers: Mapping[Task, Tier]


def everything(scope: TaskFilter, soc: Soc) -> Sequence[Task]:
    """All tasks, in an order of which any first part is representative."""
    tasks = make_tasks(scope.ops, soc, scope.shares, similar_ops(scope.ops, scope.similar or 0))
    if scope.others:
        tasks += other_tasks(attention_ops(BLOCKS) + conv_ops(BLOCKS), soc, exclude=tasks)
    return mixed(context_tasks(scope.ops, soc, scope.batches), tasks)


def within(budget_s: float, scope: TaskFilter, soc: Soc) -> OpSelection:
    """The tasks for a budget of `budget_s` seconds."""
    in_context = context_tasks(scope.ops, soc, scope.batches)
    of_models = make_tasks(scope.ops, soc, scope.shares)
    fits = budget_s / TASK_S
    others = _similar_ops(scope, fits, len(of_models) + len(in_context))
    tasks = make_tasks(scope.ops, soc, scope.shares, others)
    first = _first(of_models, OWN * fits - len(in_context))
    tiers = {task: first.get(task, Tier.MORE) for task in tasks}
    tiers |= dict.fromkeys(in_context, Tier.OWN)
    if scope.others:
        attention = min(BLOCKS, round(ATTENTION * fits / TASKS_A_BLOCK))
        convolutions = min(BLOCKS, round(CONVOLUTIONS * fits / TASKS_A_CONV_BLOCK))
        ops = attention_ops(attention) + conv_ops(convolutions)
        unusual = other_tasks(ops, soc, exclude=tasks)
        tiers |= dict.fromkeys(unusual, Tier.WHOLE)
        tasks += unusual
    return OpSelection(mixed(in_context, _by_tier(tasks, tiers)), tiers)


def _by_tier(tasks: Iterable[Task], tiers: Mapping[Task, Tier]) -> list[Task]:
    """The tasks by tier, and in the first one exchanges in front: no plan can do without them.

    So the shortest collection has some of each, on a machine with any number of libraries.
    """
    first = Tier.WHOLE
    return sorted(
        tasks,
        key=lambda task: (tiers[task], tiers[task] is first and not isinstance(task, SharingTask)),
    )


def _similar_ops(scope: TaskFilter, fits: float, of_models: int) -> list[Op]:
    """Similar ops: as many as are wanted, or as fit beside `of_models` tasks of the models.

    A longer budget has all that a shorter one has, and more.
    """
    if scope.similar is not None:
        return similar_ops(scope.ops, scope.similar)
    similar = similar_ops(scope.ops, MOST_SIMILAR)
    random.Random(SEED).shuffle(similar)
    left = (fits - min(of_models, OWN * fits)) / TASKS_EACH
    return similar[: max(round(left), LEAST_SIMILAR)]


def other_tasks(ops: Sequence[Op], soc: Soc, *, exclude: Sequence[Task] = ()) -> list[OpTask]:
    """Whole ops, in every variant of both processors, without the tasks of `exclude`."""
    tasks = (
        task
        for op in ops
        for processor in PROCESSORS
        for task in op_tasks(op, processor, soc, [1.0])
    )
    others = set(exclude)
    return [task for task in dict.fromkeys(tasks) if task not in others]


def _first(tasks: Sequence[Task], fits: float) -> dict[Task, Tier]:
    """The models' own tasks in the first two tiers: all whole ops, and of the rest what fits."""
    wholes = [task for task in tasks if isinstance(task, OpTask) and task.share == 1]
    most = int(max(FIRST_EXCHANGES, min(EXCHANGES, EXCHANGES_PART * fits)))
    exchanges = [task for task in tasks if isinstance(task, SharingTask)][:most]
    chosen: set[Task] = {*wholes, *exchanges}
    parts = [task for task in tasks if isinstance(task, OpTask) and task not in chosen]
    chosen |= set(parts[: round(min(max(0, fits - len(chosen)), len(parts)))])
    first: list[Task] = [*wholes, *exchanges[:FIRST_EXCHANGES]]
    return dict.fromkeys(chosen, Tier.OWN) | dict.fromkeys(first, Tier.WHOLE)


def mixed(slow: Sequence[Task], others: Sequence[Task]) -> list[Task]:
    """One of the slow ones, in random order, after every few others: a short budget needs both."""
    left = list(slow)
    random.Random(SEED).shuffle(left)
    order: list[Task] = []
    for at, task in enumerate(others):
        order.append(task)
        if at % EVERY == EVERY - 1 and left:
            order.append(left.pop())
    return [*order, *left]
