"""Checks of `codl doctor`: that a device has what codl needs, and computes what it should.

A file holds the checks of a subject, which are registered here; a plugin adds its own by the same
call. Nothing here needs more than the base and the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext

from codl.doctor import machine_checks, software_checks
from codl.measure.budget import Progress
from codl.targets.checks import CHECKS, Check, CheckResult, DeviceUnderTest, Finding, register
from codl.targets.connect import connect, machine_of

__all__ = ["CHECKS", "Check", "CheckResult", "DeviceUnderTest", "Finding", "examine", "register"]

#: How long the kernels of all OpenCL devices may take.
BUDGET_S = 300.0


def no_progress(label: str) -> AbstractContextManager[Progress]:
    """Shows nothing."""
    return nullcontext(lambda done, total, left: None)


def examine(
    serial: str = "local",
    *,
    quick: bool = False,
    budget_s: float = BUDGET_S,
    progress: Callable[[str], AbstractContextManager[Progress]] = no_progress,
) -> Iterator[Finding]:
    """Every finding of a device, as it is made; `quick` leaves the long checks out.

    `budget_s` is how long the kernels of all OpenCL devices may take; `progress` shows how far they
    have come. Raises `UnknownNameError` for a serial that no transport knows, `UnsupportedError`
    for one that is no machine.
    """
    transport = machine_of(serial, "be examined")
    with closing(connect(serial)) as target:
        under_test = DeviceUnderTest(
            serial,
            target,
            is_here=transport.shell is None,
            in_process=serial == "local",
            budget_s=budget_s,
            progress=progress,
        )
        yield from made(transport.checks(serial), under_test)
        checks = [check for check in CHECKS.values() if not (quick and check.is_long)]
        yield from made(checks, under_test)


def made(checks: Sequence[Check], under_test: DeviceUnderTest) -> Iterator[Finding]:
    """What checks find; nothing is asked of a device that cannot be reached or does not answer."""
    for check in checks:
        if not under_test.gives(check.needs):
            continue
        findings = check.findings(under_test)
        if check.decides:
            under_test.answers = under_test.answers and all(finding.ok for finding in findings)
        yield from findings


register(
    *software_checks.PACKAGE_CHECKS,
    *machine_checks.CHECKS,
    *software_checks.DRIVER_CHECKS,
    *software_checks.KERNEL_CHECKS,
)
