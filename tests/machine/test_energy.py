"""Energy sensors, from files that these tests write: every number here is test data."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from codl.errors import InvalidFileError
from codl.ir.records import soc as socs
from codl.ir.records.soc import PowerW, Soc
from codl.machine import conditions as energy
from codl.machine.conditions import Sensor, energy_mj, find_sensors, metered
from codl.machine.system_files import SystemFiles


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two CPU packages, of which one has a part of its own, the whole platform, and supplies."""
    zones = tmp_path / "sys/class/powercap"
    counter = {"energy_uj": 5_000_000, "max_energy_range_uj": 10_000_000}
    write(zones / "intel-rapl:0", name="package-0", **counter)
    write(zones / "intel-rapl:0:0", name="core", **counter)
    write(zones / "intel-rapl:1", name="package-1", **counter)
    write(zones / "intel-rapl:2", name="psys", **counter)
    supplies = tmp_path / "sys/class/power_supply"
    write(supplies / "AC", type="Mains", online=1)
    amperes, volts = -500_000, 4_000_000
    battery = {"type": "Battery", "status": "Discharging"}
    write(supplies / "battery", **battery, current_now=amperes, voltage_now=volts)
    return tmp_path


def no_gpus() -> list[energy.NvidiaGpu]:
    return []


def test_packages_and_batteries_are_found(root: Path) -> None:
    found = find_sensors(SystemFiles(root), gpus=no_gpus)
    names = {sensor.name: sensor for sensor in found.sensors}
    assert set(names) == {"rapl package-0", "rapl package-1", "power_supply battery"}
    assert names["rapl package-0"].read() == pytest.approx(5.0)
    assert names["power_supply battery"].read() == pytest.approx(2.0)
    assert [names[name].part for name in ("rapl package-0", "power_supply battery")] == [
        "cpu",
        "device",
    ]
    assert found.unreadable == {}


def test_what_cannot_be_read_says_why(root: Path) -> None:
    write(root / "sys/class/power_supply/battery", status="Charging")
    (root / "sys/class/powercap/intel-rapl:1/energy_uj").unlink()
    found = find_sensors(SystemFiles(root), gpus=no_gpus)
    assert [sensor.name for sensor in found.sensors] == ["rapl package-0"]
    assert "only while discharging: Charging" in found.unreadable["power_supply battery"]
    assert "energy_uj" in found.unreadable["rapl package-1"]


def test_a_counter_that_begins_anew_is_counted_on(root: Path) -> None:
    sensors = find_sensors(SystemFiles(root), gpus=no_gpus).sensors[:2]
    with metered(sensors) as meter:
        write(root / "sys/class/powercap/intel-rapl:0", energy_uj=7_500_000)
        write(root / "sys/class/powercap/intel-rapl:1", energy_uj=1_000_000)  # from 10 J on again
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
        for sensor in find_sensors(SystemFiles(root), gpus=no_gpus).sensors
    ]
    with metered(sensors) as meter:
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
