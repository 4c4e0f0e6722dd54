"""The launches of an executable under limits: measured, split where they are too long, checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, prod
from statistics import median
from typing import NamedTuple

from codl.errors import DeviceError
from codl.ir.executable import Command, Launch
from codl.records.gpu_limits import GpuLimits, LimitedGpu, TooLong
from codl.runtime import opencl
from codl.runtime.drivers import explained
from codl.runtime.handles import Handles
from codl.runtime.launch import BoundKernel, most
from codl.runtime.opencl import OpenClDevice

#: Each kernel runs so often, in turns with the others, and the median counts.
TRIALS = 3
#: A kernel is split for pieces of so much of the limit: the next one finds other clocks and caches.
AIM = 0.8
#: Pieces that are still too long are split anew so often at most.
ROUNDS = 4


class Timed(NamedTuple):
    """A launch that is enqueued as it is, and the milliseconds that it takes."""

    kernel: BoundKernel
    ms: float


class SplitLaunches:
    """What is enqueued for each launch of some commands, on a device whose GPU has limits.

    Everything is measured here, so kernels run several times: on whatever lies in their memory.
    """

    def __init__(
        self,
        handles: Handles,
        device: OpenClDevice,
        commands: Iterable[Command],
        limits: GpuLimits,
    ) -> None:
        self._handles, self._device, self._limits = handles, device, limits
        launches = list(dict.fromkeys(one for one in commands if isinstance(one, Launch)))
        self._timed = self._measured({one: [handles.kernel(one)] for one in launches})
        self._reasons: dict[Launch, str] = {}
        if limits.max_kernel_ms is not None:
            self._split(limits.max_kernel_ms)

    def of(self, launch: Launch) -> Sequence[Timed]:
        """What is enqueued for a launch, in order."""
        return self._timed[launch]

    @property
    def report(self) -> LimitedGpu:
        every = [one for own in self._timed.values() for one in own]
        longest = max(every, key=lambda one: one.ms, default=None)
        return LimitedGpu(
            limits=self._limits,
            longest_ms=longest.ms if longest else 0.0,
            longest_kernel=longest.kernel.name if longest else "",
            launches=len(self._timed),
            enqueued=len(every),
            split={own[0].kernel.name: len(own) for own in self._timed.values() if len(own) > 1},
            too_long=tuple(self._too_long()),
            hints=opencl.told(self._device.device, self._device.soc.placement),
        )

    def _too_long(self) -> Iterable[TooLong]:
        for launch, reason in self._reasons.items():
            name = self._timed[launch][0].kernel.name
            yield TooLong(name, self._longest_ms(launch), reason)

    def _longest_ms(self, launch: Launch) -> float:
        return max(one.ms for one in self._timed[launch])

    def _split(self, longest_ms: float) -> None:
        """Split what takes longer, and what still does then."""
        for turn in range(ROUNDS + 1):
            left = [
                launch
                for launch in self._timed
                if launch not in self._reasons and self._longest_ms(launch) > longest_ms
            ]
            if turn == ROUNDS:
                self._reasons |= dict.fromkeys(left, f"it still was after {ROUNDS} times")
            elif left:
                found = {own: self._pieces(own, longest_ms) for own in left}
                new = self._measured({own: pieces for own, pieces in found.items() if pieces})
                self._timed |= new

    def _pieces(self, launch: Launch, longest_ms: float) -> list[BoundKernel]:
        """A launch in more pieces than now; none, with the reason, where that cannot be."""
        now = len(self._timed[launch])
        wanted = max(now + 1, ceil(now * self._longest_ms(launch) / (AIM * longest_ms)))
        reason = self._handles.unsplittable(launch)
        if reason is None and now >= most(launch.global_size, launch.local_size):
            group = prod(launch.local_size or (1,))
            reason = f"a work-group of {group} takes that long" if now > 1 else "it is one group"
        if reason is None:
            try:
                return self._handles.in_pieces(launch, wanted)
            except DeviceError as error:
                reason = str(error)
        self._reasons[launch] = reason
        return []

    def _measured(self, kernels: dict[Launch, list[BoundKernel]]) -> dict[Launch, list[Timed]]:
        """What each kernel takes."""
        every = [kernel for own in kernels.values() for kernel in own]
        taken = iter(measured_ms(self._device, every))
        return {
            launch: [Timed(kernel, next(taken)) for kernel in own]
            for launch, own in kernels.items()
        }


def measured_ms(device: OpenClDevice, kernels: Sequence[BoundKernel]) -> list[float]:
    """Milliseconds of kernels by the device's own clock."""
    with explained("Measuring kernels"), device.profiling():
        events = [[one.enqueue(device.queue) for one in kernels] for _ in range(TRIALS)]
        device.finish()
        trials = [[1e-6 * (e.profile.end - e.profile.start) for e in own] for own in events]
    return [median(own) for own in zip(*trials, strict=True)]
