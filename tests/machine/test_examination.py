"""What a machine has for codl: read from a system that is made up of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from codl.machine.examination import Governor, governors, memory_of, room
from codl.machine.system_files import SystemFiles


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def test_cores_of_one_policy_have_one_governor(tmp_path: Path) -> None:
    cpus = tmp_path / "sys/devices/system/cpu"
    write(
        cpus / "cpufreq/policy0",
        related_cpus="0 1",
        scaling_governor="schedutil",
        scaling_driver="cpufreq-dt",
        scaling_max_freq="1800000",
        cpuinfo_max_freq="2400000",
    )
    write(cpus / "cpufreq/policy2", related_cpus="2 3", scaling_governor="performance")
    assert governors((0, 1, 2), SystemFiles(tmp_path)) == (
        Governor((0, 1), "schedutil", "cpufreq-dt", 1800.0, 2400.0),
        Governor((2,), "performance", ""),
    )


@pytest.mark.parametrize(
    ("group", "folder", "limit", "used"),
    [
        ("0::/a/b", "sys/fs/cgroup/a", "memory.max", "memory.current"),
        ("0::/on/the/host", "sys/fs/cgroup", "memory.max", "memory.current"),
        ("3:cpu:/\n4:memory:/a", "sys/fs/cgroup/memory/a",
         "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)  # fmt: skip
def test_memory_is_the_containers(
    group: str, folder: str, limit: str, used: str, tmp_path: Path
) -> None:
    files = SystemFiles(tmp_path)
    write(tmp_path / "proc", meminfo="MemTotal: 8000 kB\nMemAvailable: 6000 kB")
    write(tmp_path / "proc/self", cgroup=group)
    assert memory_of(files) == (8000 << 10, 6000 << 10)
    write(tmp_path / folder, **{limit: str(3000 << 10), used: str(2500 << 10)})
    assert memory_of(files) == (3000 << 10, 500 << 10)
    write(tmp_path / folder, **{"memory.stat": f"anon 1\ninactive_file {1000 << 10}"})
    assert memory_of(files) == (3000 << 10, 1500 << 10)
    write(tmp_path / folder, **{limit: "max"})
    assert memory_of(files) == (8000 << 10, 6000 << 10)


def test_room_is_that_of_the_folder_that_is_there(tmp_path: Path) -> None:
    found = room(tmp_path / "not" / "there")
    assert found.free_bytes > 0
    assert not found.problem
    (tmp_path / "file").write_text("")
    assert room(tmp_path / "file" / "below").problem == f"{tmp_path / 'file'} is no folder"
