"""The devices of a collection: each works by itself, may go away, and may come back.

One device works in the thread that collects, several in a thread each. The thread that collects
takes all results, so nothing here is locked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

from codl.errors import DeviceError, MismatchError
from codl.ir.environment import Environment
from codl.measure.batch import BatchResult, MeasureBatch
from codl.measure.budget import GRACE_S
from codl.measure.cool_down import CoolDown
from codl.measure.drift import Anchors
from codl.measure.tasks import Task
from codl.records.results import Conditions
from codl.records.soc import Soc

#: Seconds until a device that went away is tried again: at first, doubled each time, and at most.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
State = Literal["joining", "measuring", "idle", "away", "out"]


class MeasuringTarget(Protocol):
    """The part of a target that a collection uses."""

    @property
    def serial(self) -> str: ...
    @property
    def soc(self) -> Soc: ...
    @property
    def replays(self) -> Mapping[str, Any] | None:
        """The dataset that its latencies are from; None where it measures them."""
        ...

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """What is asked inside is ended after so long, where the device hangs."""
        ...

    def describe(self) -> Any: ...

    def open(self) -> Mapping[str, str]:
        """Open the SoC's device, and say which it is and by which driver."""
        ...

    def clocks_mhz(self) -> dict[str, float]:
        """The current clock of each core in use, where the system tells."""
        ...

    def conditions(self) -> Conditions:
        """Temperature, clocks and battery, as they are now."""
        ...

    def measure(self, batch: MeasureBatch) -> BatchResult: ...


#: Makes what waits while a target is hot; called once, when the target is first reached.
Cooling: TypeAlias = Callable[[MeasuringTarget], CoolDown]
#: Reads where and how a target measures; called when it is reached.
EnvironmentReader: TypeAlias = Callable[[MeasuringTarget], Environment | None]


def cool_down(target: MeasuringTarget) -> CoolDown:
    """With the usual limits."""
    return CoolDown(target.conditions)


def no_environment(target: MeasuringTarget) -> None:
    """Default: no environment is recorded."""


class Clock:
    """Time that passes, and waiting for it."""

    def now(self) -> float:
        """Seconds, by a clock that is never set."""
        return time.monotonic()

    def wait(self, jobs: Sequence[Future[Any]], seconds: float | None) -> None:
        """Wait until one of the jobs is done or `seconds` have passed."""
        if jobs:
            wait(jobs, timeout=seconds, return_when=FIRST_COMPLETED)
        elif seconds:
            time.sleep(seconds)


SYSTEM_CLOCK = Clock()


class LowBatteryError(DeviceError):
    """A device is left alone because its battery runs out."""


@dataclass(frozen=True)
class ConnectedDevice:
    """A target that answers: its clocks and conditions, and what waits while it is hot."""

    clock_mhz: Mapping[str, float]
    now: Conditions
    cooling: CoolDown
    environment: Environment | None = None


@dataclass(frozen=True)
class DeviceStatus:
    """The state of a device, with the number of tasks `measured` and of times that it was `lost`.

    `problem` says why it is away or out; one that is away is tried again in `retry_s` seconds.
    """

    serial: str
    state: State
    run: str
    measured: int
    lost: int
    problem: str
    retry_s: float = 0.0


@dataclass
class Device:
    """A device of a collection; it has a `run` once it was reached."""

    target: MeasuringTarget
    #: Where it works; None for the thread that collects.
    worker: ThreadPoolExecutor | None
    #: The most tasks that are sent at a time.
    most: int
    cools: Cooling
    tells: EnvironmentReader = no_environment
    #: Whether others measure for the same dataset, so that it must be just like them.
    has_others: bool = False
    run: str = ""
    state: State = "idle"
    job: Future[Any] | None = None
    claimed: tuple[Task, ...] = ()
    anchors: Anchors = field(default_factory=Anchors)
    batch: int = 0
    now: Conditions = field(default_factory=Conditions)
    cooling: CoolDown | None = None
    measured: int = 0
    lost: int = 0
    #: Whether it has measured anything.
    has_worked: bool = False
    problem: Exception | None = None
    #: When it went away, how often it was tried since, and when it is tried again.
    away_since: float = 0.0
    tries: int = 0
    retry_at: float = 0.0

    @property
    def serial(self) -> str:
        return self.target.serial

    def join(self, left_s: float) -> None:
        """Connect in the time that is left, and check that the device is the SoC."""
        self.state = "joining"
        self._begin(lambda: self._reached(left_s))

    def _begin(self, work: Callable[[], object]) -> None:
        if self.worker is not None:
            self.job = self.worker.submit(work)
            return
        self.job = Future()
        try:
            self.job.set_result(work())
        except Exception as error:
            self.job.set_exception(error)

    def _reached(self, left_s: float) -> ConnectedDevice:
        with self.target.within(left_s + GRACE_S):
            if self.has_others:
                _check_soc(self.target)
            cooling = self.cooling or self.cools(self.target)
            now = self.target.conditions()
            return ConnectedDevice(self.target.clocks_mhz(), now, cooling, self.tells(self.target))

    def measure(self, batch: MeasureBatch, left_s: Callable[[], float], least_s: float) -> None:
        """Measure once it is cool, unless less than `least_s` seconds are left then."""
        self.state, self.claimed, now = "measuring", batch.tasks, self.now
        assert self.cooling is not None
        cooling = self.cooling

        def work() -> BatchResult:
            cooling.wait(now, left_s())
            left = left_s()
            if left <= 0 or left < least_s:
                return BatchResult((), (), conditions=now)
            with self.target.within(left + GRACE_S):
                return self.target.measure(replace(batch, left_s=left))

        self._begin(work)

    def close(self) -> None:
        """Leave its job; a worker ends behind it."""
        if self.worker is not None:
            self.worker.shutdown(wait=False, cancel_futures=True)

    def works(self) -> None:
        """It has measured something; some devices can be opened and cannot measure."""
        self.has_worked, self.tries = True, 0

    def goes_away(self, problem: Exception, now: float) -> None:
        """It is tried again later, each time after a longer pause."""
        if self.tries == 0:
            self.away_since = now
        pause = min(FIRST_PAUSE_S * 2**self.tries, LONGEST_PAUSE_S)
        self.tries += 1
        self.state, self.problem, self.retry_at = "away", problem, now + pause

    def news(self, now: float) -> DeviceStatus:
        problem = "" if self.problem is None else str(self.problem)
        retry_s = max(0.0, self.retry_at - now) if self.state == "away" else 0.0
        return DeviceStatus(
            self.serial, self.state, self.run, self.measured, self.lost, problem, retry_s
        )


def devices_of(
    targets: Sequence[MeasuringTarget],
    most: int,
    cools: Cooling,
    tells: EnvironmentReader = no_environment,
) -> list[Device]:
    """One works here; each of several has a thread of its own."""
    if len(targets) == 1:
        return [Device(targets[0], None, most, cools, tells)]
    return [
        Device(target, ThreadPoolExecutor(1, target.serial), most, cools, tells, has_others=True)
        for target in targets
    ]


def _check_soc(target: MeasuringTarget) -> None:
    """Raise `MismatchError` where a target is not the SoC that it should be, in what matters."""
    soc, identity, cpu = target.soc, target.open(), target.describe().cpu.name
    wanted = {"OpenCL device": soc.gpu.name, "driver": soc.gpu.driver, "CPU": soc.cpu.name}
    actual = {"OpenCL device": identity["device"], "driver": identity["driver"], "CPU": cpu}
    for what, name in wanted.items():
        if actual[what] != name:
            raise MismatchError(
                f"{target.serial!r} is not the SoC {soc.name!r}: its {what} is {actual[what]!r}, "
                f"expected {name!r}. `codl soc detect --serial {target.serial} --name NAME` "
                "describes it as one of its own."
            )
