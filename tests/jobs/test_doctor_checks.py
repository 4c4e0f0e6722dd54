"""Checks of a machine and of its packages, drivers and kernels: each failing condition."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.devices import here
from support.devices_under_test import DEVICE, GIB, HEALTHY, MadeUp, findings, under_test

import codl
from codl.errors import BASE, PACKAGES, CodlWarning, DeviceError
from codl.ir.records.results import Conditions
from codl.jobs import doctor
from codl.machine import cache
from codl.machine.cache import VariantBlocklist
from codl.machine.examination import Governor, Room
from codl.machine.placement import LocalSoc, ProbedDevice, ProbeResult, describe
from codl.measure.check_variants import check_tasks
from codl.registry import VARIABLE, rolled_back
from codl.targets.checks import Finding
from codl.targets.connect import connect
from codl.targets.detect import detect

MACHINE = ("cores", "governor", "memory", "space for kernels", "battery", "temperature")
DRIVERS = ("opencl loader", "opencl driver", "opencl device")
CHECKS = [doctor.CHECKS[x] for x in (*MACHINE, "agent", "python", "package", "extra", *DRIVERS)]
KERNELS = doctor.CHECKS["kernels"]


def found(target: Any = None, **changes: Any) -> dict[str, Finding]:
    return findings(CHECKS, under_test(target, **changes))


def without(*names: str, **changes: Any) -> MadeUp:
    """A machine without some packages: none of them can be imported."""
    packages = {name: "" if name in names else "1.0" for name in HEALTHY.packages}
    return MadeUp(replace(HEALTHY, packages=packages, **changes), broken=names)


def test_a_healthy_machine_passes() -> None:
    governor = Governor((0, 1), "schedutil", "cpufreq-dt", 2400.0, 2400.0)
    every = found(governors=(governor,), conditions=Conditions(temperature_c=41.0))
    assert all(one.ok and one.fix == "" for one in every.values())
    assert {*every} == {
        *("cores", "governor of cores 0, 1", "memory", "space for kernels", "temperature"),
        *("agent", "python", "opencl loader", "opencl driver some-driver"),
        "opencl device Some GPU (some-driver)",
        *(f"package {name}" for name in BASE.values() if name != "pyopencl"),
        *(f"extra {name}" for name in PACKAGES),
    }
    assert every["temperature"].detail == "41 \N{DEGREE SIGN}C"
    assert "driver 1.2, 8 compute units" in every["opencl device Some GPU (some-driver)"].detail
    assert not [name for name in found(is_here=False) if "extra" in name], "a device needs none"


def powersave(driver: str) -> Governor:
    return Governor((0,), "powersave", driver, 2400.0, 2400.0)


@pytest.mark.parametrize(
    ("check", "changes", "detail", "fix"),
    [
        ("cores", {"refused_cores": (3,)}, "threads cannot be pinned to 3", "cpusets"),
        ("governor of cores 0", {"governors": (powersave("cpufreq-dt"),)}, "the lowest clock",
         "scaling_governor"),
        ("governor of cores 0", {"governors": (powersave("intel_pstate"),)}, "", ""),
        ("memory", {"available_bytes": GIB // 4}, "256 MiB of 8.0 GiB are available", ""),
        ("memory", {"memory_bytes": 0, "available_bytes": 0}, "tell", ""),
        ("space for kernels", {"cache": Room("/cache", 1 << 20)}, "1 MiB are free", "CODL_CACHE"),
        ("space for kernels", {"cache": Room("/cache", GIB, "/ may not be written to")},
         "/ may not be written to", "CODL_CACHE"),
        ("temperature", {"conditions": Conditions(throttled=("cpu", "gpu"))},
         "heat holds the clock of the cpu and the gpu down", ""),
        ("battery", {"conditions": Conditions(battery_percent=15.0, is_charging=False)}, "15", ""),
        ("battery", {"conditions": Conditions(battery_percent=15.0, is_charging=True)}, "15", ""),
        ("python", {"python": (3, 8)}, "3.8 on Linux aarch64; codl needs 3.10", "3.10 or later"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_machine_is_said_with_what_mends_it(
    check: str, changes: dict[str, Any], detail: str, fix: str
) -> None:
    one = found(**changes)[check]
    held = changes.get("conditions", Conditions())
    is_fine = not detail or detail == "tell" or held.is_charging
    assert one.ok == bool(is_fine)
    assert detail in one.detail
    assert fix in one.fix


@pytest.mark.parametrize(
    ("is_android", "fix"), [(True, "`termux-wake-lock`"), (False, "`taskset -c 0,1,2,3,4,5`")]
)
def test_a_process_that_is_kept_to_slow_cores(is_android: bool, fix: str) -> None:
    """Said by `codl soc detect` too, before it measures anything."""
    confined = {"withheld_cores": (4, 5), "cpuset": "/background", "is_android": is_android}
    one = found(**confined)["cores"]
    assert not one.ok
    assert "(its cpuset is /background), and the faster cores 4,5 not" in one.detail
    assert fix in one.fix
    target = MadeUp(replace(HEALTHY, **confined), drivers=())
    with (
        pytest.warns(CodlWarning, match=r"the faster cores 4,5 not.*(?:taskset|wake-lock)"),
        pytest.raises(DeviceError, match="No OpenCL device was found"),
    ):
        detect(target, "phone")


def test_packages_that_are_missing_or_cannot_be_imported() -> None:
    target = without("numpy", "pandas", "MNN", "pyyaml")
    target.broken = ("numpy", "pandas", "MNN", "ncnn")
    every = found(target)
    assert every["package numpy"].detail == "numpy is not installed"
    assert "ncnn 1.0: ncnn cannot be imported: ImportError" in every["package ncnn"].detail
    assert "pip install" in every["package ncnn"].fix
    assert every["extra train"].fix == "`pip install 'codl[train]'`."
    assert not any(every[name].ok for name in ("package numpy", "package ncnn", "extra train"))
    assert every["extra peers"].ok, "few want it"
    assert every["package pyyaml"].detail == "comes with the agent"
    termux = found(without("numpy", is_termux=True))
    assert termux["package numpy"].fix == "`pkg install python-numpy`."


@pytest.mark.parametrize(
    ("is_here", "fix"), [(True, "pip install codl"), (False, "codl agent install --serial made-up")]
)
def test_an_agent_that_does_not_answer(is_here: bool, fix: str) -> None:
    lost = MadeUp(lost="The agent of 'made-up' ended with code 1: No module named 'msgspec'.")
    one = found(lost, is_here=is_here)["agent"]
    assert not one.ok
    assert "No module named 'msgspec'" in one.detail
    assert fix in one.fix


GOOD = ProbeResult("good", (DEVICE,))
DIED = ProbeResult("bad", (), "The driver's process crashed (signal 6): boom", "/x/bad.icd")
GUESS = ProbeResult("guess", error="It cannot be loaded.", is_guess=True)


@pytest.mark.parametrize(
    ("drivers", "name", "ok", "said"),
    [
        ((DIED, GOOD), "opencl driver bad", False, ("signal 6): boom", "or remove /x/bad.icd")),
        ((ProbeResult("empty"), GOOD), "opencl driver empty", True, ("another driver has", "")),
        ((ProbeResult("empty"),), "opencl driver empty", False, ("", "")),
        ((GUESS, GOOD), "opencl driver guess", True, ("Another driver works.", "")),
        ((GUESS,), "opencl driver guess", False, ("It cannot be loaded.", "phone.md")),
        ((), "opencl driver", False, ("none was found. /vendor: not there", "phone.md")),
    ],
)
def test_drivers_that_fail_are_no_fault_where_another_works(
    drivers: tuple[ProbeResult, ...], name: str, ok: bool, said: tuple[str, str]
) -> None:
    phone = replace(HEALTHY, is_android=True, driver_places=("/vendor: not there",))
    one = found(MadeUp(phone, drivers=drivers))[name]
    assert one.ok is ok
    assert said[0] in one.detail
    assert said[1] in one.fix


def test_opencl_is_loaded_without_pyopencl_but_not_by_a_broken_one() -> None:
    packages = {**HEALTHY.packages, "pyopencl": "1.0"}
    broken = found(MadeUp(replace(HEALTHY, packages=packages), broken=("pyopencl",)))
    assert not broken["opencl loader"].ok
    assert "pyopencl cannot be imported: ImportError" in broken["opencl loader"].detail
    missing = found(without("pyopencl"))["opencl loader"]
    assert (missing.ok, "by ctypes" in missing.detail) == (True, True)


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
    title = f" on {device.name} ({device.icd})"
    return {one.name.removesuffix(title): one for one in KERNELS.findings(own)}


def probed(device: ProbedDevice) -> ProbeResult:
    return ProbeResult(device.icd, (device,))


@pytest.mark.usefixtures("_spoilt")
def test_variants_that_fail_are_named_with_what_codl_does(
    devices: tuple[ProbedDevice, ...],
) -> None:
    seen = found_on(devices[0])
    assert "1 of 4 variants compute what NumPy does" in seen["kernels"].detail
    assert "kernels conv2d gpu_right" not in seen
    assert not any(one.ok for one in seen.values())
    details = {name: one.detail for name, one in seen.items()}
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
    assert all(one.fix for one in seen.values())


def test_a_machine_with_one_core_and_no_gpu_is_told_so(devices: tuple[ProbedDevice, ...]) -> None:
    if devices[0].type != "cpu":
        pytest.skip("the device of this machine is a GPU")
    own = under_test(cores=(0,), physical_cores=(0,))
    vars(own)["drivers"] = (probed(devices[0]),)
    (finding,) = KERNELS.findings(own)
    assert not finding.ok
    assert "two processors need two cores, or a GPU" in finding.detail


@pytest.mark.usefixtures("_spoilt")
def test_variants_that_had_no_turn_are_counted(devices: tuple[ProbedDevice, ...]) -> None:
    own = under_test(connect("process"))
    own.serial, own.budget_s = "process", 0.0
    vars(own)["drivers"] = (probed(devices[0]),)
    (finding,) = KERNELS.findings(own)
    assert "0 of 0 variants" in finding.detail
    assert "4 variants had none" in finding.detail
