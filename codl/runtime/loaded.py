"""What an engine needs of the place where its executable is loaded, here or behind an agent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from codl.ir import Array
from codl.ir.executable import Executable
from codl.ir.results import TimeSpan
from codl.runtime.session import Footprint


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
    def lock(self) -> AbstractContextManager[object]:
        """Held by whatever runs something on the same processors."""
        ...

    def run(self) -> None: ...
    def profile(self) -> list[TimeSpan]: ...
    def close(self) -> None: ...


class Loads(Protocol):
    """Loads executables; raises `RefusedError` for kernels that others may stand in for."""

    def load(self, executable: Executable) -> Loaded: ...
