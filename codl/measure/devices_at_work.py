"""The devices of a collection: each works by itself, may go away, and may come back.

One device works in the thread that collects, several in a thread each. What they give is taken by
the thread that collects alone, so nothing here is locked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

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
T = TypeVar("T")
State = Literal["joining", "measuring", "idle", "away", "out"]


class MeasuringTarget(Protocol):
    """The methods of a target that collecting needs."""

    @property
    def serial(self) -> str: ...
    @property
    def soc(self) -> Soc: ...
    @property
    def replays(self) -> Mapping[str, Any] | None:
        """Description of the dataset that a replay answers from; None for a machine."""
        ...

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """End calls inside after so many seconds, even where the device hangs."""
        ...

    def describe(self) -> Any: ...

    def open(self) -> Mapping[str, str]:
        """Open the SoC's device; the device and its driver."""
        ...

    def clocks_mhz(self) -> dict[str, float]:
        """The current clock of each core in use, where the system reports it."""
        ...

    def conditions(self) -> Conditions:
        """Temperature, clocks and battery, now."""
        ...

    def measure(self, batch: MeasureBatch) -> BatchResult: ...


#: Makes the waits while a target is hot; called when the target is first connected.
Cooling: TypeAlias = Callable[[MeasuringTarget], CoolDown]
#: Reads the environment of a target; called when it is connected.
EnvironmentReader: TypeAlias = Callable[[MeasuringTarget], Environment | None]


def cool_down(target: MeasuringTarget) -> CoolDown:
    """With the usual limits."""
    return CoolDown(target.conditions)


def no_environment(target: MeasuringTarget) -> None:
    """Default: no environment."""


class Clock:
    """Time that passes, and waiting for it."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        return time.monotonic()

    def wait(self, jobs: Sequence[Future[Any]], seconds: float | None) -> None:
        """Wait until one of the jobs is done or `seconds` have passed."""
        if jobs:
            wait(jobs, timeout=seconds, return_when=FIRST_COMPLETED)
        elif seconds:
            time.sleep(seconds)


SYSTEM_CLOCK = Clock()


class InlineExecutor(Executor):
    """An executor that works in the calling thread."""

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class LowBatteryError(DeviceError):
    """A device is not used because its battery is low."""


@dataclass(frozen=True)
class ConnectedDevice:
    """A target that answers: its clocks, its conditions, and its waits while it is hot."""

    clock_mhz: Mapping[str, float]
    now: Conditions
    cooling: CoolDown
    environment: Environment | None = None


@dataclass(frozen=True)
class DeviceStatus:
    """State of a device, with the number of tasks `measured` and of times that it was `lost`.

    `problem` is why it is away or out. A device that is away is tried again in `retry_s` seconds.
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
    """A device of a collection; it has a `run` after it was first connected."""

    target: MeasuringTarget
    worker: Executor
    #: The most tasks that are sent at a time.
    most: int
    cools: Cooling
    tells: EnvironmentReader = no_environment
    #: Whether other devices measure for the same dataset, so it must be equal to them.
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
        """Reach it in what is left of the time, and see whether it is what it should be."""
        self.state, self.job = "joining", self.worker.submit(self._reached, left_s)

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

        self.job = self.worker.submit(work)

    def works(self) -> None:
        """It is there for sure; opening it alone may succeed where measuring does not."""
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
        return [Device(targets[0], InlineExecutor(), most, cools, tells)]
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
