"""Threads of the CPU side: as many as the placement says, on its cores, in every library."""

from __future__ import annotations

import os

import pytest
from support.threads_at_work import seen_at_work

from codl.kernels.cpu import CPU_OPENVINO
from codl.machine.placement import Placement

CORES = tuple(sorted(os.sched_getaffinity(0)))
pytestmark = [
    pytest.mark.device,  # ncnn is loaded, in a process of its own
    pytest.mark.skipif(len(CORES) < 2, reason="two threads need two cores"),
]


@pytest.fixture(params=["cpu_gemm", "cpu_ort", CPU_OPENVINO])
def variant(request: pytest.FixtureRequest) -> str:
    """One of each library."""
    if request.param == CPU_OPENVINO:
        pytest.importorskip("openvino")
    return str(request.param)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_library_has_the_threads_of_the_placement(variant: str, threads: int) -> None:
    """Whatever the SoC file says that latencies are measured with."""
    place = Placement("none", CORES[:2], cpu_threads=threads)
    seen, cores = seen_at_work(variant, place, facts=3 - threads)
    assert seen == threads
    assert cores <= {*CORES[:2]}


def test_threads_keep_to_the_cores_of_the_placement(variant: str) -> None:
    assert seen_at_work(variant, Placement("none", CORES[1:2]), facts=2) == (1, {CORES[1]})


def test_a_library_that_began_on_one_core_has_two_threads_later(variant: str) -> None:
    places = Placement("none", CORES[:1]), Placement("none", CORES[:2])
    seen, cores = seen_at_work(variant, *places, facts=1)
    assert seen == 2
    assert cores <= {*CORES[:2]}
