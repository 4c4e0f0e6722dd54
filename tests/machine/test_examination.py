"""What a machine has for codl, from files, and what a CPU quota leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from codl.ir.records.results import Conditions, Latency, doubts
from codl.machine.conditions import ConditionReader
from codl.machine.examination import Governor, cpu_quota, governors, memory_of, room
from codl.machine.system_files import SystemFiles

V2, V1 = "0::/user/box\n", "3:cpu,cpuacct:/box\n0::/\n"


def write(root: Path, texts: dict[str, str]) -> SystemFiles:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SystemFiles(root)


@pytest.mark.parametrize(
    ("groups", "texts", "quota"),
    [
        (V2, {"user/box/cpu.max": "50000 100000\n", "user/cpu.max": "max 100000\n"}, 0.5),
        (V2, {"user/box/cpu.max": "max 100000\n", "user/cpu.max": "150000 100000\n"}, 1.5),
        (V1, {"cpu/box/cpu.cfs_quota_us": "50000\n", "cpu/box/cpu.cfs_period_us": "100000\n"}, 0.5),
        (V1, {"cpu/box/cpu.cfs_quota_us": "-1\n", "cpu/box/cpu.cfs_period_us": "100000\n"}, None),
        ("", {}, None),
    ],
)
def test_the_narrowest_quota_counts(
    groups: str, texts: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    inside = {f"sys/fs/cgroup/{name}": text for name, text in texts.items()}
    assert cpu_quota(write(tmp_path, {"proc/self/cgroup": groups, **inside})) == quota


def test_periods_that_a_quota_stopped_are_counted_over_a_while(tmp_path: Path) -> None:
    stat = "sys/fs/cgroup/user/box/cpu.stat"

    def stopped(count: int) -> Conditions:
        write(tmp_path, {stat: f"nr_periods 99\nnr_throttled {count}\nthrottled_usec 5\n"})
        return reader.read()

    files = write(tmp_path, {"proc/self/cgroup": V2, stat: "nr_throttled 7\n"})
    reader = ConditionReader(files=files)
    readings = [stopped(7), stopped(9), stopped(54)]
    assert readings[1].quota_periods == 2
    assert Conditions.over(readings[1:]).quota_periods == 45
    assert ConditionReader(files=SystemFiles(tmp_path / "none")).read().quota_periods is None


def test_a_latency_under_a_quota_or_far_from_its_prediction_is_doubtful() -> None:
    quiet = Latency(10.0, 9.9, 10.1, 50)
    assert doubts(quiet, predicted_ms=5.0, quota_periods=0) == ()
    assert doubts(quiet, quota_periods=54) == ("a CPU quota stopped the process in 54 periods",)
    (far,) = doubts(quiet, predicted_ms=0.33)
    assert far.startswith("it took 30 times what was predicted")
    assert doubts(Latency(85.0, 12.0, 91.0, 50))[0] == "the median is 7.08 times p20"


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def test_cores_of_one_policy_have_one_governor(tmp_path: Path) -> None:
    cpus = tmp_path / "sys/devices/system/cpu"
    put(
        cpus / "cpufreq/policy0",
        related_cpus="0 1",
        scaling_governor="schedutil",
        scaling_driver="cpufreq-dt",
        scaling_max_freq="1800000",
        cpuinfo_max_freq="2400000",
    )
    put(cpus / "cpufreq/policy2", related_cpus="2 3", scaling_governor="performance")
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
    put(tmp_path / "proc", meminfo="MemTotal: 8000 kB\nMemAvailable: 6000 kB")
    put(tmp_path / "proc/self", cgroup=group)
    assert memory_of(files) == (8000 << 10, 6000 << 10)
    put(tmp_path / folder, **{limit: str(3000 << 10), used: str(2500 << 10)})
    assert memory_of(files) == (3000 << 10, 500 << 10)
    put(tmp_path / folder, **{"memory.stat": f"anon 1\ninactive_file {1000 << 10}"})
    assert memory_of(files) == (3000 << 10, 1500 << 10)
    put(tmp_path / folder, **{limit: "max"})
    assert memory_of(files) == (8000 << 10, 6000 << 10)


def test_room_is_that_of_the_folder_that_is_there(tmp_path: Path) -> None:
    found = room(tmp_path / "not" / "there")
    assert found.free_bytes > 0
    assert not found.problem
    (tmp_path / "file").write_text("")
    assert room(tmp_path / "file" / "below").problem == f"{tmp_path / 'file'} is no folder"
