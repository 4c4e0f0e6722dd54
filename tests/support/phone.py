"""A folder tree like the `/sys` of a phone: every value in it is made up for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from codl.machine.system_files import SystemFiles

POLICIES = "sys/devices/system/cpu/cpufreq"
LITTLE, BIG = f"{POLICIES}/policy0", f"{POLICIES}/policy4"
ZONES, KGSL = "sys/class/thermal", "sys/class/kgsl/kgsl-3d0"
COOLING = f"{ZONES}/cooling_device"
BATTERY, USB = "sys/class/power_supply/battery", "sys/class/power_supply/usb"
MALI = "sys/class/devfreq/fb000000.gpu"


def policy(cores: str, now_khz: int, most_khz: int) -> dict[str, object]:
    return {
        "related_cpus": cores,
        "scaling_cur_freq": now_khz,
        "scaling_min_freq": 300_000,
        "scaling_max_freq": most_khz,
        "cpuinfo_max_freq": most_khz,
        "scaling_governor": "schedutil",
        "scaling_available_governors": "conservative powersave performance schedutil",
    }


def devfreq(governor: str, now_hz: int, most_hz: int) -> dict[str, object]:
    return {
        "governor": governor,
        "available_governors": f"{governor} powersave performance simple_ondemand",
        "cur_freq": now_hz,
        "min_freq": 257_000_000,
        "max_freq": most_hz,
    }


PHONE: Mapping[str, Mapping[str, object]] = {
    LITTLE: policy("0 1 2 3", 1_785_600, 1_785_600),
    BIG: policy("4 5 6 7", 2_419_200, 2_841_600),
    f"{ZONES}/thermal_zone0": {"type": "cpu-0-0-usr", "temp": 41_300},
    f"{ZONES}/thermal_zone1": {"type": "gpuss-0-usr", "temp": 43_600},
    f"{ZONES}/thermal_zone2": {"type": "battery", "temp": 61_000},
    f"{ZONES}/thermal_zone3": {"type": "soc", "temp": 100},
    f"{ZONES}/thermal_zone10": {"type": "cpu-1-7-usr", "temp": -40_000},
    f"{COOLING}0": {"type": "thermal-cpufreq-0", "cur_state": 0, "max_state": 15},
    f"{COOLING}1": {"type": "thermal-devfreq-0", "cur_state": 0, "max_state": 4},
    f"{COOLING}2": {"type": "panel0-backlight", "cur_state": 200, "max_state": 255},
    KGSL: {"gpuclk": 587_000_000, "clock_mhz": 587, "temp": 42_000, "thermal_pwrlevel": 0},
    f"{KGSL}/devfreq": devfreq("msm-adreno-tz", 587_000_000, 587_000_000),
    BATTERY: {"type": "Battery", "status": "Discharging", "capacity": 83,
              "current_now": -512_000, "voltage_now": 4_020_000},
    USB: {"type": "USB", "online": 0},
}  # fmt: skip


def put(root: Path, folder: str, **files: object) -> None:
    """Write files of a folder below the root."""
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (place / name).write_text(f"{value}\n")


def make_phone(root: Path, tree: Mapping[str, Mapping[str, object]] = PHONE) -> SystemFiles:
    """The tree below a folder."""
    for folder, files in tree.items():
        put(root, folder, **files)
    return SystemFiles(root)


def contents(root: Path) -> dict[str, str]:
    """All files below a root, by path, without the space around what they hold."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_text().strip() for path in files}
