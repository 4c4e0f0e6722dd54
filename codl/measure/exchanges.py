"""Timing of exchanges, which make a tensor visible to the other processor, and of waits.

A wait is the host's time from enqueueing to noticing the end, less the device's time from
enqueueing to the end; host and device clocks share no zero, so only differences compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from codl.errors import DeviceError
from codl.ir import Op, Shape, parse
from codl.ir.executable import OpenVinoNet
from codl.ir.ops.window import Pool2d, Size2
from codl.ir.records.results import Latency
from codl.ir.records.soc import Soc
from codl.ir.records.statistic import level
from codl.ir.types import PLANAR, Direction
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.lower.partition import loading
from codl.machine import threads
from codl.machine.examination import memory_of
from codl.machine.placement import LocalSoc
from codl.measure.dataset import Row, RowT, SharingRow
from codl.measure.op_runner import (
    CUT_S,
    MOVES,
    Work,
    default_work,
    filler,
    openvino_steps,
    profiled_in_openvino,
)
from codl.measure.tasks import SharingTask, WaitTask
from codl.measure.timing import WHOLE, Samples, Seconds, by_clock
from codl.runtime.actions import Action
from codl.runtime.drivers import cl_module, make_kernel
from codl.runtime.launch import BoundKernel
from codl.runtime.loaded import Timeline
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session, host_session

if TYPE_CHECKING:  # a device may have the GPU's package alone
    from codl.runtime.ncnn_net import NcnnSession

#: An op that computes almost nothing, to time a call or a launch.
TINY = Pool2d(inputs=(Shape(1, 16, 1, 1),), kernel=Size2(1, 1))
#: Name of the wait for an idle queue.
SYNC = "sync"
#: A step of an exchange. It may return a function for its seconds by the device's more precise
#: clock, called after all steps.
Step: TypeAlias = Callable[[], object]
Timer: TypeAlias = tuple[Callable[[int], Seconds], Callable[[Samples], Row]]
#: Least bytes streamed to evict caches, above phones' unlisted caches, and the largest share of
#: memory.
LEAST_BYTES, MEMORY_PART = 64 << 20, 1 / 16
#: Most bytes streamed: about a network's traffic between two runs of an op. Larger caches (300 MB)
#: keep data here as they do in a network.
MOST_EVICTED = 128 << 20
#: Channels and columns of a stream; libraries divide it among threads by blocks of channels.
CHANNELS, COLUMNS = 256, 64
#: Channels on the other side of the convolution that measures OpenVINO's packing.
FEW = 16


def evicting_op(soc: Soc) -> Op:
    """The op that evicts the caches before every sample of an exchange or a stage.

    It reads and writes twice the CPU's largest cache, with almost no arithmetic.
    """
    largest = max((cache.bytes for cache in soc.cpu.caches), default=0)
    most = min(MOST_EVICTED, int(MEMORY_PART * memory_of().total))
    moved = max(LEAST_BYTES, min(2 * largest, most))
    row_bytes = 2 * 4 * CHANNELS * COLUMNS
    shape = Shape(1, CHANNELS, moved // row_bytes, COLUMNS)
    return Pool2d(inputs=(shape,), kernel=Size2(1, 1))


class CacheEvictor:
    """Empties the caches of both processors of a device."""

    def __init__(self, gpu: OpenClDevice, tuning: Tuning = Tuning()) -> None:
        self._gpu, self._tuning = gpu, tuning

    def evict(self) -> None:
        """Stream other data through both processors' caches, then run a tiny op on each.

        Afterwards the caches hold the code of a call, but not the data to measure.
        """
        for work in (*self._streams, *self._calls):
            work(1)

    @cached_property
    def _streams(self) -> tuple[Work, ...]:
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
    """Times the exchanges of a device."""

    def __init__(self, gpu: OpenClDevice, caches: CacheEvictor) -> None:
        self._gpu, self._soc, self._caches = gpu, gpu.soc, caches

    def timer(self, task: SharingTask, row_template: SharingRow) -> Timer:
        """The sampler of a task, and the converter of its samples to a row."""
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
        """Time the copying kernels, enqueued back to back as in a chain."""
        usual = registry.storages(self._soc)[0]
        copy = pieces.relayout(task.shape, usual, task.storage, self._soc)
        kernels = Session(copy, self._gpu).kernels(pieces.WORK)
        sample = by_clock(lambda repeats: self._gpu.run(kernels * repeats))
        return sample, _of_one_part("transform_ms", row_template)

    def _transfer(self, task: SharingTask, row_template: SharingRow) -> Timer:
        """Time a transfer of data just written by the other processor, with evicted caches."""
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
        """A step with the wait for its end; a kernel's step returns its time by the device."""

        def by_device() -> Callable[[], float]:
            timeline = Timeline()
            action.profile(timeline)
            self._gpu.queue.finish()

            def seconds() -> float:
                self._gpu.finish()
                spans = [span for span in timeline.spans() if span.processor == "gpu"]
                return 1e-3 * (max(s.end_ms for s in spans) - min(s.start_ms for s in spans))

            return seconds

        def to_its_end() -> None:
            action.run()
            if part != "copy":
                self._gpu.queue.finish()

        return by_device if part == "transform" else to_its_end

    def _load(self, shape: Shape, row_template: SharingRow) -> Timer:
        """Time packing of a net's input, including the call.

        With host memory shared by both processors, the GPU writes the input just before.
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
        """Time unpacking of a net's result to its own array."""
        net = self._passing_on(shape)
        net.pack_inputs()
        results = net.compute()
        return _copying(lambda: net.unpack(results), (), row_template)

    def _passing(self, shape: Shape) -> tuple[Op, Any]:
        """A 1x1 pooling, which is the identity, and its default CPU variant."""
        op = Pool2d(inputs=(shape,), kernel=Size2(1, 1))
        return op, registry.variants(op, "cpu", self._soc)[0]

    def _passing_on(self, shape: Shape) -> NcnnSession:
        op, variant = self._passing(shape)
        executable = pieces.net_alone([op], variant, [{}], self._soc)
        (net,) = host_session(executable, self._soc, own_memory=True).nets
        return cast("NcnnSession", net)


class OpenVinoPacking:
    """Timer of a tensor's conversion to or from OpenVINO's layout, by OpenVINO's profile.

    OpenVINO's nets have channels last and convert tensors at their ends, at rates that differ
    twentyfold between shapes. The measured net is one convolution that reads or writes the tensor.
    The constructor raises if OpenVINO cannot be loaded.
    """

    def __init__(self, way: Direction, shape: Shape, soc: LocalSoc) -> None:
        from codl.kernels.cpu import CPU_OPENVINO  # optional

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
        """Mean seconds of the conversions before (load) or after (store) the convolution."""
        with threads.pinned_to(self._cores):
            return {WHOLE: sum(self._once_s() for _ in range(repeats)) / repeats}

    def _once_s(self) -> float:
        steps = openvino_steps(self._request)
        at = next(at for at, (kind, _) in enumerate(steps) if kind not in MOVES)
        moves = steps[:at] if self._is_load else steps[at:]
        return CUT_S + sum(taken_s - CUT_S for kind, taken_s in moves if kind in MOVES)


def _seconds(
    repeats: int, steps: Sequence[tuple[str, Step]], before: Sequence[Step] = ()
) -> Seconds:
    """Mean seconds of steps by name, and their sum; the steps of `before` run first, untimed."""
    seconds = dict.fromkeys((name for name, _ in steps), 0.0)
    for _ in range(repeats):
        for step in before:
            step()
        by_device: list[tuple[str, Callable[[], float]]] = []
        for name, step in steps:
            start = perf_counter()
            result = step()
            if callable(result):
                by_device.append((name, result))
            else:
                seconds[name] += (perf_counter() - start) / repeats
        for name, seconds_of in by_device:
            seconds[name] += seconds_of() / repeats
    return {WHOLE: sum(seconds.values()), **seconds}


def _copying(step: Step, before: Sequence[Step], row_template: SharingRow) -> Timer:
    """The timer of a copying step; the steps of `before` run first, untimed."""
    return lambda n: _seconds(n, [("copy", step)], before), _of_one_part("copy_ms", row_template)


def _of_one_part(column: str, row_template: SharingRow) -> Callable[[Samples], Row]:
    def fill(samples: Samples) -> Row:
        row = filled(row_template, samples[WHOLE])
        parts: Any = {column: row.latency_ms}
        return replace(row, **parts)

    return fill


def filled(row: RowT, samples_s: Sequence[float]) -> RowT:
    """A copy of the row with latency, percentiles (ms) and run count of the samples (s)."""
    taken = Latency.of(samples_s)
    return replace(row, latency_ms=taken.level, p20_ms=taken.p20, p80_ms=taken.p80, runs=taken.runs)


# Waits.

SPIN = """
kernel void spin(int turns, global float *out) {
    float x = out[0];
    for (int i = 0; i < turns; i++) x = 0.5f * x + 1.0f;
    out[0] = x;
}
"""
#: Loop turns of the calibration kernel: first and most, and its least duration (ms).
TURNS, MOST_TURNS, ENOUGH_MS = 1 << 10, 1 << 28, 0.5


class WaitTimer:
    """Timer of waits for kernels; raises `DeviceError` for an implausible device clock."""

    def __init__(self, gpu: OpenClDevice) -> None:
        self._gpu = gpu
        flags = cl_module().mem_flags.READ_WRITE
        self._out = cl_module().Buffer(gpu.context, flags, 4)

    def sample(self, task: WaitTask) -> Callable[[int], Seconds]:
        """The sampler of a task; each repeat begins on an empty queue."""
        kernel = self._spin(min(MOST_TURNS, max(1, round(task.gap_ms * self._turns_per_ms))))

        def sample(repeats: int) -> Seconds:
            with self._gpu.profiling():
                return {WHOLE: sum(self._wait(kernel) for _ in range(repeats)) / repeats}

        return sample

    def _wait(self, kernel: BoundKernel) -> float:
        begin = perf_counter()
        event = kernel.enqueue(self._gpu.queue)
        self._gpu.queue.flush()
        self._gpu.wait(event)
        passed = perf_counter() - begin
        self._gpu.finish()
        return passed - 1e-9 * float(event.profile.end - event.profile.queued)

    def _spin(self, turns: int) -> BoundKernel:
        program = self._gpu.programs.build_text("spin", SPIN)
        kernel = make_kernel(program, "spin")
        return BoundKernel("spin", kernel, (1,), None, [np.int32(turns), self._out])

    @cached_property
    def _turns_per_ms(self) -> float:
        """Loop turns per millisecond by the device's clock, the most of three trials."""
        turns = TURNS
        while (took_ms := self._took_ms(turns)) < ENOUGH_MS:
            if turns >= MOST_TURNS:
                name = self._gpu.soc.gpu.name
                raise DeviceError(
                    f"By the clock of {name}, {turns} dependent steps take {took_ms:.6f} ms: it "
                    "does not tell when kernels run."
                )
            turns *= 4
        return turns / took_ms

    def _took_ms(self, turns: int) -> float:
        kernel = self._spin(turns)

        def once() -> float:
            event = kernel.enqueue(self._gpu.queue)
            self._gpu.finish()
            return 1e-6 * float(event.profile.end - event.profile.start)

        with self._gpu.profiling():
            return min(once() for _ in range(3))
