"""What an op's surroundings add to its latency alone: dispatch, cold caches, the other processor.

Inside a network an op finds its weights evicted by those before it, its kernels are enqueued among
others, and the other processor works beside it on the same memory; and several images at once take
less than one after the other. Each of these is measured on a sample of ops, and predicted for the
rest.

What is compared in a row was measured in the same turns, so that the machine's drift cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from codl.ir import Op, Shape
from codl.ir.ops.pool2d import Pool2d
from codl.ir.ops.window import Size2
from codl.ir.results import Latency
from codl.ir.statistic import level
from codl.ir.types import PLANAR, Processor
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.measure.dataset import BatchRow, ColdRow, ContentionRow
from codl.measure.op_runner import (
    GpuTurns,
    GpuWork,
    cpu_work,
    filler,
    in_turns,
    repeated,
    row_of_ops,
)
from codl.measure.sampling import in_batch
from codl.measure.tasks import (
    EVICTED_BYTES,
    BatchTask,
    ColdTask,
    ContentionTask,
    DispatchTask,
)
from codl.runtime.caches import last_cache_bytes
from codl.runtime.opencl import OpenClDevice
from codl.runtime.profiler import Timeline
from codl.runtime.session import Session

Work: TypeAlias = Callable[[int], None]

#: One image and the batch take so many turns, of about so long each.
BATCH_ROUNDS, BATCH_S = 5, 0.004
ROUNDS, COLD_ROUNDS = 9, 7
#: A side of a pair is repeated until it lasts about so long, and the other one for longer.
PAIR_S, LONGER = 0.003, 2.0
MOST_TIMES = 400
#: What is repeated warm lasts about so long, and begins with so many runs that are not timed.
WARM_S, SETTLE = 0.0005, 6
#: No op is faster cold than warm; a difference below this share of the latency is noise.
MOST_GAIN = 0.9
#: So many copies of an op take turns at most.
MOST_COPIES = 8
TINY = Pool2d(inputs=(Shape(1, 16, 1, 1),), kernel=Size2(1, 1))
#: Where the last cache is larger than others', so many times its bytes are evicted, at most these.
CACHES, MOST_EVICTED_BYTES = 2, 1 << 30


class Surroundings:
    """Measures these tasks on the two processors of a SoC; raises where a measurement fails."""

    def __init__(self, gpu: OpenClDevice, tuning: Tuning = Tuning()) -> None:
        self.soc, self._gpu, self._tuning = gpu.soc, gpu, tuning

    def row(
        self, task: BatchTask | ColdTask | ContentionTask
    ) -> BatchRow | ColdRow | ContentionRow:
        if isinstance(task, BatchTask):
            return self._batch(task)
        return self._cold(task) if isinstance(task, ColdTask) else self._contention(task)

    def compile(self, task: BatchTask | ColdTask | ContentionTask) -> None:
        """Build and run once what a task has on the GPU."""
        if isinstance(task, ContentionTask):
            self._gpu_work(task.gpu)
        elif task.processor == "gpu":
            images = task.images if isinstance(task, BatchTask) else 1
            for op in (task.op, TINY):
                for own in filter(None, dict.fromkeys((op, in_batch(op, images)))):
                    self._gpu_work(own)

    def _batch(self, task: BatchTask) -> BatchRow:
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
        if task.processor == "gpu":
            kernels = self._gpu_work(TINY)
            return repeated(lambda: kernels(task.count))
        variant = registry.variants(TINY, "cpu", self.soc)[0]
        return repeated(row_of_ops([TINY] * task.count, variant, self.soc))

    def _cold(self, task: ColdTask) -> ColdRow:
        """In turns: repeated while warm, and once after the caches were filled with other data.

        What a tiny op takes longer then is of the call, and not of the caches.
        """
        works = [self._work(op, task.processor) for op in (task.op, TINY)]
        evict = self._empty_gpu if task.processor == "gpu" else self._empty_cpu
        repeats = [max(1, round(WARM_S / _seconds(work, 1))) for work in works]
        rounds = []
        for _ in range(COLD_ROUNDS):
            found = []
            for work, times in zip(works, repeats, strict=True):
                work(min(SETTLE, times))
                found.append(_seconds(work, times) / times)
                evict(1)
                found.append(_seconds(work, 1))
            rounds.append(found)
        warm, cold, tiny_warm, tiny_cold = np.array(rounds).T
        calls_ms = 1e3 * (level(tiny_cold) - level(tiny_warm))
        warm_ms, spread = 1e3 * level(warm), Latency.of(cold)
        return replace(
            task.blank,
            evicted_bytes=self._cold_bytes(task.processor),
            latency_ms=max(spread.level - calls_ms, MOST_GAIN * warm_ms),
            p20_ms=spread.p20,
            p80_ms=spread.p80,
            runs=spread.runs,
            warm_ms=warm_ms,
        )

    def _contention(self, task: ContentionTask) -> ContentionRow:
        """Each alone, and each beside the other that goes on for longer, in turns.

        Copies of an op take turns too, so that each finds its weights as far away as in a network.
        """
        variant = registry.find(task.cpu, task.cpu_variant)
        cpu = in_turns(
            [cpu_work(task.cpu, variant, self.soc) for _ in range(self._copies(task.cpu))]
        )
        gpu = GpuTurns(self._gpu, [self._gpu_work(task.gpu) for _ in range(self._copies(task.gpu))])
        times, longer = _repeats([cpu, gpu], PAIR_S), _repeats([cpu, gpu], LONGER * PAIR_S)
        rounds = []
        with self._gpu.profiling():
            for _ in range(ROUNDS):
                alone = _seconds(cpu, times[0]), self._gpu_seconds(gpu, times[1])
                mine, _ = self._together(cpu, gpu, times[0], longer[1])
                _, theirs = self._together(cpu, gpu, longer[0], times[1])
                rounds.append([*alone, mine, theirs])
        found_ms = [1e3 * level(own) for own in np.array(rounds).T]
        alone_ms = [ms / count for ms, count in zip(found_ms[:2], times, strict=True)]
        cpu_ms, gpu_ms = (ms / count for ms, count in zip(found_ms[2:], times, strict=True))
        both = max(cpu_ms, gpu_ms)
        return replace(
            task.blank,
            latency_ms=both,
            p20_ms=both,
            p80_ms=both,
            runs=ROUNDS,
            cpu_alone_ms=alone_ms[0],
            gpu_alone_ms=alone_ms[1],
            cpu_together_ms=cpu_ms,
            gpu_together_ms=gpu_ms,
        )

    def _copies(self, op: Op) -> int:
        """So many of an op that none is in a cache when its turn comes, if that many will do."""
        return max(1, min(MOST_COPIES, -(-EVICTED_BYTES // op.bytes)))

    def _together(
        self, cpu: Work, gpu: GpuTurns, cpu_times: int, gpu_times: int
    ) -> tuple[float, float]:
        """Seconds that each side takes when both begin at once."""
        timeline = Timeline()
        gpu.enqueue(gpu_times, timeline)
        mine = _seconds(cpu, cpu_times)
        return mine, self._finished(timeline)

    def _gpu_seconds(self, gpu: GpuTurns, times: int) -> float:
        timeline = Timeline()
        gpu.enqueue(times, timeline)
        return self._finished(timeline)

    def _finished(self, timeline: Timeline) -> float:
        self._gpu.finish()
        return timeline.gpu_s()

    def evict(self) -> None:
        """Other data goes through the caches of both processors; then each is called once.

        So what is found far away afterwards is data, and not what a call needs.
        """
        self._evict(1)
        if not self.soc.gpu.sees_host_memory:
            self._evict_cpu(1)
        for work in self._calls:
            work(1)

    def _work(self, op: Op, processor: Processor) -> Work:
        if processor == "gpu":
            return self._gpu_work(op)
        return cpu_work(op, registry.variants(op, "cpu", self.soc)[0], self.soc)

    def _gpu_work(self, op: Op) -> GpuWork:
        variant: Any = registry.variants(op, "gpu", self.soc)[0]
        return GpuWork(self._gpu, op, self._tuning.plan(variant, op, self.soc), filler(op))

    @cached_property
    def _calls(self) -> tuple[Work, ...]:
        gpu, usual = self._gpu, registry.storages(self.soc)[0]
        copy = Session(pieces.relayout(TINY.output, PLANAR, usual, self.soc), gpu)
        kernels = copy.kernels(pieces.WORK)
        return self._work(TINY, "cpu"), self._work(TINY, "gpu"), lambda _: gpu.run(kernels)

    @cached_property
    def _evict(self) -> Work:
        """Streams `EVICTED_BYTES` through the GPU's caches."""
        return self._work(_stream(EVICTED_BYTES), "gpu")

    @cached_property
    def _evict_cpu(self) -> Work:
        """Streams as many through those of all of the CPU's cores: each has a part of an op."""
        return self._work(_stream(EVICTED_BYTES), "cpu")

    def _cold_bytes(self, processor: Processor) -> int:
        """What goes through the caches of a processor before an op runs cold.

        A server's last cache would keep an op's weights from one sample to the next, but not those
        of a whole network.
        """
        if processor == "gpu" and not self.soc.gpu.is_cpu:
            return EVICTED_BYTES
        return min(max(EVICTED_BYTES, CACHES * last_cache_bytes()), MOST_EVICTED_BYTES)

    @cached_property
    def _empty_gpu(self) -> Work:
        return self._work(_stream(self._cold_bytes("gpu")), "gpu")

    @cached_property
    def _empty_cpu(self) -> Work:
        return self._work(_stream(self._cold_bytes("cpu")), "cpu")


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
