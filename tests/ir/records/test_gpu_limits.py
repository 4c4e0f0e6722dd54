"""Limits of a GPU: which can be, and what kernels take under them."""

from __future__ import annotations

import numpy as np
import pytest

from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits


def test_split_kernels_cost_launches_and_everything_the_rest() -> None:
    taken_ms = np.array([0.0, 0.5, 1.0, 3.5])
    limits = GpuLimits(max_kernel_ms=1.0, gpu_duty=0.5)
    assert limits.launches(taken_ms).tolist() == [1, 1, 1, 4]
    assert limits.kept_ms(taken_ms, 0.1).tolist() == pytest.approx([0.0, 1.0, 2.0, 7.6])
    assert limits.rest == 1.0
    assert UNLIMITED.kept_ms(taken_ms, 0.1).tolist() == taken_ms.tolist()
