"""Sessions of one model that run by turns over one set of weights, inputs, outputs and states.

So a decoder's cache is written by the step of many tokens and read in place by that of one, and an
engine that adapts changes between plans that differ in their shares alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns

from codl.engine.adaptation import Controller, OverlapMonitor
from codl.errors import CodlError
from codl.ir import Array
from codl.ir.executable import Executable
from codl.records.gpu_limits import UNLIMITED, GpuLimits, LimitedGpu
from codl.records.results import TimeSpan
from codl.runtime.loaded import Footprint
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session
from codl.runtime.shared_weights import Share, SharedResources, check_states

#: Runs of each alternative when it is loaded: until all is warm, and to learn what sharing takes.
WARM_UP, DRAINED = 1, 5


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


class AdaptiveSession:
    """Runs one of several executables, and changes between inferences to the one that fits.

    `executables` are by the scale that `codl.lower.alternatives` has them by; that of 1 is the plan
    itself. Others are left out where the device refuses them. Inputs and outputs are the same
    arrays whichever is active.
    """

    def __init__(
        self,
        executables: Mapping[float, Executable],
        device: OpenClDevice,
        limits: GpuLimits = UNLIMITED,
    ) -> None:
        self.lock, self._device, self._limits = device.lock, device, limits
        usual = executables[1.0]
        if not OverlapMonitor(usual).sees:
            executables = {1.0: usual}
        self._shared = SharedResources(
            [usual, *(executable for executable in executables.values() if executable is not usual)]
        )
        with self.lock:
            loaded = self._load(executables)
            self._shared.complete()
            scales = sorted(loaded)
            self._sessions = [loaded[scale][0] for scale in scales]
            self._marks = [loaded[scale][1].marks for scale in scales]
            self._monitors = [OverlapMonitor(session.executable) for session in self._sessions]
            for number in range(len(scales)):
                self._calibrate(number)
        self.controller = Controller(scales, scales.index(1.0))
        self.inputs: Mapping[str, Array] = loaded[1.0][0].inputs
        self.outputs: Mapping[str, Array] = loaded[1.0][0].outputs

    def _load(self, executables: Mapping[float, Executable]) -> dict[float, tuple[Session, Share]]:
        """The largest share of the GPU first: the others' weights are among its own."""
        loaded: dict[float, tuple[Session, Share]] = {}
        for user, scale in enumerate(sorted(executables, reverse=True)):
            share = Share(self._shared, user, executables[scale])
            try:
                session = Session(
                    executables[scale], self._device, share=share, limits=self._limits
                )
            except CodlError:
                self._shared.release(user)
                if scale == 1.0:
                    raise
                continue
            loaded[scale] = session, share
        return loaded

    def _calibrate(self, number: int) -> None:
        session, marks, drained = self._sessions[number], self._marks[number], []
        for turn in range(WARM_UP + DRAINED):
            marks.clear()
            session.run_drained()
            if turn >= WARM_UP:
                drained.append(tuple(marks))
        self._monitors[number].calibrate(drained)

    @property
    def scales(self) -> tuple[float, ...]:
        return self.controller.scales

    @property
    def scale(self) -> float:
        """That of the active executable."""
        return self.controller.scales[self.controller.active]

    @property
    def _session(self) -> Session:
        return self._sessions[self.controller.active]

    @property
    def executable(self) -> Executable:
        """The active one."""
        return self._session.executable

    @property
    def footprint(self) -> Footprint:
        """That of all alternatives together, what they share counted once."""
        return self._shared.footprint

    @property
    def limited(self) -> LimitedGpu | None:
        """How the active one keeps the GPU's limits."""
        return self._session.limited

    def run(self) -> None:
        """One inference from what `inputs` hold; what it takes decides on the next one's shares."""
        with self.lock:
            active = self.controller.active
            marks = self._marks[active]
            marks.clear()
            start = perf_counter_ns()
            self._sessions[active].run()
            end = perf_counter_ns()
            self.controller.observe(self._monitors[active].sample(start, marks, end))

    def profile(self, *, layers: bool = False) -> list[TimeSpan]:
        """What each processor did when in one inference by the active alternative."""
        with self.lock:
            return self._session.profile(layers=layers)

    def use(self, scale: float) -> None:
        """Make an alternative the active one; runs may change it again."""
        self.controller.use(scale)

    def close(self) -> None:
        """Release all of them; nothing can run afterwards."""
        with self.lock:
            for session in self._sessions:
                session.close()
            self._shared.close()
