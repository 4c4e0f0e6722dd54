"""What is measured first: the ops of models, in a budget as far as they fit, then similar ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import NamedTuple

from codl.ir import Op
from codl.ir.types import PROCESSORS
from codl.measure.attention_ops import attention_ops
from codl.measure.sampling import surroundings_tasks
from codl.measure.synthetic_ops import similar_ops
from codl.measure.tasks import (
    SEED,
    OpTask,
    SharingTask,
    StageTask,
    Task,
    make_tasks,
    op_tasks,
)
from codl.records.soc import Soc

#: Seconds that a task takes in the mean, building and looking at the rows included: 5,500 of them
#: took 507 s on two cores of a server.
TASK_S = 0.09
#: Of what fits in the budget, the models' own ops take so much at most; the rest goes to similar
#: ones, from whose shapes the accuracy on shapes never seen comes.
OWN = 0.75
#: So many exchanges of the models' own tensors come with their ops, and in a budget at most this
#: part of what fits there: data sharing has few features, and parts of ops have many.
EXCHANGES, EXCHANGES_PART = 1000, 0.2
#: And so many of them before any part: without them nothing can be planned.
FIRST_EXCHANGES = 64
#: Similar ops, at most and at least, and how many tasks one makes in the mean.
MOST_SIMILAR, LEAST_SIMILAR, TASKS_EACH = 800, 100, 3.8
#: What surrounds ops is slow to measure, and comes after every so many other tasks.
EVERY = 8
#: Blocks of attention, whose whole ops come right after the models' own: at most, as many as take
#: this part of a budget, and how many tasks one makes.
BLOCKS, ATTENTION, TASKS_A_BLOCK = 16, 0.15, 88


class Tier(IntEnum):
    """What comes before what: whole ops of the models and some exchanges, then parts, then others.

    The first two are measured even where accuracy has settled: plans are made of them.
    """

    WHOLE = 0
    OWN = 1
    MORE = 2


@dataclass(frozen=True)
class Scope:
    """What a dataset is to know: ops of models, and what else comes with them.

    Parts of ops have these `shares` of an output, 0 ... 1. With `similar` that is how many more
    ops, as the models would have them for other images or widths; None is as many as there is time
    for. Some ops are measured for each of `batches` images at once too; with `attention`, whole
    ops of networks that no model here is of.
    """

    ops: Sequence[Op]
    shares: Sequence[float]
    similar: int | None = None
    batches: Sequence[int] = ()
    attention: bool = False


class OpSelection(NamedTuple):
    """Tasks in an order of which, within a tier, any first part is representative."""

    tasks: Sequence[Task]
    tiers: Mapping[Task, Tier]


def everything(scope: Scope, soc: Soc) -> Sequence[Task]:
    """All tasks, in an order of which any first part is representative."""
    tasks = make_tasks(scope.ops, soc, scope.shares, similar_ops(scope.ops, scope.similar or 0))
    if scope.attention:
        tasks += attention_tasks(BLOCKS, soc, known=tasks)
    return mixed(surroundings_tasks(scope.ops, soc, scope.batches), tasks)


def wholes_first(scope: Scope, soc: Soc) -> OpSelection:
    """All tasks: those of the first tier, then others of which any first part is representative.

    The first has whole ops and some exchanges, without which nothing can be planned, launches and
    waits, and what was asked for beside: similar ops, batches, ops of attention.
    """
    own = _first(make_tasks(scope.ops, soc, scope.shares), inf)
    tasks = everything(scope, soc)
    tiers = {task: own.get(task, _tier_beside(task)) for task in tasks}
    return OpSelection(sorted(tasks, key=lambda task: tiers[task]), tiers)


def _tier_beside(task: Task) -> Tier:
    """Of what is no op of the models, and no exchange of theirs."""
    return Tier.OWN if isinstance(task, SharingTask | StageTask) else Tier.WHOLE


def within(budget_s: float, scope: Scope, soc: Soc) -> OpSelection:
    """The tasks for so many seconds."""
    surroundings = surroundings_tasks(scope.ops, soc, scope.batches)
    own = make_tasks(scope.ops, soc, scope.shares)
    fits = budget_s / TASK_S
    others = _similar_ops(scope, fits, len(own) + len(surroundings))
    tasks = make_tasks(scope.ops, soc, scope.shares, others)
    first = _first(own, OWN * fits - len(surroundings))
    tiers = {task: first.get(task, Tier.MORE) for task in tasks}
    tiers |= dict.fromkeys(surroundings, Tier.OWN)
    if scope.attention:
        unusual = attention_tasks(round(ATTENTION * fits / TASKS_A_BLOCK), soc, known=tasks)
        tiers |= dict.fromkeys(unusual, Tier.WHOLE)
        tasks += unusual
    ordered = sorted(tasks, key=lambda task: tiers[task])
    return OpSelection(mixed(surroundings, ordered), tiers)


def _similar_ops(scope: Scope, fits: float, own: int) -> list[Op]:
    """As many as are wanted, or as fit beside so many own tasks of the models.

    A longer budget has all that a shorter one has, and more.
    """
    if scope.similar is not None:
        return similar_ops(scope.ops, scope.similar)
    found = similar_ops(scope.ops, MOST_SIMILAR)
    random.Random(SEED).shuffle(found)
    left = (fits - min(own, OWN * fits)) / TASKS_EACH
    return found[: max(round(left), LEAST_SIMILAR)]


def attention_tasks(blocks: int, soc: Soc, *, known: Sequence[Task] = ()) -> list[OpTask]:
    """Whole ops of so many blocks, `BLOCKS` at most, but for `known` tasks."""
    found = (
        task
        for op in attention_ops(min(blocks, BLOCKS))
        for processor in PROCESSORS
        for task in op_tasks(op, processor, soc, [1.0])
    )
    others = set(known)
    return [task for task in dict.fromkeys(found) if task not in others]


def _first(own: Sequence[Task], fits: float) -> dict[Task, Tier]:
    """The models' own tasks in the first two tiers: all whole ops, and of the rest what fits."""
    wholes = [task for task in own if isinstance(task, OpTask) and task.share == 1]
    most = int(max(FIRST_EXCHANGES, min(EXCHANGES, EXCHANGES_PART * fits)))
    exchanges = [task for task in own if isinstance(task, SharingTask)][:most]
    chosen: set[Task] = {*wholes, *exchanges}
    parts = [task for task in own if isinstance(task, OpTask) and task not in chosen]
    chosen |= set(parts[: round(min(max(0, fits - len(chosen)), len(parts)))])
    first: list[Task] = [*wholes, *exchanges[:FIRST_EXCHANGES]]
    return dict.fromkeys(chosen, Tier.OWN) | dict.fromkeys(first, Tier.WHOLE)


def mixed(slow: Sequence[Task], others: Sequence[Task]) -> list[Task]:
    """One of the slow ones, in random order, after every few others: a short budget needs both."""
    left = list(slow)
    random.Random(SEED).shuffle(left)
    found: list[Task] = []
    for at, task in enumerate(others):
        found.append(task)
        if at % EVERY == EVERY - 1 and left:
            found.append(left.pop())
    return [*found, *left]
