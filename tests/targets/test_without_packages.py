"""An agent on a device that lacks a package: what it does all the same, and what it says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.whole_way import QUICK

from codl.errors import CodlError
from codl.ir import parse
from codl.ir.executable import Executable
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.measure.op_runner import filler
from codl.measure.tasks import MeasureBatch, OpTask, make_tasks
from codl.runtime.drivers import BINDING
from codl.targets.client import COMMAND
from codl.targets.connect import connect
from codl.targets.remote import RemoteTarget

OP = parse("fc in=1x40x1x1 oc=5")
#: Python reads it when it starts, in the agent and in the processes that the agent starts.
BLOCKER = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Nowhere())
"""
Without = Callable[[str], RemoteTarget]


@pytest.fixture
def without(first_soc: Soc, tmp_path: Path) -> Iterator[Without]:
    """The target whose agents lack a package."""
    with ExitStack() as stack:

        def lacking(package: str) -> RemoteTarget:
            (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(package))
            paths = ":".join([str(tmp_path), *filter(None, sys.path)])
            command = ("env", f"PYTHONPATH={paths}", *COMMAND)
            return stack.enter_context(closing(RemoteTarget("bare", command, first_soc)))

        yield lacking


def outcomes(target: RemoteTarget, processor: str) -> set[tuple[str, str]]:
    """Status and reason of the rows of a small op on one processor."""
    tasks = make_tasks([OP], target.soc, [1.0])
    own = tuple(t for t in tasks if isinstance(t, OpTask) and t.processor == processor)
    done = target.measure(MeasureBatch(own, "run", QUICK, Tuning(), 60.0, {}, {}))
    return {(one.row.status, one.row.reason) for one in done.measurements}


def net_alone(soc: Soc, variant: str) -> Executable:
    """An executable of one net of the CPU."""
    return pieces.net_alone([OP], registry.find(OP, variant), [filler(OP)], soc)


def test_the_gpu_is_measured_without_ncnn(without: Without) -> None:
    target = without("ncnn")
    assert outcomes(target, "gpu") == {("ok", "")}
    # The CPU has other libraries.
    (reason,) = {reason for status, reason in outcomes(target, "cpu") if status == "failed"}
    assert reason.startswith("ncnn is not installed; it is needed for the CPU: ")


def test_both_are_measured_without_pyopencl(without: Without) -> None:
    target = without("pyopencl")
    assert outcomes(target, "gpu") == outcomes(target, "cpu") == {("ok", "")}


@pytest.mark.parametrize("package", ["ncnn", "pyopencl", "onnxruntime"])
def test_the_machine_is_described(package: str, without: Without) -> None:
    with closing(connect("local")) as here:
        assert without(package).describe() == here.describe()


def test_pyopencl_that_is_asked_for_is_missed(
    without: Without, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BINDING, "pyopencl")
    target = without("pyopencl")
    results = target.probe()
    assert results
    for result in results:
        assert "pyopencl is not installed; it is needed for the GPU" in result.error
    with pytest.raises(CodlError, match="pyopencl is not installed"):
        target.open()


def test_a_net_names_the_library_that_it_needs(without: Without) -> None:
    target = without("ncnn")
    with pytest.raises(CodlError, match="ncnn is not installed; it is needed for the CPU"):
        target.load(net_alone(target.soc, "cpu_gemv"))
