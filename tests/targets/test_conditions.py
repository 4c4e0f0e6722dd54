"""An agent reads conditions where it measures, and puts back what it has set there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.phone import BIG, KGSL, LITTLE, contents, make_phone, put
from support.simulated import SOC

from codl.errors import CodlError
from codl.records.results import Conditions
from codl.runtime import cache, clock_settings
from codl.runtime.placement import LocalSoc, Placement
from codl.runtime.system_files import SystemFiles
from codl.targets.local import LocalTarget
from codl.targets.remote import RemoteTarget

CORES = tuple(sorted(os.sched_getaffinity(0)))[:1]
PHONE = LocalSoc.of(SOC, Placement("none", cpu_cores=CORES))
GOVERNORS = (f"{LITTLE}/scaling_governor", f"{BIG}/scaling_governor", f"{KGSL}/devfreq/governor")
#: An agent whose system is the tree of a test.
ON_PHONE = """
import sys
from functools import partial
from pathlib import Path
from codl.runtime import clock_settings
from codl.runtime.system_files import SystemFiles
from codl.targets import local
files = SystemFiles(Path(sys.argv[1]))
local.LocalTarget = partial(local.LocalTarget, files=files)
clock_settings.put_back_left = clock_settings.ClockSettings(files).put_back_left
from codl.targets.agent import main
raise SystemExit(main(0.0))
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SystemFiles:
    monkeypatch.setenv(cache.STATE_VARIABLE, str(tmp_path / "state"))
    return make_phone(tmp_path / "phone")


@pytest.fixture
def agent(files: SystemFiles) -> Iterator[RemoteTarget]:
    command = (sys.executable, "-c", ON_PHONE, str(files.root))
    with closing(RemoteTarget("phone", command, PHONE)) as target:
        yield target


def state(files: SystemFiles) -> list[str]:
    return [files.text(path) for path in GOVERNORS]


def test_conditions_are_those_of_the_device(agent: RemoteTarget, files: SystemFiles) -> None:
    found = agent.conditions()
    assert found == LocalTarget(PHONE, files=files).conditions()
    assert found.temperature_c == pytest.approx(43.6)
    assert found.governors["gpu"] == "msm-adreno-tz"


def test_a_silent_machine_answers_too(tmp_path: Path) -> None:
    command = (sys.executable, "-c", ON_PHONE, str(tmp_path / "nothing"))
    with closing(RemoteTarget("phone", command, PHONE)) as target:
        assert target.conditions() == Conditions()


def test_an_agent_puts_governors_back_when_it_is_closed(
    agent: RemoteTarget, files: SystemFiles
) -> None:
    before = contents(files.root)
    done = agent.set_governor("performance")
    assert list(done.changed) == list(GOVERNORS)
    assert state(files) == ["performance"] * 3
    assert agent.conditions().governors["policy4"] == "performance"
    agent.close()
    assert contents(files.root) == before


def test_an_unknown_governor_is_named(agent: RemoteTarget, files: SystemFiles) -> None:
    with pytest.raises(CodlError, match="no governor 'fast'"):
        agent.set_governor("fast")
    assert not clock_settings.is_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_agent_sets_them_again_and_puts_them_back(
    agent: RemoteTarget, files: SystemFiles, number: signal.Signals
) -> None:
    """What was there before the first is put back, not what a killed one had set."""
    before = contents(files.root)
    agent.set_governor("performance")
    assert agent.agent.pid is not None
    os.kill(agent.agent.pid, number)
    with pytest.raises(CodlError, match=r"crashed|ended"):
        agent.conditions()
    put(files.root, LITTLE, scaling_cur_freq=1_000_000)
    assert agent.conditions().governors["policy4"] == "performance"
    agent.close()
    assert {**contents(files.root), f"{LITTLE}/scaling_cur_freq": "1785600"} == before


def test_a_fresh_agent_puts_back_what_a_killed_one_left(
    agent: RemoteTarget, files: SystemFiles
) -> None:
    """Also where nobody asks it for conditions."""
    before = contents(files.root)
    agent.set_governor("performance")
    assert agent.agent.pid is not None
    os.kill(agent.agent.pid, signal.SIGKILL)
    with closing(agent.fresh()) as other:
        other.clocks_mhz()
        assert contents(files.root) == before


def test_this_process_puts_governors_back_too(files: SystemFiles) -> None:
    before = contents(files.root)
    with closing(LocalTarget(PHONE, files=files)) as target:
        target.set_governor("performance")
        assert state(files) == ["performance"] * 3
    assert contents(files.root) == before
