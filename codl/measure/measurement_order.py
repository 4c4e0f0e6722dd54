"""The tasks of a collection and their order: ops of models first, then similar ops.

Slow context tasks are interspersed: launches, waits, and stages of small networks.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from codl.ir import Dim, Op, Shape, to_text
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.measure.extra_ops import block_ops, similar_ops
from codl.measure.tasks import (
    SEED,
    ContextTask,
    DispatchTask,
    OpTask,
    SharingTask,
    StageTask,
    Task,
    WaitTask,
    cuts_of,
    make_tasks,
    op_tasks,
    part_of,
)

#: Numbers of kernels launched together.
COUNTS = (1, 2, 4, 8, 16, 32)
#: Typical milliseconds in networks of a wait for a kernel.
GAPS_MS = (0.1, 0.3, 1.0, 3.0)
#: Most stages, and most ops of one.
STAGES, LONGEST = 120, 5
#: Most stages for each op.
EACH = 2
#: The GPU's shares of stages, in rotation; with 0 and 1, one processor works alone.
STAGE_RATIOS = (0.35, 0.45, 0.5, 0.55, 0.65, 0.5, 0.0, 1.0)
#: Random draws for each wanted stage.
DRAWS = 8
#: Most bytes of an op of a stage.
MOST_BYTES = 512 << 20


def context_tasks(ops: Iterable[Op], soc: Soc) -> list[ContextTask]:
    """Launches, waits and stages of `ops`."""
    launches = [DispatchTask(count) for count in COUNTS]
    return [*launches, *map(WaitTask, GAPS_MS), *stage_tasks(ops, soc)]


def stage_tasks(ops: Iterable[Op], soc: Soc) -> list[StageTask]:
    """Stages from deterministic random walks over ops, each step to a reader of the last output.

    Ops with several inputs occur only at the start of a walk.
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
    """A random stage with the GPU share `ratio`; None if a processor cannot run it."""
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
        return bool(registry.variants(op, side, soc))
    part = part_of(op, side, dim, ratio if side == "gpu" else round(1 - ratio, 6), soc)
    return part is not None and bool(registry.variants(part, side, soc))


#: Mean seconds of a task with building and choosing: 5,500 took 507 s on two cores of a server.
TASK_S = 0.09
#: Largest share of a budget for the models' own ops; the rest is for similar ops, which make
#: predictors accurate on unseen shapes.
OWN = 0.75
#: Most exchanges of the models' tensors, and their largest share of a budget; exchanges have fewer
#: features than parts of ops.
EXCHANGES, EXCHANGES_PART = 1000, 0.2
#: Exchanges measured before any part, because plans need them.
FIRST_EXCHANGES = 96
#: Most and least similar ops, and the mean number of tasks of one.
MOST_SIMILAR, LEAST_SIMILAR, TASKS_EACH = 800, 100, 5.5
#: Interval of slow context tasks among the others.
EVERY = 8
#: Most random blocks of each kind; by kind, their share of a budget and the tasks of a block.
BLOCKS = 16
ATTENTION, TASKS_A_BLOCK = 0.15, 120
CONVOLUTIONS, TASKS_A_CONV_BLOCK = 0.15, 95


@dataclass(frozen=True)
class TaskFilter:
    """The ops of a dataset and the extent of their tasks.

    `shares` (0 ... 1) are the shares of parts. `similar` is the number of similar ops, from other
    image sizes or widths; None means as many as fit in the time. `others` adds whole ops of
    attention and convolution blocks.
    """

    ops: Sequence[Op]
    shares: Sequence[float]
    similar: int | None = None
    others: bool = False


def everything(scope: TaskFilter, soc: Soc) -> Sequence[Task]:
    """All tasks of a scope, in an order of representative prefixes."""
    tasks = make_tasks(scope.ops, soc, scope.shares, similar_ops(scope.ops, scope.similar or 0))
    if scope.others:
        tasks += other_tasks(
            block_ops("attention", BLOCKS) + block_ops("conv", BLOCKS), soc, exclude=tasks
        )
    return mixed(context_tasks(scope.ops, soc), tasks)


def within(budget_s: float, scope: TaskFilter, soc: Soc) -> list[Task]:
    """The tasks for a budget of `budget_s` seconds, the most important ones first.

    Exchanges and whole ops come first, then further exchanges and parts, without both of which
    nothing can be planned, then similar ops. Each group is in random order.
    """
    in_context = context_tasks(scope.ops, soc)
    of_models = make_tasks(scope.ops, soc, scope.shares)
    fits = budget_s / TASK_S
    others = _similar_ops(scope, fits, len(of_models) + len(in_context))
    tasks = make_tasks(scope.ops, soc, scope.shares, others)
    whole, own = _first(of_models, OWN * fits - len(in_context))
    first = sorted(filter(whole.__contains__, tasks), key=lambda t: not isinstance(t, SharingTask))
    if scope.others:
        attention = min(BLOCKS, round(ATTENTION * fits / TASKS_A_BLOCK))
        convolutions = min(BLOCKS, round(CONVOLUTIONS * fits / TASKS_A_CONV_BLOCK))
        ops = block_ops("attention", attention) + block_ops("conv", convolutions)
        first += other_tasks(ops, soc, exclude=tasks)
    second = [task for task in tasks if task in own]
    known = whole | own
    return mixed(in_context, [*first, *second, *(task for task in tasks if task not in known)])


def _similar_ops(scope: TaskFilter, fits: float, of_models: int) -> list[Op]:
    """The requested number of similar ops, or a number that fits beside `of_models` tasks."""
    if scope.similar is not None:
        return similar_ops(scope.ops, scope.similar)
    similar = similar_ops(scope.ops, MOST_SIMILAR)
    random.Random(SEED).shuffle(similar)
    left = (fits - min(of_models, OWN * fits)) / TASKS_EACH
    return similar[: max(round(left), LEAST_SIMILAR)]


def other_tasks(ops: Sequence[Op], soc: Soc, *, exclude: Sequence[Task] = ()) -> list[OpTask]:
    """Tasks of whole ops in every variant of both processors, without those of `exclude`."""
    tasks = (
        task
        for op in ops
        for processor in PROCESSORS
        for task in op_tasks(op, processor, soc, [1.0])
    )
    others = set(exclude)
    return [task for task in dict.fromkeys(tasks) if task not in others]


def _first(tasks: Sequence[Task], fits: float) -> tuple[set[Task], set[Task]]:
    """The models' whole ops and first exchanges; and their other exchanges and parts that fit."""
    wholes = [task for task in tasks if isinstance(task, OpTask) and task.share == 1]
    most = int(max(FIRST_EXCHANGES, min(EXCHANGES, EXCHANGES_PART * fits)))
    exchanges = [task for task in tasks if isinstance(task, SharingTask)][:most]
    parts = [task for task in tasks if isinstance(task, OpTask) and task.share != 1]
    left = round(max(0, fits - len(wholes) - len(exchanges)))
    return {*wholes, *exchanges[:FIRST_EXCHANGES]}, {*exchanges[FIRST_EXCHANGES:], *parts[:left]}


def mixed(slow: Sequence[Task], others: Sequence[Task]) -> list[Task]:
    """Intersperse slow tasks, in random order, among the others: a short budget needs both."""
    left = list(slow)
    random.Random(SEED).shuffle(left)
    order: list[Task] = []
    for at, task in enumerate(others):
        order.append(task)
        if at % EVERY == EVERY - 1 and left:
            order.append(left.pop())
    return [*order, *left]
