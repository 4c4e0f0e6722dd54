"""This process as a target: it owns an open OpenCL device and the threads that are pinned."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from codl.records.soc import Soc
from codl.runtime.drivers import explained
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.runtime.system_files import SYSTEM, SystemFiles
from codl.targets.base import Target
from codl.targets.wire import questions

if TYPE_CHECKING:
    from codl.targets.compile_workers import CompileWorkers
    from codl.targets.remote import RemoteTarget


class LocalTarget(Target):
    """This machine, in this process: what needs no wire, too."""

    def __init__(
        self,
        soc: Soc | None = None,
        *,
        workers: CompileWorkers | None = None,
        files: SystemFiles = SYSTEM,
    ) -> None:
        super().__init__(soc, files=files)
        self._given_workers = workers

    @property
    def soc(self) -> LocalSoc:
        return self._local

    @property
    def device(self) -> OpenClDevice:
        """The SoC's OpenCL device, opened at the first call."""
        return self._open()

    def fresh(self) -> RemoteTarget:
        from codl.targets.remote import process_target

        return process_target(self._soc)

    @cached_property
    def _workers(self) -> CompileWorkers:
        from codl.targets.compile_workers import CompileWorkers, worker_count

        if self._given_workers is not None:
            return self._given_workers
        return CompileWorkers(self.soc, worker_count(self.soc) if self._device else 0)

    def close(self) -> None:
        if "_workers" in vars(self):
            self._workers.close()
            del self._workers
        super().close()


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with a `DeviceError` for whatever the driver raises in it."""
    action = method.__name__.replace("_", " ").capitalize()

    @wraps(method)
    def answer(*arguments: Any, **named: Any) -> Any:
        with explained(action):
            return method(*arguments, **named)

    return answer


for _question in questions(LocalTarget):
    setattr(LocalTarget, _question.method.__name__, _told(_question.method))
