"""Which ops are measured with their surroundings: a sample of a network's, as that is slow.

From those that compute most for a byte to those that only move, since the surroundings of an op are
mostly about memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, get_args

import numpy as np

from codl.ir import Op, to_text
from codl.ir.soc import Soc
from codl.ir.types import PROCESSORS, Processor, Signalling
from codl.kernels import registry
from codl.measure.tasks import (
    BatchTask,
    ColdTask,
    ContentionTask,
    DispatchTask,
    SignalTask,
    SurroundingsTask,
    part_of,
)

#: Kernels, or layers of one net, that are dispatched together.
COUNTS = (1, 2, 4, 8, 16, 32)
#: How long a queue is empty before a launch, and the CPU waits for a kernel: as in networks.
GAPS_MS = (0.1, 0.3, 1.0, 3.0)
#: Ops whose cold latency is measured, and ops that are run beside others.
COLD_OPS, PAIRED_OPS = 48, 24
#: Ops that are measured in batches, and the most bytes that one may read and write.
BATCH_OPS = 32
MOST_BATCH_BYTES = 1 << 30
#: Weights that are worth a thought: more than first caches hold.
LEAST_WEIGHTS = 1 << 20
#: Ops that read more than this would take the time of many others.
MOST_BYTES = 32 << 20


def surroundings_tasks(
    ops: Iterable[Op], soc: Soc, batches: Sequence[int] = ()
) -> list[SurroundingsTask]:
    """A sample of `ops`, from those that compute most for a byte to those that only move.

    For so many images at once too, where `batches` are given.

    Every second pair is the two shards of one op, as a split runs them; the others are shards of
    two ops that ask for memory to a different degree.
    """
    ops = list(ops)
    tasks: list[SurroundingsTask] = [*batch_tasks(ops, soc, batches)]
    known = sorted({op for op in ops if op.bytes <= MOST_BYTES}, key=_intensity)
    for side in PROCESSORS:
        tasks += [DispatchTask(side, count) for count in COUNTS]
    tasks += signal_tasks(soc)
    for side in PROCESSORS:
        able = [op for op in known if _default(op, side, soc)]
        tasks += [ColdTask(side, op, _default(op, side, soc)) for op in _evenly(able, COLD_OPS)]
    shards = [(cpu, gpu) for op in known for cpu, gpu in [_shards(op, soc)] if cpu and gpu]
    # Half of them by how much they compute for a byte; half those that go through most memory, and
    # those that read most weights.
    largest = sorted(shards, key=lambda pair: -pair[0].bytes)[: PAIRED_OPS // 4]
    heaviest = sorted(shards, key=lambda pair: -_weights(pair[0]))[: PAIRED_OPS // 4]
    chosen = list(dict.fromkeys([*_evenly(shards, PAIRED_OPS // 2), *largest, *heaviest]))
    # Beside one of quite another place in the order, and each of those once.
    away = len(chosen) // 2 + 1
    mixed = [(cpu, chosen[(i + away) % len(chosen)][1]) for i, (cpu, _) in enumerate(chosen)]
    for cpu, gpu in dict.fromkeys([*chosen, *mixed]):
        names = _default(cpu, "cpu", soc), _default(gpu, "gpu", soc)
        tasks.append(ContentionTask(cpu, names[0], gpu, names[1]))
    return tasks


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


def _weights(op: Op) -> float:
    """Of all that an op reads and writes, the part that is weights; 0 where that is little."""
    count = sum(prod(shape) for shape in op.weight_shapes.values())
    return 4 * count / op.bytes if 4 * count >= LEAST_WEIGHTS else 0.0


def _evenly(items: Sequence[Any], count: int) -> list[Any]:
    if len(items) <= count:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, count).astype(int)]


def _default(op: Op, processor: Processor, soc: Soc) -> str:
    """The name of the default variant; empty where the processor has none."""
    return next((v.name for v in registry.variants(op, processor, soc)), "")


def _shards(op: Op, soc: Soc) -> tuple[Op | None, Op | None]:
    """What each processor runs of an op that is split in the middle; None where that cannot be."""

    def shard(side: Processor) -> Op | None:
        part = part_of(op, side, op.dims[0], 0.5, soc) if op.dims else None
        return part if part and _default(part, side, soc) else None

    return shard("cpu"), shard("gpu")
