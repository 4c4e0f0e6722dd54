"""Checks of `codl doctor`, each a name, a function, and a fix.

They run in the order of registration. A transport adds the checks of its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from codl.errors import CodlError
from codl.machine.examination import Examination
from codl.machine.placement import ProbedDevice, ProbeResult
from codl.measure.budget import Progress
from codl.registry import Registry
from codl.targets.base import Target

#: Requirement of a check: a responding agent, facts about the device's system, or nothing.
Need: TypeAlias = Literal["nothing", "system", "agent"]


@dataclass(frozen=True)
class CheckResult:
    """Result of a check; `of` names one of several objects, `fix` replaces the check's."""

    ok: bool
    detail: str
    of: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Finding:
    """A row of `codl doctor`; `fix` is "" if nothing needs fixing."""

    name: str
    ok: bool
    detail: str
    fix: str


@dataclass
class DeviceUnderTest:
    """A device under test; its facts are read once.

    `is_here` means this machine, `in_process` this process, and `answers` that its agent responds.
    `budget_s` limits the kernel checks of all OpenCL devices; `progress` shows the progress of a
    long check with a label. `prepare` installs a missing agent.
    """

    serial: str
    target: Target
    is_here: bool
    in_process: bool
    budget_s: float
    progress: Callable[[str], AbstractContextManager[Progress]]
    answers: bool = True
    prepare: Callable[[], object] = lambda: None

    def gives(self, need: Need) -> bool:
        """Whether the device meets a check's requirement."""
        return self.answers or need == "nothing" or (need == "system" and self.in_process)

    @contextmanager
    def apart(self) -> Iterator[Target]:
        """The device in its own process, which may crash."""
        with closing(self.target.fresh()) as fresh:
            yield fresh

    @cached_property
    def examination(self) -> Examination:
        return self.target.examine()

    @cached_property
    def drivers(self) -> tuple[ProbeResult, ...]:
        return tuple(self.target.probe())

    @property
    def devices(self) -> list[ProbedDevice]:
        """The OpenCL devices on which a kernel ran."""
        return [device for result in self.drivers for device in result.devices]


@dataclass(frozen=True)
class Check:
    """A check of a device.

    `run` yields results, none if the check does not apply; an error counts as a failed result.
    `fix` is the remedy of a failure. A check is skipped if the device does not provide what it
    `needs`. After the failure of a check that `decides`, the device counts as not responding.
    `is_long` checks are skipped on request.
    """

    name: str
    run: Callable[[DeviceUnderTest], Iterable[CheckResult]]
    fix: str
    needs: Need = "agent"
    decides: bool = False
    is_long: bool = False

    def findings(self, under_test: DeviceUnderTest) -> list[Finding]:
        """The rows of this check; an error, even a defect, is a failed row."""
        rows: list[Finding] = []
        try:
            for outcome in self.run(under_test):
                rows.append(self._finding(outcome))
        except CodlError as error:
            rows.append(self._finding(CheckResult(False, str(error))))
        except Exception as error:  # the other checks go on
            rows.append(self._finding(CheckResult(False, f"{type(error).__name__}: {error}")))
        return rows

    def _finding(self, outcome: CheckResult) -> Finding:
        name = f"{self.name} {outcome.of}" if outcome.of else self.name
        fix = "" if outcome.ok else outcome.fix or self.fix
        return Finding(name, outcome.ok, outcome.detail, fix)


#: Checks by name, in the order of execution.
CHECKS: Registry[Check] = Registry("check")


def register(*checks: Check) -> None:
    """Add checks after the present ones."""
    for check in checks:
        CHECKS.add(check.name, check, origin=check.run)
