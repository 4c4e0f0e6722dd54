"""Checks of OpenCL: a loader that is missing, drivers that die or have no device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.patients import DEVICE, HEALTHY, MadeUp, findings, patient

from codl.doctor.driver_checks import CHECKS
from codl.runtime.probe import ProbeResult


def test_every_driver_and_device_is_listed() -> None:
    found = findings(CHECKS, patient())
    assert all(one.ok and one.fix == "" for one in found.values())
    assert found["opencl driver some-driver"].detail == "answers with Some GPU"
    assert "driver 1.2, 8 compute units" in found["opencl device Some GPU (some-driver)"].detail


def test_a_driver_that_died_is_named_with_how() -> None:
    died = ProbeResult("bad", error="The driver's process crashed (signal 6): boom")
    found = findings(CHECKS, patient(MadeUp(drivers=(died, ProbeResult("good", (DEVICE,))))))
    assert not found["opencl driver bad"].ok
    assert "crashed (signal 6): boom" in found["opencl driver bad"].detail
    assert "/etc/OpenCL/vendors" in found["opencl driver bad"].fix
    assert found["opencl driver good"].ok


def test_a_driver_without_a_device_fails_where_no_other_has_one() -> None:
    empty, good = ProbeResult("empty"), ProbeResult("good", (DEVICE,))
    beside = findings(CHECKS, patient(MadeUp(drivers=(empty, good))))
    assert beside["opencl driver empty"].ok
    assert "another driver has" in beside["opencl driver empty"].detail
    assert not findings(CHECKS, patient(MadeUp(drivers=(empty,))))["opencl driver empty"].ok


@pytest.mark.parametrize(
    ("is_termux", "fix"), [(False, "pocl-opencl-icd"), (True, "opencl-vendor-driver")]
)
def test_no_driver_at_all(is_termux: bool, fix: str) -> None:
    machine = replace(HEALTHY, is_termux=is_termux)
    found = findings(CHECKS, patient(MadeUp(machine, drivers=())))["opencl driver"]
    assert not found.ok
    assert fix in found.fix


@pytest.mark.parametrize(
    ("version", "detail"),
    [("", "pyopencl is not installed"), ("1.0", "pyopencl cannot be imported: ImportError")],
)
def test_a_loader_that_does_not_load(version: str, detail: str) -> None:
    packages = {**HEALTHY.packages, "pyopencl": version}
    target = MadeUp(replace(HEALTHY, packages=packages), broken=("pyopencl",))
    found = findings(CHECKS, patient(target))["opencl loader"]
    assert not found.ok
    assert detail in found.detail
    assert "pyopencl" in found.fix
