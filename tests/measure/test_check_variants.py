"""Checks of kernel variants: which ops meet which variants, and what counts as wrong."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from support.simulated import SOC

from codl.kernels import registry
from codl.machine.placement import LocalSoc, Placement
from codl.measure.budget import Budget
from codl.measure.check_variants import check_all, check_tasks
from codl.measure.closeness import difference

IMAGES = ("buffer", "image2d")


def with_gpu(**changes: object) -> LocalSoc:
    gpu = replace(SOC.gpu, memory_types=IMAGES, **changes)  # type: ignore[arg-type]
    return LocalSoc.of(replace(SOC, gpu=gpu), Placement("none", (0,), (1,) * gpu.is_cpu))


def test_every_variant_is_met_on_one_device_or_another() -> None:
    """But those of ops whose text is not all that there is to them."""
    socs = [with_gpu(type="gpu", vector_width=4, half=True)]
    socs += [with_gpu(type="cpu", vector_width=width, compute_units=1) for width in (4, 8, 16)]
    met = {task.name for soc in socs for task in check_tasks(soc)}
    missing = () if find_spec("openvino") else ("openvino",)
    assert {*registry.VARIANTS} - met == {
        name
        for name, variant in registry.VARIANTS.items()
        if variant.op_kind == "onnx" or variant.backend in missing
    }


def test_differences_are_of_the_largest_value() -> None:
    assert difference(np.array([1.0, 2.1]), np.array([1.0, 2.0])) == pytest.approx(0.05)
    assert difference(np.array([np.nan, 2.0]), np.array([1.0, 2.0])) == float("inf")
    assert difference(np.zeros(2), np.full(2, 1e-6)) == pytest.approx(1e-3)


def test_what_has_no_time_left_is_not_begun(first_soc: LocalSoc) -> None:
    from support.devices import here

    seconds = iter(range(100))
    tasks = check_tasks(first_soc, ["cpu"])[:5]
    events: list[Any] = []
    budget = Budget(8.0, lambda: float(next(seconds)))
    check_all(
        here(first_soc).device, tasks, emit=lambda *event: events.append(event), budget=budget
    )
    begun, done = events[::2], events[1::2]
    assert 0 < len(begun) == len(done) < 5
    assert begun == [("begin", index, None) for index in range(len(begun))]
    assert done == [("done", index, "") for index in range(len(done))]
