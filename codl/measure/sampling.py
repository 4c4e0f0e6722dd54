"""What is measured of ops in their surroundings: launches, batches, and stages of small networks.

A sample of ops, as that is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, get_args

import numpy as np

from codl.ir import Dim, Op, Shape, to_text
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.types import PROCESSORS, Processor, Signalling
from codl.kernels import registry
from codl.measure.tasks import (
    SEED,
    BatchTask,
    DispatchTask,
    SignalTask,
    StageTask,
    SurroundingsTask,
    cuts_of,
    part_of,
)
from codl.records.soc import Soc

#: Kernels, or layers of one net, that are dispatched together.
COUNTS = (1, 2, 4, 8, 16, 32)
#: How long a queue is empty before a launch, and the CPU waits for a kernel: as in networks.
GAPS_MS = (0.1, 0.3, 1.0, 3.0)
#: Stages that are measured, and how many ops one has at most.
STAGES, LONGEST = 120, 5
#: And so many for each op.
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


def surroundings_tasks(
    ops: Iterable[Op], soc: Soc, batches: Sequence[int] = ()
) -> list[SurroundingsTask]:
    """Launches, waits and stages of `ops`; for so many images at once too, where `batches` are."""
    ops = list(ops)
    tasks: list[SurroundingsTask] = [*batch_tasks(ops, soc, batches)]
    tasks += [DispatchTask(count) for count in COUNTS]
    tasks += signal_tasks(soc)
    tasks += stage_tasks(ops, soc)
    return tasks


def stage_tasks(ops: Iterable[Op], soc: Soc) -> list[StageTask]:
    """Random walks over ops, each to one that reads what the op before makes; the same every time.

    So they are stages as those of the ops' networks. Ops that read several tensors begin a walk.
    """
    known = sorted({op for op in ops if _fits_a_stage(op)}, key=to_text)
    readers: dict[Shape, list[Op]] = {}
    for op in known:
        if len(op.inputs) == 1:
            readers.setdefault(op.inputs[0], []).append(op)
    starts = [op for op in known if op.output in readers]
    dice, found = Random(SEED), dict[StageTask, None]()
    wanted = min(STAGES, EACH * len(known)) if starts else 0
    for _ in range(DRAWS * wanted):
        ratio = STAGE_RATIOS[len(found) % len(STAGE_RATIOS)]
        task = _walk(dice, starts, readers, ratio, soc)
        if task is not None:
            found.setdefault(task)
        if len(found) == wanted:
            break
    return list(found)


def _fits_a_stage(op: Op) -> bool:
    return op.bytes <= MOST_BYTES and op.images == 1 and not isinstance(op, OnnxModel)


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
        if dim not in cuts_of(following) or not _keeps_a_chain(following, dim):
            break
        chain.append(following)
    sides = [side for side, none in (("cpu", 1.0), ("gpu", 0.0)) if ratio != none]
    if not all(_is_able(op, side, dim, ratio, soc) for op in (before, *chain) for side in sides):  # type: ignore[arg-type]
        return None
    return StageTask(before, tuple(chain), dim, ratio)


def _keeps_a_chain(op: Op, dim: Dim) -> bool:
    """Whether a chain that is cut along a dimension goes on behind this op."""
    return dim == "H" or op.carries_channels


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
    """A sample of `ops`, so many images of each at once on either processor.

    Both share what one image cannot: the CPU has images side by side, the GPU all in one launch.
    """
    known = sorted({op for op in ops if in_batch(op, 2)}, key=_intensity)
    found = []
    for side in PROCESSORS:
        able = [op for op in known if _default(op, side, soc)]
        for op in _evenly(able, BATCH_OPS):
            for images in batches:
                batch = in_batch(op, images)
                if batch is None or batch.bytes > MOST_BATCH_BYTES:
                    continue
                variant = next(iter(registry.variants(batch, side, soc)), None)
                if variant is not None and variant.takes_batch:
                    found.append(BatchTask(side, op, images, variant.name))
    return found


def in_batch(op: Op, images: int) -> Op | None:
    """The op of so many images, of one that has one; None where its inputs are no images."""
    if not op.is_batched or any(shape.n != 1 for shape in op.inputs):
        return None
    return replace(op, inputs=tuple(shape._replace(n=images) for shape in op.inputs))


def _intensity(op: Op) -> tuple[float, str]:
    return op.flops / op.bytes, to_text(op)


def _evenly(items: Sequence[Any], count: int) -> list[Any]:
    if len(items) <= count:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, count).astype(int)]


def _default(op: Op, processor: Processor, soc: Soc) -> str:
    """The name of the default variant; empty where the processor has none."""
    return next((v.name for v in registry.variants(op, processor, soc)), "")
