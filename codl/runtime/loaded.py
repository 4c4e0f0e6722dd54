"""What an engine needs of the place where its executable is loaded, here or behind an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from codl.errors import DeviceError
from codl.ir import Array
from codl.ir.executable import Executable, Refusal
from codl.records.gpu_limits import LimitedGpu
from codl.records.results import Move, TimeSpan
from codl.records.soc import Soc


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


class Loads(Protocol):
    """A device with `soc` that loads executables.

    Raises `RefusedError` for kernels that others may stand in for.
    """

    @property
    def soc(self) -> Soc: ...
    def load(self, executable: Executable) -> Loaded: ...


@runtime_checkable
class StandsIn(Loads, Protocol):
    """A device whose CPU goes on where its GPU has failed."""

    def load_on_cpu(self, executable: Executable) -> Loaded:
        """Load an executable that needs no GPU; nothing is asked of one."""
        ...


class Adapting(Loaded, Protocol):
    """Several executables, of which the active one runs; by `scale`, the plan's own is 1."""

    @property
    def scales(self) -> tuple[float, ...]: ...
    @property
    def scale(self) -> float: ...
    @property
    def runs(self) -> int: ...
    @property
    def moves(self) -> tuple[Move, ...]: ...
    def use(self, scale: float) -> None: ...


@runtime_checkable
class Adapts(Loads, Protocol):
    """A device whose plans adapt: it is in this process."""

    def load_alternatives(self, executables: Mapping[float, Executable]) -> Adapting: ...
