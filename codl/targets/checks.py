"""Checks of `codl doctor`: each one has a name, a way to look, and a fix.

They are registered in one place, in the order in which they are made; a transport contributes those
that concern the way to its devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from codl.errors import CodlError
from codl.measure.budget import Progress
from codl.registry import Registry
from codl.runtime.examination import Examination
from codl.runtime.probe import ProbedDevice, ProbeResult
from codl.targets.base import Target

#: What a check cannot do without.
Need: TypeAlias = Literal["nothing", "system", "agent"]


@dataclass(frozen=True)
class CheckResult:
    """What a check found.

    `of` is which of several things it is about, such as a driver. `fix` is said instead of the
    check's own.
    """

    ok: bool
    detail: str
    of: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Finding:
    """One row of what `codl doctor` prints; `fix` is "" where nothing is to be done."""

    name: str
    ok: bool
    detail: str
    fix: str


@dataclass
class DeviceUnderTest:
    """A device as checks look at it; what is known of it is asked once.

    `is_here` says that it is this machine, `in_process` that it is this very process, and `answers`
    whether its agent was heard of. `budget_s` is how long the kernels of all OpenCL devices may
    take, and `progress` shows how far something long has come, under a label.
    """

    serial: str
    target: Target
    is_here: bool
    in_process: bool
    budget_s: float
    progress: Callable[[str], AbstractContextManager[Progress]]
    answers: bool = True

    def gives(self, need: Need) -> bool:
        """Whether it can be asked for what a check needs."""
        return self.answers or need == "nothing" or (need == "system" and self.in_process)

    @contextmanager
    def apart(self) -> Iterator[Target]:
        """The device with a process for one check alone, which may crash."""
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
    """One thing to look at.

    `run` gives an outcome, or several; what it raises is an outcome too. It gives none where the
    check does not apply. `fix` says what to do where it fails. What a check `needs` is an agent
    that answers, or what the device's system tells, or nothing of the device; it is left out where
    that is not there. Where one that `decides` fails, the device is taken not to answer. `is_long`
    ones are left out on request.
    """

    name: str
    run: Callable[[DeviceUnderTest], Iterable[CheckResult]]
    fix: str
    needs: Need = "agent"
    decides: bool = False
    is_long: bool = False

    def findings(self, under_test: DeviceUnderTest) -> list[Finding]:
        """The rows of this check; an error is a failed one, a defect included."""
        rows: list[Finding] = []
        try:
            for outcome in self.run(under_test):
                rows.append(self._finding(outcome))
        except CodlError as error:
            rows.append(self._finding(CheckResult(False, str(error))))
        except Exception as error:  # whatever is broken there, the other checks go on
            rows.append(self._finding(CheckResult(False, f"{type(error).__name__}: {error}")))
        return rows

    def _finding(self, outcome: CheckResult) -> Finding:
        name = f"{self.name} {outcome.of}" if outcome.of else self.name
        fix = "" if outcome.ok else outcome.fix or self.fix
        return Finding(name, outcome.ok, outcome.detail, fix)


#: By their names, in the order in which they are made.
CHECKS: Registry[Check] = Registry("check")


def register(*checks: Check) -> None:
    """Add checks behind those that are there."""
    for check in checks:
        CHECKS.add(check.name, check, origin=check.run)
