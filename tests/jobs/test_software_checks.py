"""Checks of packages, drivers and kernels: each failing condition, and what is said of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.devices import here
from support.devices_under_test import DEVICE, HEALTHY, MadeUp, findings, under_test

import codl
from codl.errors import BASE, PACKAGES
from codl.jobs import doctor
from codl.machine import cache
from codl.machine.cache import VariantBlocklist
from codl.machine.placement import LocalSoc, ProbedDevice, ProbeResult, describe
from codl.measure.check_variants import check_tasks
from codl.registry import VARIABLE, rolled_back
from codl.targets.checks import DeviceUnderTest, Finding
from codl.targets.connect import connect

PACKAGE_CHECKS = [doctor.CHECKS[name] for name in ("agent", "python", "package", "extra")]
DRIVER_CHECKS = [
    doctor.CHECKS[name] for name in ("opencl loader", "opencl driver", "opencl device")
]
KERNEL_CHECKS = [doctor.CHECKS["kernels"]]


def without(*names: str) -> dict[str, str]:
    return {name: "" if name in names else "1.0" for name in HEALTHY.packages}


def broken(*names: str, **changes: object) -> DeviceUnderTest:
    """What is not installed cannot be imported either."""
    missing = [name for name, version in HEALTHY.packages.items() if not version]
    examination = replace(HEALTHY, **changes)  # type: ignore[arg-type]
    return under_test(MadeUp(examination, broken=(*missing, *names)))


def test_a_healthy_machine_passes() -> None:
    found = findings(PACKAGE_CHECKS, under_test())
    assert all(one.ok and one.fix == "" for one in found.values())
    assert set(found) == {
        "agent",
        "python",
        *(f"package {name}" for name in BASE.values() if name != "pyopencl"),
        *(f"extra {name}" for name in PACKAGES),
    }


def test_an_old_python_is_named_with_what_is_wanted() -> None:
    found = findings(PACKAGE_CHECKS, under_test(python=(3, 8)))["python"]
    assert not found.ok
    assert found.detail.startswith("3.8 on Linux aarch64; codl needs 3.10")
    assert "3.10 or later" in found.fix


def test_a_package_that_is_missing_and_one_that_cannot_be_imported() -> None:
    found = findings(PACKAGE_CHECKS, broken("numpy", "ncnn", packages=without("numpy")))
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
        for name, one in findings(PACKAGE_CHECKS, broken(packages=without("pyyaml"))).items()
        if name == "package pyyaml"
    )
    assert found.ok
    assert found.detail == "comes with the agent"


def test_termux_has_packages_of_its_own() -> None:
    found = findings(PACKAGE_CHECKS, broken("numpy", packages=without("numpy"), is_termux=True))
    assert found["package numpy"].fix == "`pkg install python-numpy`."
    assert found["python"].detail.startswith("3.12 on Linux aarch64, Termux")


def test_an_extra_that_is_missing_fails_but_for_one_that_few_want() -> None:
    names = ("pandas", "MNN")
    found = findings(PACKAGE_CHECKS, broken(*names, packages=without(*names)))
    assert not found["extra train"].ok
    assert "pandas is not installed; for predictors" in found["extra train"].detail
    assert found["extra train"].fix == "`pip install 'codl[train]'`."
    assert found["extra peers"].ok
    assert "MNN is not installed" in found["extra peers"].detail


def test_a_device_needs_no_extras() -> None:
    found = findings(PACKAGE_CHECKS, under_test(is_here=False))
    assert not [name for name in found if "extra" in name]


@pytest.mark.parametrize(
    ("is_here", "fix"), [(True, "pip install codl"), (False, "codl agent install --serial made-up")]
)
def test_an_agent_that_does_not_answer(is_here: bool, fix: str) -> None:
    lost = MadeUp(lost="The agent of 'made-up' ended with code 1: No module named 'msgspec'.")
    found = findings(PACKAGE_CHECKS, under_test(lost, is_here=is_here))["agent"]
    assert not found.ok
    assert "No module named 'msgspec'" in found.detail
    assert fix in found.fix


def test_every_driver_and_device_is_listed() -> None:
    found = findings(DRIVER_CHECKS, under_test())
    assert all(one.ok and one.fix == "" for one in found.values())
    assert found["opencl driver some-driver"].detail == "answers with Some GPU"
    assert "driver 1.2, 8 compute units" in found["opencl device Some GPU (some-driver)"].detail


def test_a_driver_that_died_is_named_with_how() -> None:
    died = ProbeResult("bad", (), "The driver's process crashed (signal 6): boom", "/x/bad.icd")
    found = findings(
        DRIVER_CHECKS, under_test(MadeUp(drivers=(died, ProbeResult("good", (DEVICE,)))))
    )
    assert not found["opencl driver bad"].ok
    assert "crashed (signal 6): boom" in found["opencl driver bad"].detail
    assert "or remove /x/bad.icd" in found["opencl driver bad"].fix
    assert found["opencl driver good"].ok


def test_a_driver_without_a_device_fails_where_no_other_has_one() -> None:
    empty, good = ProbeResult("empty"), ProbeResult("good", (DEVICE,))
    beside = findings(DRIVER_CHECKS, under_test(MadeUp(drivers=(empty, good))))
    assert beside["opencl driver empty"].ok
    assert "another driver has" in beside["opencl driver empty"].detail
    assert not findings(DRIVER_CHECKS, under_test(MadeUp(drivers=(empty,))))[
        "opencl driver empty"
    ].ok


def test_a_library_that_nobody_named_may_fail_where_another_works() -> None:
    guess = ProbeResult("guess", error="It cannot be loaded.", is_guess=True)
    beside = MadeUp(drivers=(guess, ProbeResult("good", (DEVICE,))))
    found = findings(DRIVER_CHECKS, under_test(beside))["opencl driver guess"]
    assert (found.ok, found.detail) == (True, "It cannot be loaded. Another driver works.")
    alone = MadeUp(replace(HEALTHY, is_android=True), drivers=(guess,))
    found = findings(DRIVER_CHECKS, under_test(alone))["opencl driver guess"]
    assert not found.ok
    assert "docs/tutorial/phone.md" in found.fix


@pytest.mark.parametrize(
    ("is_android", "fix"), [(False, "pocl-opencl-icd"), (True, "docs/tutorial/phone.md")]
)
def test_no_driver_at_all(is_android: bool, fix: str) -> None:
    places = ("/etc/OpenCL/vendors: not there", "/vendor/lib64/libOpenCL.so: not there")
    machine = replace(HEALTHY, is_android=is_android, driver_places=places)
    found = findings(DRIVER_CHECKS, under_test(MadeUp(machine, drivers=())))["opencl driver"]
    assert not found.ok
    assert found.detail == f"none was found. {'; '.join(places)}"
    assert fix in found.fix


def test_a_loader_that_does_not_load() -> None:
    packages = {**HEALTHY.packages, "pyopencl": "1.0"}
    target = MadeUp(replace(HEALTHY, packages=packages), broken=("pyopencl",))
    found = findings(DRIVER_CHECKS, under_test(target))["opencl loader"]
    assert not found.ok
    assert "pyopencl cannot be imported: ImportError" in found.detail
    assert "pyopencl" in found.fix


def test_drivers_are_loaded_without_pyopencl() -> None:
    packages = {**HEALTHY.packages, "pyopencl": ""}
    found = findings(DRIVER_CHECKS, under_test(MadeUp(replace(HEALTHY, packages=packages))))
    assert found["opencl loader"].ok
    assert "by ctypes" in found["opencl loader"].detail


PLUGIN = """
import os
from dataclasses import replace
from pathlib import Path
from codl.kernels import registry
from codl.kernels.conv2d.gpu_direct import GpuDirect

class Spoilt(GpuDirect):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def plan(self, op, soc, choice=None):
        return getattr(self, self.name)(super().plan(op, soc, choice))

    def gpu_right(self, plan):
        return plan

    def gpu_rubbish(self, plan):
        def pack(weights):
            return {name: values + 1 for name, values in plan.pack(weights).items()}
        return replace(plan, pack=pack)

    def gpu_unbuildable(self, plan):
        return replace(plan, source=str(Path(__file__).with_name("spoilt.cl")))

    def gpu_deadly(self, plan):
        os.abort()

NAMES = ("gpu_right", "gpu_rubbish", "gpu_unbuildable", "gpu_deadly")
registry.register(*map(Spoilt, NAMES))
"""
#: So many ops of each: a process that dies twice is not asked for the third.
OPS_EACH = 3
OWN = {f"conv2d {name}" for name in ("gpu_right", "gpu_rubbish", "gpu_unbuildable", "gpu_deadly")}


@pytest.fixture
def _spoilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plugin with kernels that fail, which agents load too; nothing else is checked."""
    folder = tmp_path / "codl_spoilt"
    folder.mkdir()
    (folder / "__init__.py").write_text(PLUGIN)
    (folder / "spoilt.cl").write_text("kernel void conv2d_direct(void) { no_such_function(); }")
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))

    def few(soc: LocalSoc, *rest: Any) -> list[Any]:
        tasks = check_tasks(soc, *rest)
        own = ([task for task in tasks if task.name == name][:OPS_EACH] for name in sorted(OWN))
        return [task for of_one in own for task in of_one]

    monkeypatch.setattr(doctor, "check_tasks", few)
    with rolled_back(always=True):
        codl.load_plugin(folder)
        yield
    del sys.modules[folder.name]


def found_on(device: ProbedDevice) -> dict[str, Finding]:
    """What is found by a process of this machine, on one device alone."""
    own = under_test(connect("process"))
    own.serial = "process"
    vars(own)["drivers"] = (probed(device),)
    (check,) = KERNEL_CHECKS
    title = f" on {device.name} ({device.icd})"
    return {one.name.removesuffix(title): one for one in check.findings(own)}


def probed(device: ProbedDevice) -> ProbeResult:
    return ProbeResult(device.icd, (device,))


@pytest.mark.usefixtures("_spoilt")
def test_variants_that_fail_are_named_with_what_codl_does(
    devices: tuple[ProbedDevice, ...],
) -> None:
    found = found_on(devices[0])
    assert "1 of 4 variants compute what NumPy does" in found["kernels"].detail
    assert "kernels conv2d gpu_right" not in found
    assert not any(one.ok for one in found.values())
    details = {name: one.detail for name, one in found.items()}
    driver = f"driver {devices[0].driver}: "
    assert all(own.startswith(driver) for name, own in details.items() if "gpu" in name)
    assert "the result is wrong: off by" in details["kernels conv2d gpu_rubbish"]
    assert "From now on" in details["kernels conv2d gpu_rubbish"]
    known = VariantBlocklist(here(describe("test", devices[0])).device.programs.identity)
    assert {name for name in OWN if known.reason(name)} == {"conv2d gpu_rubbish"}
    assert "no_such_function" in details["kernels conv2d gpu_unbuildable"]
    assert "stands in" in details["kernels conv2d gpu_unbuildable"]
    assert "crashed (signal 6)" in details["kernels conv2d gpu_deadly"]
    assert "after the second time" in details["kernels conv2d gpu_deadly"]
    assert all(one.fix for one in found.values())


def test_a_machine_with_one_core_and_no_gpu_is_told_so(devices: tuple[ProbedDevice, ...]) -> None:
    if devices[0].type != "cpu":
        pytest.skip("the device of this machine is a GPU")
    own = under_test(cores=(0,), physical_cores=(0,))
    vars(own)["drivers"] = (probed(devices[0]),)
    (finding,) = KERNEL_CHECKS[0].findings(own)
    assert not finding.ok
    assert "two processors need two cores, or a GPU" in finding.detail


@pytest.mark.usefixtures("_spoilt")
def test_variants_that_had_no_turn_are_counted(devices: tuple[ProbedDevice, ...]) -> None:
    own = under_test(connect("process"))
    own.serial, own.budget_s = "process", 0.0
    vars(own)["drivers"] = (probed(devices[0]),)
    (finding,) = KERNEL_CHECKS[0].findings(own)
    assert "0 of 0 variants" in finding.detail
    assert "4 variants had none" in finding.detail
