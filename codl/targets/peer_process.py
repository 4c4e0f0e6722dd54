"""A peer: another library in an agent of its own, on the cores of both processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from codl.errors import DeviceError
from codl.ir.plan import Plan
from codl.runtime.child import inherited
from codl.runtime.drivers import COUNTS
from codl.runtime.placement import LocalSoc
from codl.targets.arrays import Arrays, from_wire, to_wire
from codl.targets.client import COMMAND, AgentClient
from codl.targets.model_messages import (
    BecomePeer,
    FeedPeer,
    ObservePeer,
    PeerFed,
    PeerObserved,
    PeerOutputs,
    PeerRan,
    PeerReady,
    ReadPeer,
    RunPeer,
)

#: What other libraries read from the environment. A peer gets its threads by its own options.
VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", *COUNTS)


class PeerProcess:
    """Starts a peer's agent, which inherits the cores from the start, and talks to it.

    All methods raise `DeviceError` with what the library said, or how the process ended.
    `observed_cores` are those on which its threads were seen at work, `busy_cores` how many of them
    it kept busy in the mean.
    """

    def __init__(
        self,
        name: str,
        model: bytes,
        soc: LocalSoc,
        plan: Plan | None = None,
        *,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.name, self.cores = name, soc.placement.cores
        self.agent = AgentClient(
            command,
            name=f"the peer {name!r}",
            cores=self.cores,
            environment=environment(len(self.cores)),
        )
        request = BecomePeer(name, soc, self.cores, None if plan is None else plan.to_json())
        try:
            answer, _ = self.agent.ask(request, PeerReady, [model])
        except DeviceError:
            self.agent.close()
            raise
        self.version = answer.version
        self.observed_cores: tuple[int, ...] = ()
        self.busy_cores = 0.0

    @property
    def threads(self) -> int:
        return len(self.cores)

    def feed(self, inputs: Arrays) -> None:
        """Hand inputs over, run once, and see on which cores."""
        records, blobs = to_wire(inputs)
        self.agent.ask(FeedPeer(records), PeerFed, blobs)
        self.agent.ask(RunPeer(1), PeerRan)
        seen, _ = self.agent.ask(ObservePeer(), PeerObserved)
        self.observed_cores, self.busy_cores = seen.cores, seen.busy

    def run(self, runs: int) -> Sequence[float]:
        """Run so many times in a row; the seconds of each, measured over there.

        Raises `DeviceError` where its threads go on spinning after that, which would disturb all
        others.
        """
        answer, _ = self.agent.ask(RunPeer(runs), PeerRan)
        if not answer.is_idle:
            raise DeviceError(f"The threads of {self.name} do not stop after a run.")
        if len(answer.seconds) != runs:
            raise DeviceError(f"{self.name} ran {len(answer.seconds)} times and not {runs}.")
        return answer.seconds

    def outputs(self) -> dict[str, NDArray[Any]]:
        answer, blobs = self.agent.ask(ReadPeer(), PeerOutputs)
        return from_wire(answer.arrays, blobs)

    def close(self) -> None:
        """End the process."""
        self.agent.close()


def environment(count: int) -> Mapping[str, str]:
    """This process's environment without what would tell a library how many threads to have."""
    kept = {name: v for name, v in inherited().items() if not name.startswith(VARIABLES)}
    return {**kept, "OMP_NUM_THREADS": str(count), "OPENBLAS_NUM_THREADS": "1"}
