"""Checks of `codl doctor`: that a device has what codl needs, and computes right results.

Each file has the checks of a subject, which are registered here; a plugin adds its own by the same
call. They need the base and the command line only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext

from codl.doctor import machine_checks, software_checks
from codl.measure.budget import Progress
from codl.targets.checks import CHECKS, Check, CheckResult, DeviceUnderTest, Finding, register
from codl.targets.connect import connect, machine_of

__all__ = ["CHECKS", "Check", "CheckResult", "DeviceUnderTest", "Finding", "examine", "register"]

#: Seconds to check the kernels of all OpenCL devices.
BUDGET_S = 300.0


def no_progress(label: str) -> AbstractContextManager[Progress]:
    """Show no progress."""
    return nullcontext(lambda done, total, left: None)


def examine(
    serial: str = "local",
    *,
    quick: bool = False,
    budget_s: float = BUDGET_S,
    progress: Callable[[str], AbstractContextManager[Progress]] = no_progress,
) -> Iterator[Finding]:
    """Yield every finding of a device as it is made; `quick` leaves out the long checks.

    `budget_s` limits the checks of kernels on all OpenCL devices; `progress` shows their progress.
    Raises `UnknownNameError` for a serial of no transport, and `UnsupportedError` for a serial that
    is no machine.
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
    """Findings of checks; a device that does not answer gets only checks that need none."""
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
