"""Kernels that compute rubbish, do not build or take the process down are named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.devices import here
from support.patients import patient

import codl
from codl.doctor import kernel_checks
from codl.doctor.kernel_checks import CHECKS
from codl.measure.check_variants import check_tasks
from codl.plugins import VARIABLE
from codl.registry import rolled_back
from codl.runtime import cache
from codl.runtime.cache import VariantBlocklist
from codl.runtime.detect import describe
from codl.runtime.placement import LocalSoc
from codl.runtime.probe import ProbedDevice, ProbeResult
from codl.targets.checks import Finding
from codl.targets.connect import connect

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

    monkeypatch.setattr(kernel_checks, "check_tasks", few)
    with rolled_back(always=True):
        codl.load_plugin(folder)
        yield
    del sys.modules[folder.name]


def found_on(device: ProbedDevice) -> dict[str, Finding]:
    """What is found by a process of this machine, on one device alone."""
    own = patient(connect("process"))
    own.serial = "process"
    vars(own)["drivers"] = (probed(device),)
    (check,) = CHECKS
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
    own = patient(cores=(0,), physical_cores=(0,))
    vars(own)["drivers"] = (probed(devices[0]),)
    (finding,) = CHECKS[0].findings(own)
    assert not finding.ok
    assert "two processors need two cores, or a GPU" in finding.detail


@pytest.mark.usefixtures("_spoilt")
def test_variants_that_had_no_turn_are_counted(devices: tuple[ProbedDevice, ...]) -> None:
    own = patient(connect("process"))
    own.serial, own.budget_s = "process", 0.0
    vars(own)["drivers"] = (probed(devices[0]),)
    (finding,) = CHECKS[0].findings(own)
    assert "0 of 0 variants" in finding.detail
    assert "4 variants had none" in finding.detail
