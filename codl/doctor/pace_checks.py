"""Checks that the device holds its pace for a moment."""

from __future__ import annotations

from collections.abc import Iterator

from codl.measure.cool_down import held, tolerance
from codl.targets.checks import Check, Outcome, Patient

SECONDS = 2.0


def pace(patient: Patient) -> Iterator[Outcome]:
    with patient.apart() as target:
        samples = target.pace(SECONDS)
    ratio, limit = held(samples), tolerance(samples)
    detail = f"at the end of {SECONDS:g} s one core works at {ratio:.2f} of its pace at the start"
    yield Outcome(ratio >= 1 - limit, f"{detail}; {1 - limit:.2f} or more is steady")


CHECKS = (
    Check(
        "pace",
        pace,
        "Let the device cool down, end what else runs, and keep it plugged in; then look again.",
    ),
)
