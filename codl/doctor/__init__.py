"""Whether a device has what codl needs, and computes what it should: `codl doctor`.

Each file holds the checks of one subject and registers them; a plugin adds its own by the same
call. Nothing here needs more than the base and the command line.
"""

from codl.doctor import driver_checks, kernel_checks, machine_checks, pace_checks, package_checks
from codl.doctor.examine import examine
from codl.targets.checks import CHECKS, Check, Finding, Outcome, Patient, register

register(
    *package_checks.CHECKS,
    *machine_checks.CHECKS,
    *pace_checks.CHECKS,
    *driver_checks.CHECKS,
    *kernel_checks.CHECKS,
)

__all__ = ["CHECKS", "Check", "Finding", "Outcome", "Patient", "examine", "register"]
