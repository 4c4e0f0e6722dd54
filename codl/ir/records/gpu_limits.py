"""Limits on GPU launches, for a GPU that also draws a smooth interface.

Many GPUs cannot interrupt a kernel: a frame waits for it and for all work enqueued before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError

#: Smallest `gpu_duty`; a lower one makes a run a hundred times as long, or endless.
LEAST_DUTY = 0.01


class LimitError(CodlError, ValueError):
    """An impossible limit; readers of files treat it as a wrong value."""


@dataclass(frozen=True)
class GpuLimits:
    """Limits of a launch and of the GPU's working time; raises `LimitError` if impossible."""

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
        """Time that the GPU rests per unit of working time."""
        return (1 - self.gpu_duty) / self.gpu_duty

    def launches(self, taken_ms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Number of launches that kernels of `taken_ms` are split into, shaped (kernels)."""
        if self.max_kernel_ms is None:
            return np.ones_like(taken_ms)
        return np.maximum(1.0, np.ceil(taken_ms / self.max_kernel_ms))

    def kept_ms(self, taken_ms: NDArray[np.float64], launch_ms: float = 0.0) -> NDArray[np.float64]:
        """Milliseconds of split kernels with rests; each further launch costs `launch_ms`."""
        return (taken_ms + (self.launches(taken_ms) - 1) * launch_ms) / self.gpu_duty


UNLIMITED = GpuLimits()


@dataclass(frozen=True)
class TooLong:
    """A kernel above the limit, and why it cannot be split further."""

    kernel: str
    ms: float
    reason: str


@dataclass(frozen=True)
class LimitedGpu:
    """How an engine keeps its limits, by latencies of its launches measured when loading.

    `launches` counts an inference's launches as lowered, `enqueued` those after splitting. `split`
    maps split kernels to their number of pieces. `longest_ms` is the longest enqueued launch.
    `hints` are the requests to the driver, with their effect.
    """

    limits: GpuLimits
    longest_ms: float
    longest_kernel: str
    launches: int
    enqueued: int
    split: dict[str, int]
    too_long: tuple[TooLong, ...]
    hints: dict[str, str]
