"""Profiled times of plans that ran."""

from __future__ import annotations

import pytest

from codl.plan.profile_feedback import ProfiledTimes


def test_parts_of_the_runs_that_count_add_up() -> None:
    """Each run but the first is disturbed, in another part each time."""
    parts = [(1.0, 1.0), (4.0, 1.0), (1.0, 4.5), (1.0, 5.0), (5.5, 1.0), (90.0, 1.0), (1.0, 99.0)]
    runs = [ProfiledTimes({0: cpu}, {1: gpu}, {}, [cpu, gpu]) for cpu, gpu in parts]
    found = ProfiledTimes.typical(runs)
    near = parts[:3]  # around the second: a fifth of the way from the shortest to the longest
    assert found.nets_ms == {0: pytest.approx(sum(cpu for cpu, _ in near) / 3)}
    assert found.kernels_ms == {1: pytest.approx(sum(gpu for _, gpu in near) / 3)}
    assert sum(found.stages_ms) == pytest.approx(found.nets_ms[0] + found.kernels_ms[1])
    assert ProfiledTimes.typical(runs[:1]) == runs[0]
