"""Environments: what two results must share to be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from codl.errors import MismatchError
from codl.ir.environment import Environment, check_alike, differences

HERE = Environment(
    machine="a board",
    system="Linux aarch64",
    platform="OpenCL",
    device="Mali",
    driver="1.2",
    cpu_cores=(4, 5),
    threads=2,
    clocks={"cores 4, 5": "performance, at most 2400 MHz", "gpu": "simple_ondemand"},
    clocks_mhz={"cpu": 2400.0, "gpu": 800.0},
    libraries={"ncnn": "1.0", "numpy": "2.0", "rich": "15"},
    protocol={"warm": 3, "statistic": "20th percentile"},
)


def test_one_environment_is_alike() -> None:
    assert differences(HERE, HERE) == ()
    check_alike((), "a.json", "b.json")


@pytest.mark.parametrize(
    ("changed", "what", "first", "second"),
    [
        ({"driver": "1.3"}, "driver", "1.2", "1.3"),
        ({"clocks": {"gpu": "powersave"}}, "the clock of gpu", "simple_ondemand", "powersave"),
        ({"clocks_mhz": {"cpu": 1800.0}}, "clock in MHz of cpu", "2400", "1800"),
        ({"libraries": {"ncnn": "1.1", "numpy": "2.0"}}, "libraries ncnn", "1.0", "1.1"),
        ({"protocol": {"warm": 5}}, "protocol warm", "3", "5"),
    ],
)
def test_a_difference_is_named_with_both_values(
    changed: dict[str, Any], what: str, first: str, second: str
) -> None:
    found = differences(HERE, replace(HERE, **changed))
    with pytest.raises(MismatchError) as error:
        check_alike(found, "a.json", "b.json", fix="Do this.")
    assert f"{what}: {first} and {second}" in str(error.value)
    assert str(error.value).startswith("a.json and b.json were not measured alike")
    assert str(error.value).endswith("Do this.")


@pytest.mark.parametrize(
    "changed",
    [
        {"clocks_mhz": {"cpu": 2300.0, "gpu": 850.0}},  # near enough
        {"clocks_mhz": {}},  # cannot be read any more
        {"libraries": {"ncnn": "1.0", "numpy": "2.0", "rich": "16"}},  # computes nothing
    ],
)
def test_what_changes_no_latency_is_alike(changed: dict[str, Any]) -> None:
    assert differences(HERE, replace(HERE, **changed)) == ()
