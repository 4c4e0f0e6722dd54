"""Files of the system with content that nobody expects: no value, and no error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.phone import BATTERY, USB, make_phone, put

from codl.machine.conditions import ConditionReader
from codl.machine.system_files import SystemFiles


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
