"""Limits on GPU launches, which keep an interface smooth that the same GPU draws.

A kernel cannot be interrupted on many GPUs: a frame waits until it is over, and behind it for all
that was enqueued before.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError

#: A GPU that works less of the time makes a run a hundred times as long, or endless.
LEAST_DUTY = 0.01


class LimitError(CodlError, ValueError):
    """A limit that cannot be kept; also what readers of files take for a wrong value."""


@dataclass(frozen=True)
class GpuLimits:
    """No launch takes longer than `max_kernel_ms`, and the GPU works `gpu_duty` of the time.

    Raises `LimitError` for what is no such number.
    """

    max_kernel_ms: float | None = None
    gpu_duty: float = 1.0

    def __post_init__(self) -> None:
        longest = self.max_kernel_ms
        if longest is not None and not (isfinite(longest) and longest > 0):
            raise LimitError(
                "max-kernel-ms must be a number of milliseconds above 0, such as 1, got "
                f"{longest:g}."
            )
        if not LEAST_DUTY <= self.gpu_duty <= 1:
            raise LimitError(
                f"gpu-duty must be at least {LEAST_DUTY} and at most 1, such as 0.7 for a "
                f"GPU that works 70 % of the time, got {self.gpu_duty:g}."
            )

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return self != GpuLimits()

    @property
    def rest(self) -> float:
        """How long the GPU rests for each millisecond that it works."""
        return (1 - self.gpu_duty) / self.gpu_duty

    def launches(self, taken_ms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Into how many launches kernels are split that take `taken_ms`; (kernels)."""
        if self.max_kernel_ms is None:
            return np.ones_like(taken_ms)
        return np.maximum(1.0, np.ceil(taken_ms / self.max_kernel_ms))

    def kept_ms(self, taken_ms: NDArray[np.float64], launch_ms: float = 0.0) -> NDArray[np.float64]:
        """What kernels take that are split, each launch more for `launch_ms`, with rests."""
        return (taken_ms + (self.launches(taken_ms) - 1) * launch_ms) / self.gpu_duty


UNLIMITED = GpuLimits()


@dataclass(frozen=True)
class TooLong:
    """A kernel that takes longer than it may, and why it cannot be split further."""

    kernel: str
    ms: float
    reason: str


@dataclass(frozen=True)
class LimitedGpu:
    """How an engine keeps its limits on a device, by what each launch took when it was loaded.

    `launches` are those of an inference as it was lowered, `enqueued` those that are enqueued for
    them; `split` has the kernels that are in pieces, and in how many. `longest_ms` is the longest
    of all that are enqueued. `hints` say what the driver was asked for, and whether it listens.
    """

    limits: GpuLimits
    longest_ms: float
    longest_kernel: str
    launches: int
    enqueued: int
    split: dict[str, int]
    too_long: tuple[TooLong, ...]
    hints: dict[str, str]
