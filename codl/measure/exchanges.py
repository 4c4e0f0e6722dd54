"""Exchanges: making a tensor visible to the other processor, and the state of the caches before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from codl.ir import Op, Shape, parse
from codl.ir.executable import OpenVinoNet
from codl.ir.ops.pooling import Pool2d
from codl.ir.ops.window import Size2
from codl.ir.types import PLANAR, Direction
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.lower.rules import loading
from codl.measure.dataset import Row, RowT, SharingRow
from codl.measure.op_runner import Work, default_work, filler
from codl.measure.tasks import SharingTask
from codl.measure.timing import WHOLE, Samples, Seconds, by_clock
from codl.records.results import Latency
from codl.records.soc import Soc
from codl.records.statistic import level
from codl.runtime import threads
from codl.runtime.actions import Action
from codl.runtime.examination import memory_of
from codl.runtime.host_handles import HostSession
from codl.runtime.loaded import Timeline
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.runtime.session import Session

if TYPE_CHECKING:  # a device may have the GPU's package alone
    from codl.runtime.ncnn_net import NcnnSession

#: An op that computes next to nothing: what a call or a launch takes is left.
TINY = Pool2d(inputs=(Shape(1, 16, 1, 1),), kernel=Size2(1, 1))
#: Waiting for a queue that is idle.
SYNC = "sync"
#: A step may return a function that gives its seconds better than a clock around it does. That is
#: called after the following steps, since it may hold them up.
Step: TypeAlias = Callable[[], object]
Timer: TypeAlias = tuple[Callable[[int], Seconds], Callable[[Samples], Row]]
#: A stream moves at least so many bytes, more than caches of phones that SoC files do not list, and
#: at most this part of the memory.
LEAST_BYTES, MEMORY_PART = 64 << 20, 1 / 16
#: At most so many bytes go through the caches to empty them: the rest of a network moves no more
#: between two runs of an op. What stays in a cache of 300 MB there stays in it here.
MOST_EVICTED = 128 << 20
#: Sizes of a stream: libraries divide it among threads by blocks of channels, so there are many.
CHANNELS, COLUMNS = 256, 64
#: Channels on the other side of the convolution that wants OpenVINO's layout.
FEW = 16


def far_bytes(soc: Soc) -> int:
    """Twice the bytes of the CPU's largest cache, within the limits above."""
    largest = max((cache.bytes for cache in soc.cpu.caches), default=0)
    most = int(MEMORY_PART * memory_of().total)
    return max(LEAST_BYTES, min(2 * largest, most))


def stream_op(soc: Soc) -> Op:
    """An op that moves `far_bytes`, so that it is as fast as the memory."""
    return _moving(far_bytes(soc))


def evicting_op(soc: Soc) -> Op:
    """The op that empties the caches before every sample of an exchange or a stage."""
    return _moving(min(far_bytes(soc), MOST_EVICTED))


def _moving(moved: int) -> Op:
    """An op that reads half of some bytes, writes the other half, and computes almost nothing."""
    row_bytes = 2 * 4 * CHANNELS * COLUMNS
    shape = Shape(1, CHANNELS, moved // row_bytes, COLUMNS)
    return Pool2d(inputs=(shape,), kernel=Size2(1, 1))


class CacheEvictor:
    """The caches of both processors of a device."""

    def __init__(self, gpu: OpenClDevice, tuning: Tuning = Tuning()) -> None:
        self._gpu, self._tuning = gpu, tuning

    def evict(self) -> None:
        """Stream other data through the caches of both processors; then call each once.

        So the data are out of the caches afterwards, and what a call needs is in them.
        """
        for work in (*self._streams, *self._calls):
            work(1)

    @cached_property
    def _streams(self) -> tuple[Work, ...]:
        """Ops that read and write as much as a network does, a part on each core of the CPU."""
        op = evicting_op(self._gpu.soc)
        return tuple(default_work(op, side, self._gpu, self._tuning) for side in ("gpu", "cpu"))

    @cached_property
    def _calls(self) -> tuple[Work, ...]:
        gpu, soc = self._gpu, self._gpu.soc
        usual = registry.storages(soc)[0]
        kernels = Session(pieces.relayout(TINY.output, PLANAR, usual, soc), gpu).kernels(
            pieces.WORK
        )
        works = [default_work(TINY, side, gpu, self._tuning) for side in ("cpu", "gpu")]
        exchanges = self._exchange("to_gpu"), self._exchange("to_cpu")
        return *works, lambda _: gpu.run(kernels), *exchanges

    def _exchange(self, direction: Direction) -> Work:
        """The exchange of a tiny tensor, as in a network."""
        soc = self._gpu.soc
        executable = pieces.exchange(direction, TINY.output, registry.storages(soc)[0], soc)
        actions = Session(executable, self._gpu).stage(pieces.WORK)

        def work(repeats: int) -> None:
            for action in actions * repeats:
                action.run()
            self._gpu.queue.finish()

        return work


class Exchanges:
    """Times the exchanges of a device; raises where it cannot."""

    def __init__(self, gpu: OpenClDevice, caches: CacheEvictor) -> None:
        self._gpu, self._soc, self._caches = gpu, gpu.soc, caches

    def timer(self, task: SharingTask, row_template: SharingRow) -> Timer:
        """The sampler of a task, and the function that makes a row of its samples."""
        if task.direction == "load":
            return self._load(task.shape, row_template)
        if task.direction == "store":
            return self._store(task.shape, row_template)
        if task.direction == "relayout":
            return self._relayout(task, row_template)
        if task.direction in ("load_openvino", "store_openvino"):
            packing = OpenVinoPacking(task.direction, task.shape, self._soc)
            return packing.sample, _of_one_part("copy_ms", row_template)
        return self._transfer(task, row_template)

    def _relayout(self, task: SharingTask, row_template: SharingRow) -> Timer:
        """Times the copying kernels, enqueued back to back as in a chain."""
        usual = registry.storages(self._soc)[0]
        copy = pieces.relayout(task.shape, usual, task.storage, self._soc)
        kernels = Session(copy, self._gpu).kernels(pieces.WORK)
        sample = by_clock(lambda repeats: self._gpu.run(kernels * repeats))
        return sample, _of_one_part("transform_ms", row_template)

    def _transfer(self, task: SharingTask, row_template: SharingRow) -> Timer:
        """Times a transfer of data that the other processor has just written, as in a network.

        Other tensors go through the caches before it.
        """
        exchange = pieces.exchange(task.direction, task.shape, task.storage, self._soc)
        session = Session(exchange, self._gpu)
        if task.direction == "to_gpu":
            array, fresh = session.inputs[pieces.OUTPUT], np.zeros(task.shape, np.float32)
            write: Step = partial(np.copyto, array, fresh)
        else:
            write = partial(self._gpu.run, session.kernels(pieces.FEED))
        steps: list[tuple[str, Step]] = []
        for action in session.stage(pieces.WORK):
            part = "transform" if action.kind == "kernel" else action.kind
            if part not in ("", "sync"):
                steps.append((part, self._step(part, action)))
        steps.append((SYNC, self._gpu.queue.finish))

        def sample(repeats: int) -> Seconds:
            with self._gpu.profiling():
                return _seconds(repeats, steps, before=(self._caches.evict, write))

        def fill(samples: Samples) -> Row:
            levels = {part: 1e3 * level(taken) for part, taken in samples.items()}
            parts: Any = {f"{part}_ms": ms for part, ms in levels.items() if part != WHOLE}
            return replace(filled(row_template, samples[WHOLE]), **parts)

        return sample, fill

    def _step(self, part: str, action: Action) -> Step:
        """One part of an exchange, to its end; kernels by the device's clock."""

        def by_device() -> Callable[[], float]:
            timeline = Timeline()
            action.profile(timeline)
            self._gpu.queue.finish()

            def seconds() -> float:
                self._gpu.finish()
                return timeline.gpu_s()

            return seconds

        def to_its_end() -> None:
            action.run()
            if part != "copy":
                self._gpu.queue.finish()

        return by_device if part == "transform" else to_its_end

    def _load(self, shape: Shape, row_template: SharingRow) -> Timer:
        """Times packing of a net's input, with the call, which is all where nothing is packed.

        If both processors work on the CPU's arrays, the GPU writes this one just before.
        """
        if not self._soc.gpu.sees_host_memory:
            return _copying(self._passing_on(shape).packed, (), row_template)
        op, variant = self._passing(shape)
        executable = pieces.net_alone([op], variant, [{}], self._soc, is_shared=True)
        session = Session(executable, self._gpu, own_memory=True)
        net = cast("NcnnSession", session.nets[0])
        fresh = session.stage(pieces.FEED)

        def write() -> None:
            for action in fresh:
                action.run()

        return _copying(net.packed, (write,), row_template)

    def _store(self, shape: Shape, row_template: SharingRow) -> Timer:
        """Times unpacking of a net's result to its own array."""
        net = self._passing_on(shape)
        net.pack_inputs()
        results = net.compute()
        return _copying(lambda: net.unpack(results), (), row_template)

    def _passing(self, shape: Shape) -> tuple[Op, Any]:
        """A pooling of one element, which passes its input on, and its variant."""
        op = Pool2d(inputs=(shape,), kernel=Size2(1, 1))
        return op, registry.variants(op, "cpu", self._soc)[0]

    def _passing_on(self, shape: Shape) -> NcnnSession:
        op, variant = self._passing(shape)
        executable = pieces.net_alone([op], variant, [{}], self._soc)
        (net,) = HostSession(executable, self._soc, own_memory=True).nets
        return cast("NcnnSession", net)


class OpenVinoPacking:
    """Time to bring a tensor to the layout of OpenVINO's nets, or back, by OpenVINO's own profile.

    Its nets have channels last. Tensors with channels first are copied at their ends, at rates that
    differ twentyfold between shapes. Measured is a net of one convolution that reads the tensor or
    writes it; the constructor raises where OpenVINO does not load.
    """

    def __init__(self, way: Direction, shape: Shape, soc: LocalSoc) -> None:
        from codl.kernels.ort_openvino import CPU_OPENVINO  # an option
        from codl.measure.net_shares import profiled_in_openvino

        self._is_load = way == loading("openvino")
        channels = (shape.c, FEW) if self._is_load else (FEW, shape.c)
        op = parse(f"conv2d in=1x{channels[0]}x{shape.h}x{shape.w} oc={channels[1]} kernel=1x1")
        variant = registry.find(op, CPU_OPENVINO)
        executable = pieces.net_alone([op], variant, [filler(op)], soc)
        (net,) = executable.nets
        assert isinstance(net, OpenVinoNet)
        self._cores = soc.placement.cpu_cores
        with threads.pinned_to(self._cores):
            self._request = profiled_in_openvino(executable, net, soc)

    def sample(self, repeats: int) -> Seconds:
        """Mean seconds of the copies before the convolution, or behind it."""
        with threads.pinned_to(self._cores):
            return {WHOLE: sum(self._once_s() for _ in range(repeats)) / repeats}

    def _once_s(self) -> float:
        from codl.measure.net_shares import CUT_S, MOVES

        self._request.infer(share_outputs=True)
        before, behind, has_convolved = CUT_S, CUT_S, False
        for step in self._request.get_profiling_info():
            taken_s = step.real_time.total_seconds()
            if not taken_s:
                continue
            if step.node_type not in MOVES:
                has_convolved = True
            elif has_convolved:
                behind += taken_s
            else:
                before += taken_s
        return before if self._is_load else behind


def _seconds(
    repeats: int, steps: Sequence[tuple[str, Step]], before: Sequence[Step] = ()
) -> Seconds:
    """Seconds of steps by name, and of all of them, each time after others."""
    seconds = dict.fromkeys((name for name, _ in steps), 0.0)
    for _ in range(repeats):
        for step in before:
            step()
        asked: list[tuple[str, Callable[[], float]]] = []
        for name, step in steps:
            start = perf_counter()
            told = step()
            if callable(told):
                asked.append((name, told))
            else:
                seconds[name] += (perf_counter() - start) / repeats
        for name, told in asked:
            seconds[name] += told() / repeats
    return {WHOLE: sum(seconds.values()), **seconds}


def _copying(step: Step, before: Sequence[Step], row_template: SharingRow) -> Timer:
    """One step that only copies, after others that are not timed."""
    return lambda n: _seconds(n, [("copy", step)], before), _of_one_part("copy_ms", row_template)


def _of_one_part(column: str, row_template: SharingRow) -> Callable[[Samples], Row]:
    def fill(samples: Samples) -> Row:
        row = filled(row_template, samples[WHOLE])
        parts: Any = {column: row.latency_ms}
        return replace(row, **parts)

    return fill


def filled(row: RowT, samples_s: Sequence[float]) -> RowT:
    """The row with its latency."""
    taken = Latency.of(samples_s)
    return replace(row, latency_ms=taken.level, p20_ms=taken.p20, p80_ms=taken.p80, runs=taken.runs)
