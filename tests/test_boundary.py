"""What other libraries and the system raise leaves as one sentence; defects of codl do not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import yaml

from codl.boundary import boundary
from codl.errors import CodlError, DeviceError


def opencl() -> None:
    kind = type("RuntimeError", (Exception,), {"__module__": "pyopencl._cl"})
    raise kind("clGetEventProfilingInfo failed: PROFILING_INFO_NOT_AVAILABLE")


def onnx_runtime() -> None:
    onnxruntime.InferenceSession(b"no model", providers=["CPUExecutionProvider"])


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "x.csv")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (opencl, "pyopencl failed .*PROFILING_INFO_NOT_AVAILABLE"),
        (onnx_runtime, "onnxruntime failed"),
        (lambda: np.zeros(1 << 52), "not enough memory"),
        (lambda: pd.DataFrame({"a": [1]})["b"], r"pandas failed \(KeyError\)"),
        (lambda: yaml.safe_load("["), "yaml failed"),
        (lambda: Path("/none/such").read_text(), "/none/such: No such file or directory"),
        (full_disk, "x.csv: No space left on device"),
    ],
)
def test_foreign_errors_are_ours(what: Callable[[], Any], said: str) -> None:
    with pytest.raises(CodlError, match=said) as error, boundary():
        what()
    assert error.value.__cause__ is not None
    assert "\n" not in str(error.value)


def test_what_is_ours_is_left_alone() -> None:
    for own in (DeviceError("x"), KeyError("defect"), KeyboardInterrupt(), BrokenPipeError()):
        with pytest.raises(type(own)) as error, boundary():
            raise own
        assert error.value is own
