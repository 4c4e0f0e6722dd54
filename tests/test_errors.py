"""What other libraries and the system raise leaves as one sentence; defects of codl do not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import codl
from codl.errors import CodlError, DeviceError, boundary


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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: codl.compile(None), "model must be str or Path, got None"),
        (lambda: codl.compile("x.onnx", strategy=5), "strategy must be .*, got 5"),
        (lambda: codl.compile("x.onnx", plan="p.json", strategy="gpu"), "'p.json' or .*'gpu'"),
        (lambda: codl.compile("x.onnx", batch="2"), "batch must be int or NoneType, got '2'"),
        (lambda: codl.compile("x.onnx", shapes=5), "shapes must be .*, got 5"),
        (lambda: codl.load(None), "path must be text or a path, got None"),
        (lambda: codl.results(), "at least one result file"),
    ],
)
def test_arguments_that_are_none_are_refused_with_their_value(
    call: Callable[[], Any], said: str
) -> None:
    with pytest.raises(CodlError, match=said):
        call()
