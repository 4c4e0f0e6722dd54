"""What an op's surroundings make of its latency alone: launches among others, images at once.

Each of these is measured on a sample of ops, and predicted for the rest. What is compared in a row
was measured in the same turns, so that the machine's drift cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from codl.ir import Op, Shape
from codl.ir.ops.pooling import Pool2d
from codl.ir.ops.window import Size2
from codl.ir.types import PLANAR, Processor
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.measure.dataset import BatchRow
from codl.measure.op_runner import GpuWork, cpu_work, filler, repeated
from codl.measure.sampling import in_batch
from codl.measure.tasks import FAR_BYTES, BatchTask, DispatchTask
from codl.records.results import Latency
from codl.records.statistic import level
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session

Work: TypeAlias = Callable[[int], None]

#: One image and the batch take so many turns, of about so long each.
BATCH_ROUNDS, BATCH_S = 5, 0.004
MOST_TIMES = 400
TINY = Pool2d(inputs=(Shape(1, 16, 1, 1),), kernel=Size2(1, 1))


class Surroundings:
    """Measures such tasks on the two processors of a SoC; raises where a measurement fails."""

    def __init__(self, gpu: OpenClDevice, tuning: Tuning = Tuning()) -> None:
        self.soc, self._gpu, self._tuning = gpu.soc, gpu, tuning

    def compile(self, task: BatchTask) -> None:
        """Build and run once what a task has on the GPU."""
        if task.processor == "gpu":
            for op in (task.op, TINY):
                for own in filter(None, dict.fromkeys((op, in_batch(op, task.images)))):
                    self._gpu_work(own)

    def batch(self, task: BatchTask) -> BatchRow:
        """One image, and the batch, in turns; each repeated.

        What a batch of tiny images takes longer than one is of the call, of which a network has one
        for all of its ops.
        """
        both = [[op, in_batch(op, task.images)] for op in (task.op, TINY)]
        works = [self._work(op, task.processor) for pair in both for op in pair if op]
        repeats = _repeats(works, BATCH_S)
        rounds = [
            [_seconds(work, times) / times for work, times in zip(works, repeats, strict=True)]
            for _ in range(BATCH_ROUNDS)
        ]
        single, together, tiny, tiny_together = np.array(rounds).T
        calls_ms = 1e3 * max(0.0, level(tiny_together) - level(tiny))
        single_ms, spread = 1e3 * level(single), Latency.of(together)
        return replace(
            task.blank,
            latency_ms=max(spread.level - calls_ms, single_ms),
            p20_ms=spread.p20,
            p80_ms=spread.p80,
            runs=spread.runs,
            single_ms=single_ms,
        )

    def dispatch(self, task: DispatchTask) -> Work:
        """Launches that compute next to nothing, ready to be repeated."""
        kernels = self._gpu_work(TINY)
        return repeated(lambda: kernels(task.count))

    def _work(self, op: Op, processor: Processor) -> Work:
        if processor == "gpu":
            return self._gpu_work(op)
        return cpu_work(op, registry.variants(op, "cpu", self.soc)[0], self.soc)

    def _gpu_work(self, op: Op) -> GpuWork:
        variant: Any = registry.variants(op, "gpu", self.soc)[0]
        return GpuWork(self._gpu, op, self._tuning.plan(variant, op, self.soc), filler(op))

    def evict(self) -> None:
        """Other data goes through the caches of both processors; then each is called once.

        So what is found far away afterwards is data, and not what a call needs.
        """
        self._evict_gpu(1)
        self._evict_cpu(1)
        for work in self._calls:
            work(1)

    @cached_property
    def _calls(self) -> tuple[Work, ...]:
        gpu, usual = self._gpu, registry.storages(self.soc)[0]
        copy = Session(pieces.relayout(TINY.output, PLANAR, usual, self.soc), gpu)
        kernels = copy.kernels(pieces.WORK)
        return self._work(TINY, "cpu"), self._work(TINY, "gpu"), lambda _: gpu.run(kernels)

    @cached_property
    def _evict_gpu(self) -> Work:
        """Streams `FAR_BYTES` through the GPU's caches."""
        return self._work(_stream(FAR_BYTES), "gpu")

    @cached_property
    def _evict_cpu(self) -> Work:
        """Streams as many through those of all of the CPU's cores: each has a part of an op."""
        return self._work(_stream(FAR_BYTES), "cpu")


def _stream(count: int) -> Op:
    """Reads half of so many bytes and writes the other half."""
    return Pool2d(inputs=(Shape(1, 16, count // (2 * 4 * 16 * 64), 64),), kernel=Size2(1, 1))


def _repeats(works: Sequence[Work], seconds: float) -> list[int]:
    """How often each has to run to last so long."""
    once = [min(_seconds(work, 1) for _ in range(3)) for work in works]
    return [min(MOST_TIMES, max(1, round(seconds / each))) for each in once]


def _seconds(work: Work, repeats: int) -> float:
    start = perf_counter()
    work(repeats)
    return perf_counter() - start
