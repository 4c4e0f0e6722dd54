"""Checks of cores, clocks, memory, room, batteries and temperatures: each failing condition."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.devices_under_test import GIB, HEALTHY, MadeUp, findings, under_test

from codl.errors import CodlWarning, DeviceError
from codl.ir.records.results import Conditions
from codl.jobs import doctor
from codl.machine.examination import Governor, Room
from codl.targets.detect import detect

CHECKS = [
    doctor.CHECKS[name]
    for name in ("cores", "governor", "memory", "space for kernels", "battery", "temperature")
]


def test_a_healthy_machine_passes() -> None:
    governor = Governor((0, 1), "schedutil", "cpufreq-dt", 2400.0, 2400.0)
    found = findings(
        CHECKS, under_test(governors=(governor,), conditions=Conditions(temperature_c=41.0))
    )
    assert all(one.ok and one.fix == "" for one in found.values())
    assert found["temperature"].detail == "41 °C"
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


def test_clocks_that_heat_holds_down() -> None:
    held = Conditions(temperature_c=60.0, throttled=("cpu", "gpu"))
    found = findings(CHECKS, under_test(conditions=held))["temperature"]
    assert not found.ok
    assert found.detail == "heat holds the clock of the cpu and the gpu down (60 °C)"


@pytest.mark.parametrize(
    ("percent", "is_charging", "ok"),
    [(15.0, False, False), (15.0, True, True), (80.0, False, True)],
)
def test_a_battery_that_is_nearly_empty(percent: float, is_charging: bool, ok: bool) -> None:
    now = Conditions(battery_percent=percent, is_charging=is_charging)
    assert findings(CHECKS, under_test(conditions=now))["battery"].ok is ok
    assert "battery" not in findings(CHECKS, under_test())
