"""Turns a task into a row: builds what it measures, measures it, or says why that failed."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from codl.collect.protocol import Latency, Protocol, measure, measure_together
from codl.collect.tasks import OpTask, SharingTask, Task
from codl.collect.work import GpuWork, cpu_work, filler, one_op_net, repeated
from codl.dataset import OpRow, Row, RowT, SharingRow
from codl.device import threads
from codl.device.cpu import CpuNet, Home
from codl.device.memory import SharedBuffer
from codl.device.opencl import open_device
from codl.errors import DeviceError
from codl.kernels import registry, tuned
from codl.kernels.base import Storage
from codl.ops import Pool2d, Region, Shape, Size2, to_text
from codl.soc import Soc


class Bench:
    """Runs tasks on the two processors of a SoC, in this process."""

    def __init__(self, soc: Soc, run: str, protocol: Protocol | None = None) -> None:
        self.soc = soc
        self.protocol = protocol or Protocol()
        self._run = run
        self._gpu = open_device(soc)
        threads.pin([0], soc.cpu.cores)

    def row(self, task: Task) -> Row:
        """Measure a task; whatever goes wrong becomes a failed row with its reason."""
        blank = _blank(task, self._run)
        try:
            if isinstance(task, SharingTask) and isinstance(blank, SharingRow):
                return self._exchange(task, blank)
            assert isinstance(task, OpTask)
            work = self._cpu_op(task) if task.processor == "cpu" else self._gpu_op(task)
            return _filled(blank, measure(work, self.protocol))
        except Exception as error:  # a failed configuration is a result, not the end
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            return replace(blank, status="failed", reason=reason)

    def _exchange(self, task: SharingTask, blank: SharingRow) -> Row:
        if task.direction == "load":
            return self._load(task.shape, blank)
        if task.direction == "store":
            return self._store(task.shape, blank)
        if task.direction == "relayout":
            return self._relayout(task, blank)
        exchange = self._to_gpu if task.direction == "to_gpu" else self._to_cpu
        return exchange(task.shape, task.storage, blank)

    def _cpu_op(self, task: OpTask) -> Any:
        """The op as a net of its own; its tensors stay packed (see `load` and `store`)."""
        return cpu_work(task.part, registry.find(task.part, task.variant), self.soc)

    def _gpu_op(self, task: OpTask) -> Any:
        """The op's kernels in their tuned choice, enqueued back to back, as in a chain."""
        variant: Any = registry.find(task.part, task.variant)
        plan = tuned.plan(variant, task.part, self.soc)
        return GpuWork(self._gpu, task.part, plan, filler(task.part))

    def _relayout(self, task: SharingTask, blank: SharingRow) -> Row:
        """The transform kernels alone, enqueued back to back, as in a chain."""
        gpu, whole = self._gpu, Region.whole(task.shape)
        source = gpu.tensor(task.shape, whole, registry.storages(self.soc)[0])
        target = gpu.tensor(task.shape, whole, task.storage)
        kernels = gpu.transform(source, target, whole)
        latency = measure(lambda repeats: gpu.run(kernels * repeats), self.protocol)
        return replace(_filled(blank, latency), transform_ms=latency.median)

    def _to_gpu(self, shape: Shape, storage: Storage, blank: SharingRow) -> Row:
        """As the co-executor does it: copy into mapped memory, unmap, transform, map again."""
        gpu, whole = self._gpu, Region.whole(shape)
        target, home = gpu.tensor(shape, whole, storage), Home.allocate(shape, whole)
        shared = SharedBuffer(gpu, shape, whole)
        kernels = gpu.transform(shared.tensor, target, whole)
        parts = Parts()
        gpu.wait(shared.map(write=True))

        def once() -> None:
            with parts.time("copy"):
                np.copyto(shared.array, home.array)
            with parts.time("unmap"):
                gpu.wait(shared.unmap())
            with parts.time("transform"):
                gpu.run(kernels)
            with parts.time("map"):
                gpu.wait(shared.map(write=True))

        return self._sharing(once, parts, blank)

    def _to_cpu(self, shape: Shape, storage: Storage, blank: SharingRow) -> Row:
        gpu, whole = self._gpu, Region.whole(shape)
        source, home = gpu.tensor(shape, whole, storage), Home.allocate(shape, whole)
        shared = SharedBuffer(gpu, shape, whole)
        kernels = gpu.transform(source, shared.tensor, whole)
        parts = Parts()

        def once() -> None:
            with parts.time("transform"):
                gpu.run(kernels)
            with parts.time("map"):
                gpu.wait(shared.map(write=False))
            with parts.time("copy"):
                np.copyto(home.array, shared.array)
            with parts.time("unmap"):
                gpu.wait(shared.unmap())

        return self._sharing(once, parts, blank)

    def _load(self, shape: Shape, blank: SharingRow) -> Row:
        """Packing what a net reads: a net that reads planar memory, less one that reads packed."""
        planar, packed = self._passing_on(shape), self._passing_on(shape)
        packed.pack_inputs()
        return self._difference(planar.compute, packed.compute, blank)

    def _store(self, shape: Shape, blank: SharingRow) -> Row:
        """Unpacking a net's result to its home: a net with that, less one without."""
        net = self._passing_on(shape)
        net.pack_inputs()
        return self._difference(net.run, net.compute, blank)

    def _passing_on(self, shape: Shape) -> CpuNet:
        """A net that passes its input on, as a pooling of one element."""
        op = Pool2d(inputs=(shape,), kernel=Size2(1, 1))
        return one_op_net(op, registry.variants(op, "cpu", self.soc)[0], self.soc)

    def _difference(self, more: Any, less: Any, blank: SharingRow) -> Row:
        """What one thing takes longer than another, in turns; raises where noise hides it."""
        longer, shorter = measure_together([repeated(more), repeated(less)], self.protocol)
        cost = Latency.of(list(np.subtract(longer, shorter)))
        if cost.median <= 0:
            raise DeviceError(f"lost in the noise: a median difference of {cost.median:.6f} ms")
        return replace(_filled(blank, cost), copy_ms=cost.median)

    def _sharing(self, once: Any, parts: Parts, blank: SharingRow) -> SharingRow:
        """Measure a whole exchange and its parts, and what a wait for an idle queue costs."""
        latency = measure(repeated(once), self.protocol)
        transform = parts.median_ms("transform")
        sync = min(self._sync_ms(), transform)
        return replace(
            _filled(blank, latency),
            transform_ms=transform - sync,
            sync_ms=sync,
            map_ms=parts.median_ms("map"),
            unmap_ms=parts.median_ms("unmap"),
            copy_ms=parts.median_ms("copy"),
        )

    def _sync_ms(self) -> float:
        parts = Parts()
        for _ in range(5):
            with parts.time("sync"):
                self._gpu.queue.finish()
        return parts.median_ms("sync")


class Parts:
    """Times the named parts of something that runs many times."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def time(self, name: str) -> _Part:
        return _Part(self._seconds.setdefault(name, []))

    def seconds(self, name: str) -> list[float]:
        return self._seconds.get(name, [0.0])

    def median_ms(self, name: str) -> float:
        return float(1e3 * np.median(self.seconds(name)))


class _Part:
    def __init__(self, seconds: list[float]) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *error: object) -> None:
        self._seconds.append(perf_counter() - self._start)


def _blank(task: Task, run: str) -> OpRow | SharingRow:
    """The task's row, without numbers."""
    if isinstance(task, SharingTask):
        return SharingRow(
            direction=task.direction, shape=str(task.shape), layout=str(task.storage), run=run
        )
    op, part = to_text(task.op), to_text(task.part)
    return OpRow(op=op, dim=task.dim, share=task.share, part=part, run=run)


def _filled(row: RowT, latency: Latency) -> RowT:
    return replace(
        row,
        latency_ms=latency.median,
        p20_ms=latency.p20,
        p80_ms=latency.p80,
        runs=latency.runs,
    )
