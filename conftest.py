"""Fixtures: every OpenCL device of this machine, SoCs around them, and a simulated dataset.

No driver is looked for until a collected test has a fixture that needs one. Such tests are marked
`device`; the others must open no driver, and `pytest -m "not device"` runs them alone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

# Before NumPy and ncnn are imported: tests share the cores, and threads of OpenBLAS and of OpenMP
# wait by spinning, where the one that they wait for may need that very core.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

from support.simulated import SOC, write_dataset

from codl.errors import DeviceError
from codl.machine import cache
from codl.measure.dataset import Dataset
from codl.registry import load_installed

if TYPE_CHECKING:
    from codl.machine.placement import LocalSoc, ProbedDevice
    from codl.predict.training import TrainReport
    from codl.runtime.opencl import OpenClDevice
    from codl.targets.base import Target

#: What this process may use, before anything is pinned.
CORES = os.sched_getaffinity(0)
#: Modules that open drivers, or are one, and what of them: `device` tests alone may use those.
DRIVERS = {"pyopencl": ("get_platforms", "Context"), "ncnn": ("Net",)}


def pytest_configure(config: pytest.Config) -> None:
    """Tests keep compiled kernels for their next run, away from the user's.

    Intel's compiler for CPUs makes vectors of four work-items, not of as many as it likes, in two
    thirds of the time; `CL_CONFIG_CPU_VECTORIZER_MODE=0` leaves it to it. Without any vectors, in
    a third, it computes wrong sums of work-groups.
    """
    assert config.cache is not None
    os.environ[cache.VARIABLE] = str(config.cache.mkdir("codl"))
    os.environ[cache.STATE_VARIABLE] = str(config.cache.mkdir("codl-state"))
    os.environ["CODL_PROGRESS"] = "always"  # as on a terminal, which tests have none of
    os.environ.setdefault("CL_CONFIG_CPU_VECTORIZER_MODE", "4")
    load_installed()
    # Kernels compile in an example, and fixtures serve all examples of a test.
    settings.register_profile(
        "codl",
        settings.get_profile(settings.get_current_profile_name()),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("codl")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background ignores Ctrl-C, and so would all commands that tests start.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `soc`, or for what is made of it, runs on every device."""
    own = {mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")}
    if "soc" not in metafunc.fixturenames or "soc" in own:
        return
    found: tuple[ProbedDevice, ...] = ()
    if "not device" not in metafunc.config.option.markexpr:
        from support import devices

        found = devices.probed()
    names = [device.icd for device in found]
    metafunc.parametrize("soc", found, ids=names, indirect=True, scope="session")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run says what it left out, and why."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or not reporter.stats:
        return
    skipped = reporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[-1]).removeprefix("Skipped: ") for report in skipped)
    why = "; ".join(f"{count} as {reason}" for reason, count in reasons.most_common())
    reporter.write_line(f"{len(skipped)} tests were left out{': ' if why else ''}{why}.")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "devices" in getattr(item, "fixturenames", ()):
            item.add_marker("device")
    # At a run's end no process is left alone with a long one.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Drivers are loaded before libraries with thread pools of their own, if they are at all."""
    if any(item.get_closest_marker("device") for item in session.items):
        from support import devices

        with suppress(DeviceError):  # each test says so for itself
            devices.opened()


@pytest.fixture(autouse=True)
def _no_driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is not marked `device` fails where it imports or uses a driver."""
    if request.node.get_closest_marker("device"):
        return

    def refuse(*args: object, **options: object) -> None:
        pytest.fail("This test opens a driver: let it ask for the fixture `devices`.")

    for name, users in DRIVERS.items():
        if name in sys.modules:
            for user in users:
                monkeypatch.setattr(sys.modules[name], user, refuse)
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture(autouse=True)
def _short_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """What plans take in tests need not be exact."""
    monkeypatch.setattr("codl.plan.strategies.device_loop.PROFILE_S", 0.02)
    monkeypatch.setattr("codl.plan.strategies.device_loop.COMPARE_S", 0.05)


@pytest.fixture(autouse=True)
def _same_affinity() -> Iterator[None]:
    """Nothing that a test runs leaves its thread on other cores."""
    os.sched_setaffinity(0, CORES)
    yield
    after = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    assert after == CORES, "the thread of the test was left on other cores"


@pytest.fixture(scope="session")
def devices() -> tuple[ProbedDevice, ...]:
    """Every device of this machine, their drivers loaded; the first is what codl would choose."""
    from support import devices

    try:
        return devices.opened()
    except DeviceError as error:
        if len(CORES) > 1:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def soc(request: pytest.FixtureRequest, devices: tuple[ProbedDevice, ...]) -> LocalSoc:
    """A SoC around every OpenCL device of this machine in turn."""
    from codl.machine.placement import describe

    return describe("test", request.param)


@pytest.fixture(scope="session")
def first_soc(devices: tuple[ProbedDevice, ...]) -> LocalSoc:
    """A SoC around the device that codl would choose."""
    from codl.machine.driver_search import INSTALL_HINT
    from codl.machine.placement import describe

    assert devices, f"no OpenCL device was found. {INSTALL_HINT}"
    return describe("test", devices[0])


@pytest.fixture(scope="session")
def gpu(soc: LocalSoc) -> OpenClDevice:
    from support import devices

    return devices.here(soc).device


@pytest.fixture(scope="session", params=["local", "process"])
def target(request: pytest.FixtureRequest, first_soc: LocalSoc) -> Iterator[Target]:
    """The device that codl would choose, in this process and behind an agent."""
    from codl.targets.connect import connect

    with closing(connect(request.param, first_soc)) as connected:
        yield connected


@pytest.fixture(scope="session")
def as_gpu(soc: LocalSoc) -> OpenClDevice:
    from support import devices

    return devices.taken_for_gpu(soc)


@pytest.fixture(scope="session")
def first_gpu(first_soc: LocalSoc) -> OpenClDevice:
    from support import devices

    return devices.taken_for_gpu(first_soc)


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
    return folder, train(SOC, simulated, folder=folder)
