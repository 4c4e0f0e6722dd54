"""Checks of Python, the agent and packages: each failing condition, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.patients import HEALTHY, MadeUp, findings, patient

from codl.boundary import BASE, PACKAGES
from codl.doctor.package_checks import CHECKS
from codl.targets.checks import Patient


def without(*names: str) -> dict[str, str]:
    return {name: "" if name in names else "1.0" for name in HEALTHY.packages}


def broken(*names: str, **changes: object) -> Patient:
    """What is not installed cannot be imported either."""
    missing = [name for name, version in HEALTHY.packages.items() if not version]
    examination = replace(HEALTHY, **changes)  # type: ignore[arg-type]
    return patient(MadeUp(examination, broken=(*missing, *names)))


def test_a_healthy_machine_passes() -> None:
    found = findings(CHECKS, patient())
    assert all(one.ok and one.fix == "" for one in found.values())
    assert set(found) == {
        "agent",
        "python",
        *(f"package {name}" for name in BASE.values()),
        *(f"extra {name}" for name in PACKAGES),
    }


def test_an_old_python_is_named_with_what_is_wanted() -> None:
    found = findings(CHECKS, patient(python=(3, 8)))["python"]
    assert not found.ok
    assert found.detail.startswith("3.8 on Linux aarch64; codl needs 3.10")
    assert "3.10 or later" in found.fix


def test_a_package_that_is_missing_and_one_that_cannot_be_imported() -> None:
    found = findings(CHECKS, broken("numpy", "ncnn", packages=without("numpy")))
    assert not found["package numpy"].ok
    assert found["package numpy"].detail == "numpy is not installed"
    assert not found["package ncnn"].ok
    assert "ncnn 1.0: ncnn cannot be imported: ImportError: libsomething.so" in (
        found["package ncnn"].detail
    )
    assert "pip install" in found["package ncnn"].fix
    assert found["package msgspec"].ok


def test_what_an_agent_brings_is_not_missing() -> None:
    (found,) = (
        one
        for name, one in findings(CHECKS, broken(packages=without("pyyaml"))).items()
        if name == "package pyyaml"
    )
    assert found.ok
    assert found.detail == "comes with the agent"


def test_termux_has_packages_of_its_own() -> None:
    found = findings(CHECKS, broken("numpy", packages=without("numpy"), is_termux=True))
    assert found["package numpy"].fix == "`pkg install python-numpy`."
    assert found["python"].detail.startswith("3.12 on Linux aarch64, Termux")


def test_an_extra_that_is_missing_fails_but_for_one_that_few_want() -> None:
    names = ("pandas", "MNN")
    found = findings(CHECKS, broken(*names, packages=without(*names)))
    assert not found["extra train"].ok
    assert "pandas is not installed; for predictors" in found["extra train"].detail
    assert found["extra train"].fix == "`pip install 'codl[train]'`."
    assert found["extra peers"].ok
    assert "MNN is not installed" in found["extra peers"].detail


def test_a_device_needs_no_extras() -> None:
    assert not [name for name in findings(CHECKS, patient(is_here=False)) if "extra" in name]


@pytest.mark.parametrize(
    ("is_here", "fix"),
    [(True, "pip install codl"), (False, "codl agent install --serial made-up")],
)
def test_an_agent_that_does_not_answer(is_here: bool, fix: str) -> None:
    lost = MadeUp(lost="The agent of 'made-up' ended with code 1: No module named 'msgspec'.")
    found = findings(CHECKS, patient(lost, is_here=is_here))["agent"]
    assert not found.ok
    assert "No module named 'msgspec'" in found.detail
    assert fix in found.fix
