"""Sessions of one model that run by turns over one set of weights, inputs, outputs and states.

So a decoder's cache is written by the step of many tokens and read in place by that of one.
"""

from __future__ import annotations

from collections.abc import Mapping

from codl.ir.executable import Executable
from codl.records.gpu_limits import UNLIMITED, GpuLimits
from codl.runtime.loaded import Footprint
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session
from codl.runtime.shared_weights import Share, SharedResources, check_states


class JoinedSessions:
    """A session for every executable, by name; the caller says which runs.

    Raises `MismatchError` where they would keep a state in several places, and as `Session` does.
    """

    def __init__(
        self,
        executables: Mapping[str, Executable],
        device: OpenClDevice,
        limits: GpuLimits = UNLIMITED,
    ) -> None:
        check_states([*executables.values()])
        self._device = device
        self._shared = SharedResources([*executables.values()])
        self._sessions: dict[str, Session] = {}
        try:
            for user, (name, executable) in enumerate(executables.items()):
                share = Share(self._shared, user, executable)
                self._sessions[name] = Session(executable, device, share=share, limits=limits)
        except BaseException:
            self.close()
            raise
        self._shared.complete()

    def __getitem__(self, name: str) -> Session:
        return self._sessions[name]

    @property
    def footprint(self) -> Footprint:
        """That of all together, what they share counted once."""
        return self._shared.footprint

    def close(self) -> None:
        """Release all of them; nothing can run afterwards."""
        with self._device.lock:
            for session in self._sessions.values():
                session.close()
            self._shared.close()
