"""Checks of cores, clocks, memory, room, temperatures and pace: each failing condition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.devices_under_test import GIB, HEALTHY, MadeUp, findings, under_test

from codl.doctor import machine_checks
from codl.doctor.machine_checks import CHECKS
from codl.errors import CodlWarning, DeviceError
from codl.records.results import Conditions
from codl.runtime.examination import Governor, Room, ThermalZone
from codl.targets.detect import detect

ZONES = (ThermalZone("cpu", 41.0, 85.0), ThermalZone("skin", 38.0))


def test_a_healthy_machine_passes() -> None:
    governor = Governor((0, 1), "schedutil", "cpufreq-dt", 2400.0, 2400.0)
    found = findings(CHECKS, under_test(governors=(governor,), zones=ZONES))
    assert all(one.ok and one.fix == "" for one in found.values())
    assert found["temperature"].detail.startswith("at most 41 °C (cpu); 1 of 2 zones")
    assert "governor of cores 0, 1" in found


def test_what_the_system_does_not_tell_is_said() -> None:
    found = findings(CHECKS, under_test(memory_bytes=0, available_bytes=0))
    assert {"governor", "memory", "temperature"} <= {
        name for name, one in found.items() if one.ok and "tell" in one.detail
    }


def test_cores_that_threads_cannot_be_pinned_to() -> None:
    found = findings(CHECKS, under_test(refused_cores=(3,)))["cores"]
    assert not found.ok
    assert "0, 1, 2, 3 may be used; threads cannot be pinned to 3" in found.detail
    assert "cpusets" in found.fix


@pytest.mark.parametrize(
    ("is_android", "fix"), [(True, "`termux-wake-lock`"), (False, "`taskset -c 0,1,2,3,4,5`")]
)
def test_a_process_that_is_kept_to_slow_cores(is_android: bool, fix: str) -> None:
    """Said by `codl soc detect` too, before it measures anything."""
    confined = {"withheld_cores": (4, 5), "cpuset": "/background", "is_android": is_android}
    (found,) = findings(CHECKS[:1], under_test(**confined)).values()
    assert not found.ok
    assert found.detail.startswith(
        "Only cores 0,1,2,3 may be used (its cpuset is /background), and the faster cores 4,5 not"
    )
    assert fix in found.fix
    target = MadeUp(replace(HEALTHY, **confined), drivers=())
    with (
        pytest.warns(CodlWarning, match=r"the faster cores 4,5 not.*(?:taskset|wake-lock)"),
        pytest.raises(DeviceError, match="No OpenCL device was found"),
    ):
        detect(target, "phone")


@pytest.mark.parametrize(("policy", "ok"), [("", True), ("active", True), ("passive", False)])
def test_threads_that_sleep_after_every_layer(policy: str, ok: bool) -> None:
    found = findings(CHECKS, under_test(wait_policy=policy))["waiting threads"]
    assert found.ok == ok
    assert (f"is {policy}" if policy else "as OpenMP has it") in found.detail
    assert ok or "Unset OMP_WAIT_POLICY" in found.fix


@pytest.mark.parametrize(
    ("governor", "problem"),
    [
        (Governor((0,), "powersave", "cpufreq-dt", 2400.0, 2400.0), "it keeps the lowest clock"),
        (Governor((0,), "powersave", "intel_pstate", 2400.0, 2400.0), ""),
        (Governor((0,), "performance", "cpufreq-dt", 1800.0, 2400.0), "could reach 2400 MHz"),
    ],
)
def test_governors_that_slow_a_core_down(governor: Governor, problem: str) -> None:
    found = findings(CHECKS, under_test(governors=(governor,)))["governor of cores 0"]
    assert found.ok == (not problem)
    assert problem in found.detail
    assert found.ok or "scaling_governor" in found.fix


def test_too_little_memory() -> None:
    found = findings(CHECKS, under_test(available_bytes=GIB // 4))["memory"]
    assert not found.ok
    assert found.detail.startswith("256 MiB of 8.0 GiB are available; tuning holds up to 1.0 GiB")


@pytest.mark.parametrize(
    ("room", "detail"),
    [
        (Room("/cache", 1 << 20), "1 MiB are free in /cache"),
        (Room("/cache", GIB, "/ may not be written to"), "/ may not be written to"),
    ],
)
def test_no_room_for_kernels(room: Room, detail: str) -> None:
    found = findings(CHECKS, under_test(cache=room))["space for kernels"]
    assert not found.ok
    assert detail in found.detail
    assert "CODL_CACHE" in found.fix


def test_no_room_for_datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine_checks, "room", lambda folder: Room(str(folder), 0))
    found = findings(CHECKS, under_test())["space for datasets"]
    assert not found.ok
    assert str(tmp_path / "lat_datasets") in found.detail


def test_a_hot_zone_is_named_with_its_limit() -> None:
    hot = ThermalZone("big cluster", 95.0, 95.0)
    found = findings(CHECKS, under_test(zones=(*ZONES, hot)))
    assert "temperature" not in found
    assert not found["temperature big cluster"].ok
    assert found["temperature big cluster"].detail.startswith("95 °C; from 95 °C on")


def test_a_clock_that_falls() -> None:
    slower = (*[1e-3] * 15, *[1.5e-3] * 15)
    found = findings(CHECKS, under_test(MadeUp(samples_s=slower)))["pace"]
    assert not found.ok
    assert "works at 0.67 of its pace at the start; 0.97 or more is steady" in found.detail


def test_a_pace_that_others_disturb_holds() -> None:
    """Other programs make single rounds slower, at the end too."""
    disturbed = [*[1e-3] * 18, *[1e-3, 3e-3] * 6]
    found = findings(CHECKS, under_test(MadeUp(samples_s=disturbed)))["pace"]
    assert found.ok


def test_clocks_that_heat_holds_down() -> None:
    held = Conditions(temperature_c=60.0, throttled=("cpu", "gpu"))
    found = findings(CHECKS, under_test(zones=ZONES, conditions=held))["temperature"]
    assert not found.ok
    assert found.detail == "heat holds the clock of the cpu and the gpu down"


@pytest.mark.parametrize(
    ("percent", "is_charging", "ok"),
    [(15.0, False, False), (15.0, True, True), (80.0, False, True)],
)
def test_a_battery_that_is_nearly_empty(percent: float, is_charging: bool, ok: bool) -> None:
    now = Conditions(battery_percent=percent, is_charging=is_charging)
    assert findings(CHECKS, under_test(conditions=now))["battery"].ok is ok
    assert "battery" not in findings(CHECKS, under_test())
