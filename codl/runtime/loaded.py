"""A loaded executable as whoever runs it sees it, here or behind an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from codl.errors import DeviceError
from codl.ir import Array
from codl.ir.executable import Executable, Refusal
from codl.records.gpu_limits import LimitedGpu
from codl.records.results import TimeSpan


@dataclass(frozen=True)
class Footprint:
    """Bytes on either side: tensors, and weights as they are handed to kernels and libraries.

    How ncnn arranges weights it does not tell.
    """

    cpu_bytes: int
    gpu_bytes: int
    cpu_weight_bytes: int
    gpu_weight_bytes: int

    @property
    def weight_bytes(self) -> int:
        return self.cpu_weight_bytes + self.gpu_weight_bytes

    @property
    def total(self) -> int:
        return self.cpu_bytes + self.gpu_bytes + self.weight_bytes


class RefusedError(DeviceError):
    """A device does not run some of an executable's kernels; `refusals` says which."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__("; ".join(f"{one.label!r}: {one}" for one in refusals))
        self.refusals = tuple(refusals)


class Loaded(Protocol):
    """An executable that is allocated, built and bound.

    Fill the arrays of `inputs`, `run`, and read those of `outputs` before the next run.
    """

    @property
    def executable(self) -> Executable: ...
    @property
    def inputs(self) -> Mapping[str, Array]: ...
    @property
    def outputs(self) -> Mapping[str, Array]: ...
    @property
    def footprint(self) -> Footprint: ...

    @property
    def limited(self) -> LimitedGpu | None:
        """How the GPU's limits are kept; None without any."""
        ...

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held by whatever runs something on the same processors."""
        ...

    def run(self) -> None: ...
    def profile(self) -> list[TimeSpan]: ...
    def close(self) -> None: ...
