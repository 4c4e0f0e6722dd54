"""Conditions, from a tree like a phone's: every number here is test data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.phone import BATTERY, BIG, COOLING, KGSL, LITTLE, MALI, devfreq, make_phone, put
from support.simulated import SOC

from codl.ir.records.results import Conditions
from codl.machine.conditions import ConditionReader, NvidiaGpu
from codl.machine.placement import LocalSoc, Placement
from codl.machine.system_files import SystemFiles

#: A GPU beside four big cores.
PHONE = LocalSoc.of(SOC, Placement("none", cpu_cores=(4, 5, 6, 7)))
#: An OpenCL device that is a CPU, on little cores.
ONE_CPU = LocalSoc.of(
    replace(SOC, gpu=replace(SOC.gpu, type="cpu")),
    Placement("none", cpu_cores=(4,), gpu_cores=(0, 1)),
)


def test_a_phone_tells_everything(tmp_path: Path) -> None:
    found = ConditionReader(PHONE, make_phone(tmp_path)).read()
    assert found == Conditions(
        temperature_c=pytest.approx(43.6),  # neither the battery's, nor its charge of 100 %
        cpu_mhz=pytest.approx(2419.2),
        gpu_mhz=pytest.approx(587),
        battery_percent=83,
        is_charging=False,
        throttled=(),
        governors={"policy0": "schedutil", "policy4": "schedutil", "gpu": "msm-adreno-tz"},
    )


def test_a_machine_that_is_silent_has_none(tmp_path: Path) -> None:
    assert ConditionReader(PHONE, SystemFiles(tmp_path)).read() == Conditions()


@pytest.mark.parametrize(
    ("folder", "files", "throttled"),
    [
        (f"{COOLING}0", {"cur_state": 3}, ("cpu",)),
        (f"{COOLING}1", {"cur_state": 1}, ("gpu",)),
        (f"{COOLING}2", {"cur_state": 255}, ()),  # the backlight
        (BIG, {"scaling_max_freq": 2_000_000}, ("cpu",)),
        (LITTLE, {"scaling_max_freq": 1_000_000}, ()),  # not the cores in use
        (f"{KGSL}/devfreq", {"max_freq": 441_600_000}, ("gpu",)),
    ],
)
def test_what_throttles_which_processor(
    tmp_path: Path, folder: str, files: dict[str, object], throttled: tuple[str, ...]
) -> None:
    reader = ConditionReader(PHONE, make_phone(tmp_path))
    assert reader.read().throttled == ()
    put(tmp_path, folder, **files)
    assert reader.read().throttled == throttled
    make_phone(tmp_path)
    assert reader.read().throttled == ()


def test_a_limit_that_somebody_set_is_no_heat(tmp_path: Path) -> None:
    files = make_phone(tmp_path)
    put(tmp_path, BIG, scaling_max_freq=2_000_000)
    reader = ConditionReader(PHONE, files)
    assert reader.read().throttled == ()
    put(tmp_path, BIG, scaling_max_freq=1_900_000)
    assert reader.read().throttled == ("cpu",)


def test_the_battery_of_a_mouse_is_none_of_the_device(tmp_path: Path) -> None:
    files = make_phone(tmp_path)
    mouse = "sys/class/power_supply/hidpp_battery_0"
    put(tmp_path, mouse, type="Battery", scope="Device", capacity=5, status="Discharging")
    assert ConditionReader(PHONE, files).read().battery_percent == 83
    for path in (tmp_path / BATTERY).iterdir():
        path.unlink()
    assert ConditionReader(PHONE, files).read().battery_percent is None


def card(model: str, refuses: bool = False) -> NvidiaGpu:
    """What NVML tells of a card, made up."""

    def refuse() -> float:
        raise OSError("NVML refuses with code 3")

    values = (lambda: 66, lambda: 1755, lambda: True)
    celsius, mhz, held = (refuse,) * 3 if refuses else values
    return NvidiaGpu(f"0 {model}", refuse, True, model, celsius, mhz, held)  # type: ignore[arg-type]


def test_a_card_tells_by_its_driver(tmp_path: Path) -> None:
    files = SystemFiles(tmp_path)

    def read(*cards: NvidiaGpu) -> Conditions:
        return ConditionReader(PHONE, files, gpus=lambda: list(cards)).read()

    name = PHONE.gpu.name
    assert read(card("another"), card(name)) == Conditions(
        temperature_c=66, gpu_mhz=1755, throttled=("gpu",)
    )
    assert read(card(name), card(name)) == Conditions()  # which one is not known
    assert read(card(name, refuses=True)) == Conditions()
    one_cpu = ConditionReader(ONE_CPU, files, gpus=lambda: [card(name)])
    assert one_cpu.read() == Conditions()


def test_conditions_of_a_while() -> None:
    readings = [
        Conditions(temperature_c=40.0, cpu_mhz=2000, battery_percent=50, throttled=("gpu",)),
        Conditions(temperature_c=44.0, cpu_mhz=1000, gpu_mhz=500, throttled=("cpu",)),
        Conditions(cpu_mhz=1900, battery_percent=49, is_charging=False, governors={"gpu": "x"}),
    ]
    assert Conditions.over(readings) == Conditions(
        temperature_c=44.0,
        cpu_mhz=1900,
        gpu_mhz=500,
        battery_percent=49,
        is_charging=False,
        throttled=("cpu", "gpu"),
        governors={"gpu": "x"},
    )
    assert Conditions.over([]) == Conditions()


def test_a_mali_is_found_among_other_devices(tmp_path: Path) -> None:
    put(tmp_path, "sys/class/devfreq/dmc", **devfreq("dmc_ondemand", 2_112_000_000, 2_112_000_000))
    put(tmp_path, MALI, **devfreq("simple_ondemand", 900_000_000, 1_000_000_000))
    found = ConditionReader(PHONE, SystemFiles(tmp_path)).read()
    assert found.gpu_mhz == pytest.approx(900)
    assert found.governors == {"gpu": "simple_ondemand"}
