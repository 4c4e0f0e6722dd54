"""Energy sensors, from files that these tests write: every number here is test data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import sleep

import pytest

from codl.errors import DeviceError, InvalidFileError
from codl.ir import soc as socs
from codl.ir.soc import PowerW, Soc
from codl.measure.power import measure_power
from codl.runtime import energy, nvml
from codl.runtime.energy import Found, Sensor, energy_mj, find_sensors, metered


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two CPU packages, of which one has a part of its own, the whole platform, and supplies."""
    zones = tmp_path / "class/powercap"
    counter = {"energy_uj": 5_000_000, "max_energy_range_uj": 10_000_000}
    write(zones / "intel-rapl:0", name="package-0", **counter)
    write(zones / "intel-rapl:0:0", name="core", **counter)
    write(zones / "intel-rapl:1", name="package-1", **counter)
    write(zones / "intel-rapl:2", name="psys", **counter)
    supplies = tmp_path / "class/power_supply"
    write(supplies / "AC", type="Mains", online=1)
    amperes, volts = -500_000, 4_000_000
    battery = {"type": "Battery", "status": "Discharging"}
    write(supplies / "battery", **battery, current_now=amperes, voltage_now=volts)
    return tmp_path


def no_gpus() -> list[nvml.Gpu]:
    return []


def test_packages_and_batteries_are_found(root: Path) -> None:
    found = find_sensors(root, gpus=no_gpus)
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
    write(root / "class/power_supply/battery", status="Charging")
    (root / "class/powercap/intel-rapl:1/energy_uj").unlink()
    found = find_sensors(root, gpus=no_gpus)
    assert [sensor.name for sensor in found.sensors] == ["rapl package-0"]
    assert "only while discharging: Charging" in found.unreadable["power_supply battery"]
    assert "energy_uj" in found.unreadable["rapl package-1"]


def test_a_machine_without_sensors_has_none(tmp_path: Path) -> None:
    assert find_sensors(tmp_path, gpus=no_gpus) == Found((), {})
    assert energy_mj(lambda: None, ()) is None


def test_a_counter_that_begins_anew_is_counted_on(root: Path) -> None:
    sensors = find_sensors(root, gpus=no_gpus).sensors[:2]
    with metered(sensors) as meter:
        write(root / "class/powercap/intel-rapl:0", energy_uj=7_500_000)
        write(root / "class/powercap/intel-rapl:1", energy_uj=1_000_000)  # from 10 J on again
    assert meter.joules["rapl package-0"] == pytest.approx(2.5)
    assert meter.joules["rapl package-1"] == pytest.approx(6.0)
    assert meter.total_joules == pytest.approx(8.5)


def test_power_is_summed_up_over_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "PERIOD_S", 0.005)
    sensors = find_sensors(root, gpus=no_gpus).sensors
    with metered(sensors) as meter:
        sleep(0.05)
    assert meter.joules["power_supply battery"] == pytest.approx(2.0 * meter.seconds, rel=0.2)
    # The battery feeds the packages too.
    assert meter.total_joules == meter.joules["power_supply battery"]


def test_a_sensor_that_fails_on_the_way_has_no_joules(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "PERIOD_S", 0.005)
    sensors = find_sensors(root, gpus=no_gpus).sensors
    with metered(sensors) as meter:
        write(root / "class/power_supply/battery", status="Charging")
        sleep(0.02)
    assert "power_supply battery" not in meter.joules
    assert meter.total_joules == 0


def test_energy_is_that_of_one_run() -> None:
    spent = [0.0]

    def work() -> None:
        spent[0] += 0.25
        sleep(0.001)

    sensor = Sensor("counter", "gpu", lambda: spent[0])
    assert energy_mj(work, [sensor], at_least_s=0.02) == pytest.approx(250)


def test_nvml_is_absent_or_tells_energy() -> None:
    for gpu in nvml.gpus():
        assert gpu.read() >= 0


def test_power_needs_a_sensor(first_soc: Soc) -> None:
    with pytest.raises(DeviceError, match=r"has no energy sensor.*rapl package-0: refused"):
        measure_power(first_soc, Found((), {"rapl package-0": "refused"}), 0.1)


def test_power_is_measured_for_both_sides(first_soc: Soc) -> None:
    """With a clock for a sensor, so that all four are one watt."""
    from time import perf_counter

    sensor = Sensor("clock", "device", perf_counter)
    power = measure_power(first_soc, Found((sensor,)), 0.1)
    assert power.sensors == ("clock",)
    for watts in (power.idle, power.cpu, power.gpu, power.both):
        assert watts == pytest.approx(1.0, rel=0.1)


def test_the_soc_file_holds_power(first_soc: Soc, tmp_path: Path) -> None:
    assert "power_w" not in first_soc.to_dict()
    power = PowerW(1.0, 2.5, 3.0, 4.5, ("rapl package-0",))
    path = replace(first_soc, power_w=power).save(tmp_path / "s.yaml")
    assert socs.load(path).power_w == power
    path.write_text(path.read_text().replace("idle: 1.0", "idle: low"))
    with pytest.raises(InvalidFileError, match=r"power_w\.idle: expected float, got 'low'"):
        socs.load(path)
