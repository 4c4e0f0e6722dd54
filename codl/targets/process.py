"""Questions to an agent about its process: which target or peer it is, and what may crash it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from codl.runtime.connection import FrameError
from codl.runtime.placement import LocalSoc
from codl.targets.wire import question

if TYPE_CHECKING:
    from codl.ir.plan import Plan
    from codl.measure.facts import Fact
    from codl.runtime.probe import ProbedDevice


class Process:
    """An agent's process: the target of a SoC, or of none; or a peer.

    `target_of` makes the former when it is asked something, and `peer_of` the latter.
    """

    def __init__(
        self, target_of: Callable[[LocalSoc | None], Any], peer_of: Callable[..., Any]
    ) -> None:
        self._target_of, self._peer_of = target_of, peer_of
        self._target: Any = None
        self._peer: Any = None
        #: The seconds that it took over questions, by their names.
        self.spent_s: dict[str, float] = defaultdict(float)

    @property
    def target(self) -> Any:
        if self._target is None:
            self._target = self._target_of(None)
        return self._target

    @property
    def peer(self) -> Any:
        if self._peer is None:
            raise FrameError("This process is no peer: it must become one first.")
        return self._peer

    @question()
    def begin(self, soc: LocalSoc) -> None:
        """Be the target of a SoC; must come before anything that measures or runs on it."""
        if self._target is not None:
            raise FrameError("A SoC was opened already, which must be the first thing.")
        self._target = self._target_of(soc)

    @question()
    def spent(self) -> dict[str, float]:
        """The seconds that it took over questions so far, by their names."""
        return dict(self.spent_s)

    @question()
    def look(self, driver: str) -> tuple[ProbedDevice, ...]:
        """Load a driver and run a kernel on its devices; the process is for nothing else."""
        from codl.runtime.probe import look

        return tuple(look(driver))

    @question(300.0)
    def measure_fact(self, driver: str, device: str, key: str) -> Fact:
        """Load a driver and measure one fact of a device; the process is for nothing else."""
        from codl.measure.facts import FACTS
        from codl.runtime.probe import BareDevice

        return FACTS.find(key)(BareDevice.open(driver, device))

    @question(300.0)  # converting and compiling a large model takes its time
    def become_peer(
        self, name: str, model: bytes, soc: LocalSoc, cores: tuple[int, ...], plan: Plan | None
    ) -> str:
        """Make a peer in this very process, of an ONNX model; the peer's version."""
        if self._peer is not None:
            raise FrameError("This process is a peer already.")
        self._peer = self._peer_of(name, model, soc, cores, plan)
        return str(self._peer.version)

    def close(self) -> None:
        for opened in (self._peer, self._target):
            if opened is not None:
                opened.close()


def first_line(error: Exception) -> str:
    """Of what an error says: libraries say much behind it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
