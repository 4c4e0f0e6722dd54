"""Clusters, caches, chip and board, from trees of files like those of phones, boards and PCs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.phone import put

from codl.ir.records.soc import Chip, CoreCluster, CpuCache
from codl.machine import hardware
from codl.machine.hardware import (
    by_nearness,
    core_clusters,
    cpu_caches,
    near_cores,
    physical_cores,
    read_chip,
    withheld_cores,
)
from codl.machine.system_files import SystemFiles

CPU = "sys/devices/system/cpu"
#: Identification registers of a Cortex-A55 and a Cortex-A77.
LITTLE, BIG = "0x00000000412fd050", "0x00000000411fd0d0"


def core(root: Path, number: int, *, khz: int = 0, capacity: int = 0, midr: str = "") -> None:
    folder = f"{CPU}/cpu{number}"
    put(root, folder, **({"cpu_capacity": capacity} if capacity else {}))
    if khz:
        put(root, f"{folder}/cpufreq", cpuinfo_max_freq=khz)
    if midr:
        put(root, f"{folder}/regs/identification", midr_el1=midr)


def cache(root: Path, number: int, index: int, **files: object) -> None:
    put(root, f"{CPU}/cpu{number}/cache/index{index}", **files)


def phone(root: Path) -> SystemFiles:
    """Four little cores, three big ones, and one that is faster still."""
    for number in range(8):
        khz, capacity = (1_804_800, 262) if number < 4 else (2_419_200, 900)
        if number == 7:
            khz, capacity = 2_841_600, 1024
        core(root, number, khz=khz, capacity=capacity, midr=LITTLE if number < 4 else BIG)
    put(root, f"{CPU}/cpufreq", boost=0)
    return SystemFiles(root)


def test_cores_that_are_alike_are_a_cluster(tmp_path: Path) -> None:
    clusters = core_clusters(phone(tmp_path))
    assert clusters == (
        CoreCluster("Cortex-A55", 4, 1805, 262, (0, 1, 2, 3)),
        CoreCluster("Cortex-A77", 3, 2419, 900, (4, 5, 6)),
        CoreCluster("Cortex-A77", 1, 2842, 1024, (7,)),
    )


@pytest.mark.parametrize(
    ("allowed", "withheld"),
    [
        (range(8), ()),
        (range(4), (4, 5, 6, 7)),  # Android's background
        (range(7), (7,)),  # and its foreground, on some phones
    ],
)
def test_faster_cores_that_a_process_may_not_use(
    allowed: Sequence[int], withheld: tuple[int, ...], tmp_path: Path
) -> None:
    files = phone(tmp_path)
    put(tmp_path, CPU, online="0-7")
    assert withheld_cores(allowed, files) == withheld


def test_a_system_that_tells_nothing_has_cores_that_are_alike(tmp_path: Path) -> None:
    for number in (0, 1, 10):
        core(tmp_path, number)
    clusters = core_clusters(SystemFiles(tmp_path))
    assert clusters == (CoreCluster("core", 3, 0, 0, (0, 1, 10)),)
    assert core_clusters(SystemFiles(tmp_path / "nothing")) == ()


@pytest.mark.parametrize("broken", ["", "many", "-5", "nan", "9" * 50])
def test_nonsense_of_the_system_stays_out(tmp_path: Path, broken: str) -> None:
    put(tmp_path, f"{CPU}/cpu0", cpu_capacity=broken)
    put(tmp_path, f"{CPU}/cpu0/cpufreq", cpuinfo_max_freq=broken)
    put(tmp_path, f"{CPU}/cpu0/regs/identification", midr_el1=broken)
    cache(tmp_path, 0, 0, level=broken, size=broken, type=broken, shared_cpu_list=broken)
    (cluster,) = core_clusters(SystemFiles(tmp_path))
    assert (cluster.name, cluster.ids) == ("core", (0,))
    assert 0 <= cluster.capacity < 1 << 63
    assert 0 <= cluster.max_mhz < 1 << 63
    assert cpu_caches(SystemFiles(tmp_path)) == ()


def test_caches_are_counted_once_however_many_cores_share_them(tmp_path: Path) -> None:
    for number in range(4):
        own = {"level": 1, "size": "32K", "shared_cpu_list": number}
        cache(tmp_path, number, 0, type="Data", **own)
        cache(tmp_path, number, 1, type="Instruction", **own)
        pair = "0-1" if number < 2 else "2-3"
        cache(tmp_path, number, 2, level=2, size="512K", type="Unified", shared_cpu_list=pair)
        cache(tmp_path, number, 3, level=3, size="4M", type="Unified", shared_cpu_list="0-1,2-3")
    assert cpu_caches(SystemFiles(tmp_path)) == (
        CpuCache(1, "data", 32 << 10, 1, 4),
        CpuCache(1, "instruction", 32 << 10, 1, 4),
        CpuCache(2, "unified", 512 << 10, 2, 2),
        CpuCache(3, "unified", 4 << 20, 4, 1),
    )


def no_property(name: str) -> str:
    return ""


def pc(root: Path, caches: Sequence[str], siblings: Sequence[str] = ()) -> SystemFiles:
    """Cores that have a last cache in common with others, and a physical core with siblings."""
    for number, sharers in enumerate(caches):
        core(root, number)
        cache(root, number, 0, level=1, shared_cpu_list=number)
        cache(root, number, 3, level=3, shared_cpu_list=sharers)
        if siblings:
            folder = f"{CPU}/cpu{number}/topology"
            put(root, folder, thread_siblings_list=siblings[number % len(siblings)])
    return SystemFiles(root)


def test_siblings_come_last(tmp_path: Path) -> None:
    files = pc(tmp_path, ["0-7"] * 8, ["0,4", "1,5", "2,6", "3,7"])
    assert physical_cores(range(8), files) == (0, 1, 2, 3)
    assert by_nearness(range(8), files) == tuple(range(8))
    assert by_nearness((1, 2, 5, 7), files) == (1, 2, 7, 5)
    twins = pc(tmp_path / "twins", ["0-7"] * 8)
    for number in range(8):
        put(twins.root, f"{CPU}/cpu{number}/topology", thread_siblings_list=f"{number // 2 * 2}")
    assert by_nearness(range(8), twins) == (0, 2, 4, 6, 1, 3, 5, 7)


def test_neighbours_share_a_cache(tmp_path: Path) -> None:
    """As on an EPYC; of one of its caches a container may have fewer cores."""
    files = pc(tmp_path, ["0-3"] * 4 + ["4-7"] * 4)
    assert by_nearness(range(8), files) == tuple(range(8))
    assert by_nearness(range(2, 8), files) == (4, 5, 6, 7, 2, 3)
    assert near_cores(by_nearness(range(2, 8), files), files) == 6


def test_a_board_is_told_by_its_device_tree(tmp_path: Path) -> None:
    put(tmp_path, "proc/device-tree", model="Radxa ROCK 5B\0")
    (tmp_path / "proc/device-tree/compatible").write_bytes(b"radxa,rock-5b\0rockchip,rk3588\0")
    found = read_chip(SystemFiles(tmp_path), no_property)
    assert found == Chip("rockchip,rk3588", "Radxa ROCK 5B", ("radxa,rock-5b", "rockchip,rk3588"))


def test_a_phone_is_told_by_its_properties(tmp_path: Path) -> None:
    told = {"ro.soc.model": "SM8250\n", "ro.product.model": "Mi 10\n"}
    put(tmp_path, "sys/devices/soc0", machine="KONA")
    found = read_chip(SystemFiles(tmp_path), lambda name: told.get(name, ""))
    assert (found.name, found.board) == ("SM8250", "Mi 10")
    assert read_chip(SystemFiles(tmp_path), no_property).name == "KONA"


def test_getprop_is_asked_by_a_fixed_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "getprop"
    program.write_text('#!/bin/sh\necho "asked $# $1"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert hardware.read_property("ro.soc.model; reboot").strip() == "asked 1 ro.soc.model; reboot"
    program.write_text("#!/bin/sh\nexit 1\n")
    assert hardware.read_property("ro.soc.model") == ""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert hardware.read_property("ro.soc.model") == ""


def test_a_name_is_one_line_that_can_be_printed(tmp_path: Path) -> None:
    put(tmp_path, "proc/device-tree", model="\x1b[31mevil\nsecond line" + "x" * 1000)
    assert read_chip(SystemFiles(tmp_path), no_property).board == "[31mevil"
    put(tmp_path, "proc/device-tree", model="x" * 1000)
    assert len(read_chip(SystemFiles(tmp_path), no_property).board) == hardware.MOST_CHARACTERS
