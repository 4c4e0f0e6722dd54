"""A user interface at 60 Hz: frames drawn on a GPU that also does other work.

A frame begins every 16.7 ms and is on time if it ends before the next one is due. A late frame is
shown at the first refresh after its end; refreshes in between show no new frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from time import perf_counter, sleep
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from codl.ir.records.results import Amount, Count, Latency
from codl.machine import threads
from codl.runtime.drivers import cl_module, make_kernel
from codl.runtime.launch import BoundKernel
from codl.runtime.opencl import OpenClDevice

PERIOD_MS = 1000 / 60
#: Target duration of a frame on an otherwise idle GPU.
FRAME_MS = 3.0
#: Relative tolerance of a frame's calibrated duration, and most tries of the calibration.
CLOSE, TRIES = 0.1, 8
FRAME = """
kernel void frame(global float *out, int steps) {
    float x = get_global_id(0);
    for (int i = 0; i < steps; i++) x = 0.5f * x + 1.0f;
    out[get_global_id(0)] = x;
}
"""
#: Frames in order: the refresh at which each began, and its milliseconds from then to its end.
Drawn: TypeAlias = tuple[tuple[Count, Annotated[float, Meta(ge=0, le=1e9)]], ...]


@dataclass(frozen=True)
class Frames:
    """Smoothness of an interface over some refreshes; `frame_ms` is the latency of drawn frames.

    `on_time` is the share of refreshes with a new frame. `worst_stall_ms` is the longest time
    without a new frame: one period if no frame was late.
    """

    refreshes: Count
    on_time: Amount
    worst_stall_ms: Amount
    worst_frame_ms: Amount
    frame_ms: Latency

    @property
    def per_second(self) -> float:
        return 1e3 / PERIOD_MS * self.on_time

    @classmethod
    def of(cls, turns: Sequence[Drawn]) -> Frames:
        """The smoothness of several turns, each of at least one frame."""
        shown = [[begun + _periods(ms) for begun, ms in drawn] for drawn in turns]
        firsts = [drawn[0][0] for drawn in turns]
        every = [ms for drawn in turns for _, ms in drawn]
        refreshes = sum(turn[-1] - first for turn, first in zip(shown, firsts, strict=True))
        stalls = [
            after - before
            for turn, first in zip(shown, firsts, strict=True)
            for before, after in pairwise([first, *turn])
        ]
        return cls(
            refreshes=refreshes,
            on_time=len(every) / refreshes,
            worst_stall_ms=max(stalls) * PERIOD_MS,
            worst_frame_ms=max(every),
            frame_ms=Latency.of([1e-3 * ms for ms in every]),
        )


def is_sound(drawn: Drawn) -> bool:
    """Whether frames are consistent: at least one, each begun after its predecessor's end."""
    return bool(drawn) and all(
        after >= before + _periods(ms) for (before, ms), (after, _) in pairwise(drawn)
    )


def draw(
    frame: Callable[[], object],
    seconds: float,
    *,
    clock: Callable[[], float] = perf_counter,
    sleep: Callable[[float], object] = sleep,
) -> Drawn:
    """Draw frames for `seconds`, each begun at the first refresh after its predecessor's end."""
    period_s = 1e-3 * PERIOD_MS
    drawn: list[tuple[int, float]] = []
    start, refresh = clock(), 0
    while refresh * period_s < seconds or not drawn:
        due = start + refresh * period_s
        sleep(max(0.0, due - clock()))
        frame()
        ms = 1e3 * (clock() - due)
        drawn.append((refresh, ms))
        refresh += _periods(ms)
    return tuple(drawn)


def _periods(ms: float) -> int:
    """The number of refreshes until a frame that takes `ms` is shown."""
    return max(1, ceil(ms / PERIOD_MS))


class UiProbe:
    """Draws frames on a device; the constructor calibrates their duration on the idle device."""

    def __init__(self, device: OpenClDevice) -> None:
        self._device = device
        self._program = device.programs.build_text("frame", FRAME)
        self._size = 1024 * device.soc.gpu.compute_units
        flags = cl_module().mem_flags.READ_WRITE
        self._out = cl_module().Buffer(device.context, flags, 4 * self._size)
        with self._placed():
            self._kernel = self._calibrated()

    def draw(self, seconds: float) -> Drawn:
        with self._placed():
            return draw(self._draw_one, seconds)

    def _placed(self) -> AbstractContextManager[None]:
        """Pin this thread to the device's cores: a CPU driver lets a waiting thread compute."""
        placement = self._device.soc.placement
        return threads.pinned_to(placement.gpu_cores or placement.cpu_cores)

    def _draw_one(self) -> None:
        self._device.submit([self._kernel])
        self._device.finish()

    def _calibrated(self) -> BoundKernel:
        steps = 1 << 10
        for _ in range(TRIES):
            kernel = make_kernel(self._program, "frame")
            values = [self._out, np.int32(steps)]
            self._kernel = BoundKernel("frame", kernel, (self._size,), None, values)
            taken_ms = min(self._taken_ms() for _ in range(3))
            if abs(taken_ms / FRAME_MS - 1) < CLOSE:
                break
            factor = min(16.0, max(1 / 16, FRAME_MS / taken_ms))
            steps = int(min((1 << 31) - 1, max(1.0, steps * factor)))
        return self._kernel

    def _taken_ms(self) -> float:
        begin = perf_counter()
        self._draw_one()
        return 1e3 * (perf_counter() - begin)
