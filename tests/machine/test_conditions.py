"""What a machine and its sensors tell, from trees like a phone's: every number is test data."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.phone import BATTERY, BIG, COOLING, KGSL, LITTLE, MALI, USB, devfreq, make_phone, put
from support.simulated import SOC, soc_with

from codl.errors import InvalidFileError
from codl.ir.records import soc as socs
from codl.ir.records.results import Conditions
from codl.ir.records.soc import PowerW, Soc
from codl.machine import conditions as energy
from codl.machine.conditions import (
    ConditionReader,
    Meter,
    NvidiaGpu,
    Sensor,
    energy_mj,
    find_sensors,
)
from codl.machine.placement import LocalSoc, Placement
from codl.machine.system_files import SystemFiles

#: A GPU beside four big cores.
PHONE = LocalSoc.of(SOC, Placement("none", cpu_cores=(4, 5, 6, 7)))
#: An OpenCL device that is a CPU, on little cores.
ONE_CPU = LocalSoc.of(
    soc_with(type="cpu"),
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


@pytest.mark.parametrize(
    ("text", "celsius"),
    [
        ("41300", 41.3),
        ("41", 41.0),
        ("413", 41.3),
        ("0", None),
        ("-40000", None),
        ("\0\0", None),
    ],
)
def test_temperatures_are_in_degrees(tmp_path: Path, text: str, celsius: float | None) -> None:
    put(tmp_path, "zone", temp=text)
    assert SystemFiles(tmp_path).celsius("zone/temp") == pytest.approx(celsius)


@pytest.mark.parametrize(
    ("text", "mhz"),
    [("2841600", 2841.6), ("587000000", 587), ("587", 587), ("0", None), ("-1", None), ("x", None)],
)
def test_clocks_are_in_mhz(tmp_path: Path, text: str, mhz: float | None) -> None:
    put(tmp_path, "cpu", clock=text)
    assert SystemFiles(tmp_path).mhz("cpu/clock") == pytest.approx(mhz)


@pytest.mark.parametrize(
    ("current", "voltage"),
    [(-512_000, 4_000_000), (512, 4_000), (-512, 4_000_000), (512_000, 4_000), (512_000, 4)],
)
def test_power_is_in_watts_whatever_the_units(tmp_path: Path, current: int, voltage: int) -> None:
    files = make_phone(tmp_path)
    put(tmp_path, BATTERY, current_now=current, voltage_now=voltage)
    (battery,) = files.batteries()
    assert battery.watts() == pytest.approx(2.048)


@pytest.mark.parametrize(
    ("status", "online", "charging"),
    [
        ("Charging", 0, True),
        ("Discharging", 1, False),
        ("Unknown", 1, True),
        ("Unknown", 0, False),
    ],
)
def test_whether_a_battery_charges(
    tmp_path: Path, status: str, online: int, charging: bool
) -> None:
    files = make_phone(tmp_path)
    put(tmp_path, BATTERY, status=status)
    put(tmp_path, USB, online=online)
    (battery,) = files.batteries()
    assert battery.is_charging is charging


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    files = SystemFiles(tmp_path)
    assert [files.text(name) for name in ("pipe", "folder", "nothing")] == ["", "", ""]


@settings(max_examples=40)
@given(content=st.dictionaries(st.integers(0, 60), st.binary(max_size=40), max_size=8))
def test_any_content_is_survived(
    tmp_path_factory: pytest.TempPathFactory, content: dict[int, bytes]
) -> None:
    """Some files of a phone hold whatever there may be, or are gone, or are folders."""
    root = tmp_path_factory.mktemp("phone")
    reader = ConditionReader(None, make_phone(root))
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    for at, binary in content.items():
        path = paths[at % len(paths)]
        path.unlink(missing_ok=True)
        if len(binary) == 40:
            path.mkdir(exist_ok=True)
        elif len(binary) > 1 and not path.is_dir():
            path.write_bytes(binary)
    for one in (reader, ConditionReader(None, SystemFiles(root))):
        found = one.read()
        assert found.temperature_c is None or 0 < found.temperature_c < 150
        assert found.battery_percent is None or 0 <= found.battery_percent <= 100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two CPU packages, of which one has a part of its own, the whole platform, and supplies."""
    zones = tmp_path / "sys/class/powercap"
    counter = {"energy_uj": 5_000_000, "max_energy_range_uj": 10_000_000}
    put(zones / "intel-rapl:0", "", name="package-0", **counter)
    put(zones / "intel-rapl:0:0", "", name="core", **counter)
    put(zones / "intel-rapl:1", "", name="package-1", **counter)
    put(zones / "intel-rapl:2", "", name="psys", **counter)
    supplies = tmp_path / "sys/class/power_supply"
    put(supplies / "AC", "", type="Mains", online=1)
    amperes, volts = -500_000, 4_000_000
    battery = {"type": "Battery", "status": "Discharging"}
    put(supplies / "battery", "", **battery, current_now=amperes, voltage_now=volts)
    return tmp_path


def no_gpus() -> list[energy.NvidiaGpu]:
    return []


def test_packages_and_batteries_are_found(root: Path) -> None:
    found, unreadable = find_sensors(SystemFiles(root), gpus=no_gpus)
    names = {sensor.name: sensor for sensor in found}
    assert set(names) == {"rapl package-0", "rapl package-1", "power_supply battery"}
    assert names["rapl package-0"].read() == pytest.approx(5.0)
    assert names["power_supply battery"].read() == pytest.approx(2.0)
    assert [names[name].part for name in ("rapl package-0", "power_supply battery")] == [
        "cpu",
        "device",
    ]
    assert unreadable == {}


def test_what_cannot_be_read_says_why(root: Path) -> None:
    put(root / "sys/class/power_supply/battery", "", status="Charging")
    (root / "sys/class/powercap/intel-rapl:1/energy_uj").unlink()
    found, unreadable = find_sensors(SystemFiles(root), gpus=no_gpus)
    assert [sensor.name for sensor in found] == ["rapl package-0"]
    assert "only while discharging: Charging" in unreadable["power_supply battery"]
    assert "energy_uj" in unreadable["rapl package-1"]


def test_a_counter_that_begins_anew_is_counted_on(root: Path) -> None:
    sensors = find_sensors(SystemFiles(root), gpus=no_gpus)[0][:2]
    with Meter(sensors) as meter:
        put(root / "sys/class/powercap/intel-rapl:0", "", energy_uj=7_500_000)
        put(root / "sys/class/powercap/intel-rapl:1", "", energy_uj=1_000_000)  # from 10 J on again
    assert meter.joules["rapl package-0"] == pytest.approx(2.5)
    assert meter.joules["rapl package-1"] == pytest.approx(6.0)
    assert meter.total_joules == pytest.approx(8.5)


def test_power_is_summed_up_over_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By trapezoids between readings, of which each takes a second by a clock of the test's own."""
    watts: list[float] = []
    enough = Event()

    def read() -> float:
        watts.append(2.0 + len(watts) % 3)
        if len(watts) > 5:
            enough.set()
        return watts[-1]

    monkeypatch.setattr(energy, "PERIOD_S", 0.0)
    monkeypatch.setattr(energy, "time", SimpleNamespace(perf_counter=lambda: float(len(watts))))
    sensors = [
        replace(sensor, read=read) if sensor.is_power else sensor
        for sensor in find_sensors(SystemFiles(root), gpus=no_gpus)[0]
    ]
    with Meter(sensors) as meter:
        assert enough.wait(60)
    # The first reading begins the first second.
    expected = sum(0.5 * (one + next_) for one, next_ in pairwise(watts))
    assert meter.joules["power_supply battery"] == pytest.approx(expected)
    # The battery feeds the packages too.
    assert meter.total_joules == meter.joules["power_supply battery"]


@pytest.mark.parametrize("good", [0, 1])
def test_a_counter_that_fails_costs_its_energy_alone(good: int) -> None:
    """At the first reading, or at the last one."""
    readings = iter([1.0] * good + [OSError("the driver was reset")] * 2)

    def read() -> float:
        if isinstance(reading := next(readings), OSError):
            raise reading
        return reading

    assert energy_mj(lambda: None, [Sensor("counter", "gpu", read)], at_least_s=0.0) is None


def test_energy_is_that_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[None] = []
    monkeypatch.setattr(energy, "time", SimpleNamespace(perf_counter=lambda: 0.001 * len(runs)))
    sensor = Sensor("counter", "gpu", lambda: 0.25 * len(runs))
    assert energy_mj(lambda: runs.append(None), [sensor], at_least_s=0.02) == pytest.approx(250)
    assert len(runs) == 20


def test_the_soc_file_holds_power(first_soc: Soc, tmp_path: Path) -> None:
    assert "power_w" not in first_soc.to_dict()
    power = PowerW(1.0, 2.5, 3.0, 4.5, ("rapl package-0",))
    path = replace(first_soc, power_w=power).save(tmp_path / "s.yaml")
    assert socs.load(path).power_w == power
    path.write_text(path.read_text().replace("idle: 1.0", "idle: low"))
    with pytest.raises(InvalidFileError, match=r"power_w\.idle: expected float, got 'low'"):
        socs.load(path)
