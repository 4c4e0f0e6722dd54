"""CPU quotas of control groups: how much time there is, and how often it was used up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.devices_under_test import HEALTHY

from codl.ir.records.results import Conditions, Latency, doubts
from codl.jobs.doctor import cores
from codl.machine.conditions import ConditionReader
from codl.machine.examination import cpu_quota
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


def test_doctor_names_a_quota() -> None:
    machine = replace(HEALTHY, cores=(0, 1), quota_cores=0.5)
    (result,) = cores(SimpleNamespace(examination=machine))  # type: ignore[arg-type]
    assert not result.ok
    assert "the time of 0.5 of 2 cores" in result.detail
    enough = SimpleNamespace(examination=replace(machine, quota_cores=2.0))
    assert all(result.ok for result in cores(enough))  # type: ignore[arg-type]
