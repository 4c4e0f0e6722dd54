"""Fixtures: every OpenCL device of this machine, and SoCs around them.

All drivers that survive a probe are loaded into the test process, so that one fixture runs a test
on every device found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.simulated import SOC, write_dataset

from codl import cache
from codl.ir.soc import Soc
from codl.measure.dataset import Dataset
from codl.runtime import drivers, threads
from codl.runtime.cl_import import cl_module
from codl.runtime.detect import describe
from codl.runtime.opencl import OpenClDevice, open_device
from codl.runtime.probe import ProbedDevice, probe_all

if TYPE_CHECKING:
    from codl.predict.training import TrainReport


def pytest_configure(config: pytest.Config) -> None:
    """Tests keep compiled kernels for their next run, away from the user's."""
    assert config.cache is not None
    os.environ[cache.VARIABLE] = str(config.cache.mkdir("codl"))


#: What this process may use, before anything is pinned.
CORES = os.sched_getaffinity(0)
FOUND: list[ProbedDevice] = [device for result in probe_all() for device in result.devices]


def _load_all() -> None:
    wanted = [drivers.find_driver(name) for name in dict.fromkeys(d.icd for d in FOUND)]
    soc = describe("test", FOUND[0])
    with drivers.loaded(wanted, cores=soc.gpu.cores), threads.pinned(soc.gpu.cores):
        cl_module().get_platforms()


if FOUND:
    _load_all()


@pytest.fixture(scope="session", params=FOUND, ids=lambda device: device.icd)
def soc(request: pytest.FixtureRequest) -> Soc:
    """A SoC around every OpenCL device of this machine in turn."""
    return describe("test", request.param)


@pytest.fixture(scope="session")
def first_soc() -> Soc:
    """A SoC around the device that codl would choose."""
    assert FOUND, f"no OpenCL device was found. {drivers.INSTALL_HINT}"
    return describe("test", FOUND[0])


@pytest.fixture(scope="session")
def gpu(soc: Soc) -> OpenClDevice:
    return open_device(soc)


def taken_for_gpu(soc: Soc) -> OpenClDevice:
    """A device as if it were a real GPU: vectors of four, and work-groups that share memory."""
    like = replace(soc.gpu, type="gpu", vector_width=4, compute_units=16, local_mem_bytes=48 << 10)
    return open_device(replace(soc, gpu=like))


@pytest.fixture(scope="session")
def as_gpu(soc: Soc) -> OpenClDevice:
    return taken_for_gpu(soc)


@pytest.fixture(scope="session")
def first_gpu(first_soc: Soc) -> OpenClDevice:
    return taken_for_gpu(first_soc)


@pytest.fixture(autouse=True)
def _same_affinity() -> Iterator[None]:
    """Engines pin the thread that builds them; tests, and other fixtures, must not inherit that."""
    os.sched_setaffinity(0, CORES)
    yield
    os.sched_setaffinity(0, CORES)


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of simulated latencies."""
    return write_dataset(tmp_path_factory.mktemp("lat_datasets") / SOC.name)


@pytest.fixture(scope="session")
def trained(
    simulated: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TrainReport]:
    """Every predictor of it, and what their training said."""
    from codl.predict.training import train  # after the drivers: it loads thread pools of its own

    folder = tmp_path_factory.mktemp("predictors")
    return folder, train(SOC, simulated, folder=folder, seeds=1)
