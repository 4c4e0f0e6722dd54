"""Libraries that are never near the fastest are measured no further."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.simulated import SOC

from codl.ir import parse
from codl.measure.library_rivals import ENOUGH, LibraryRivals
from codl.measure.tasks import OpTask, op_tasks

OPS = [parse(f"conv2d in=1x16x8x{8 + at} oc=32 kernel=3x3 pad=1") for at in range(ENOUGH + 1)]


def tasks_of(variant: str) -> list[OpTask]:
    tasks = [task for op in OPS for task in op_tasks(op, "cpu", SOC, [1.0])]
    return [task for task in tasks if task.variant == variant]


def noted(ort_ms: list[float], ncnn_ms: float = 1.0) -> LibraryRivals:
    """What is thought when one part less than there are was measured in both; 0 for what failed."""
    rivals = LibraryRivals()
    for task in tasks_of("cpu_gemm")[:-1]:
        rivals.note(task, replace(task.blank, latency_ms=ncnn_ms))
    for task, ms in zip(tasks_of("cpu_ort")[:-1], ort_ms, strict=True):
        row = replace(task.blank, latency_ms=ms) if ms else replace(task.blank, status="failed")
        rivals.note(task, row)
    return rivals


@pytest.mark.parametrize(
    ("ort_ms", "is_left_out"),
    [
        ([2.0] * ENOUGH, True),
        ([0.0] * ENOUGH, True),
        ([2.0] * (ENOUGH - 1) + [1.2], False),
        ([1.0] * ENOUGH, False),
    ],
)
def test_what_is_always_far_slower_is_left_out(ort_ms: list[float], is_left_out: bool) -> None:
    rivals = noted(ort_ms)
    assert rivals.leaves_out(tasks_of("cpu_ort")[-1]) == is_left_out
    assert not rivals.leaves_out(tasks_of("cpu_gemm")[-1])


def test_the_usual_library_stays_however_slow_it_is() -> None:
    rivals = noted([1.0] * ENOUGH, ncnn_ms=9.0)
    assert not any(rivals.leaves_out(task) for task in tasks_of("cpu_gemm"))
