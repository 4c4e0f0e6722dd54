"""Frames of an interface, drawn by an OpenCL device that something else works on, too."""

from __future__ import annotations

from contextlib import AbstractContextManager
from time import perf_counter

import numpy as np

from codl.measure.ui_frames import Drawn, draw
from codl.runtime import threads
from codl.runtime.drivers import cl_module, make_kernel
from codl.runtime.launch import BoundKernel
from codl.runtime.opencl import OpenClDevice

#: What a frame takes a GPU that does nothing else.
FRAME_MS = 3.0
#: A frame's kernel is changed until it takes `FRAME_MS` within a tenth.
CLOSE, TRIES = 0.1, 8
FRAME = """
kernel void frame(global float *out, int steps) {
    float x = get_global_id(0);
    for (int i = 0; i < steps; i++) x = 0.5f * x + 1.0f;
    out[get_global_id(0)] = x;
}
"""


class UiProbe:
    """Draws frames on a device; what they take is calibrated here, while nothing else works."""

    def __init__(self, device: OpenClDevice) -> None:
        self._device = device
        self._program = device.programs.build_text("frame", FRAME)
        self._size = 1024 * device.soc.gpu.compute_units
        flags = cl_module().mem_flags.READ_WRITE
        self._out = cl_module().Buffer(device.context, flags, 4 * self._size)
        with self._placed():
            self._kernel = self._calibrated()

    def draw(self, seconds: float) -> Drawn:
        """Draw frames for `seconds`, one behind the other."""
        with self._placed():
            return draw(self._draw_one, seconds)

    def _placed(self) -> AbstractContextManager[None]:
        """To the cores that the device works on: its driver lets a thread that waits help."""
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
