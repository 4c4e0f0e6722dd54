"""An agent reads the conditions of the machine where it measures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.phone import make_phone
from support.simulated import SOC

from codl.machine.placement import LocalSoc, Placement
from codl.machine.system_files import SystemFiles
from codl.targets.local import LocalTarget
from codl.targets.remote import RemoteTarget

CORES = tuple(sorted(os.sched_getaffinity(0)))[:1]
PHONE = LocalSoc.of(SOC, Placement("none", cpu_cores=CORES))
#: An agent whose system is the tree of a test.
ON_PHONE = """
import sys
from functools import partial
from pathlib import Path
from codl.machine.system_files import SystemFiles
from codl.targets import local
files = SystemFiles(Path(sys.argv[1]))
local.LocalTarget = partial(local.LocalTarget, files=files)
from codl.targets.agent import main
raise SystemExit(main(0.0))
"""


@pytest.fixture
def files(tmp_path: Path) -> SystemFiles:
    return make_phone(tmp_path / "phone")


@pytest.fixture
def agent(files: SystemFiles) -> Iterator[RemoteTarget]:
    command = (sys.executable, "-c", ON_PHONE, str(files.root))
    with closing(RemoteTarget("phone", command, PHONE)) as target:
        yield target


def test_conditions_are_those_of_the_device(agent: RemoteTarget, files: SystemFiles) -> None:
    found = agent.conditions()
    assert found == LocalTarget(PHONE, files=files).conditions()
    assert found.temperature_c == pytest.approx(43.6)
    assert found.governors["gpu"] == "msm-adreno-tz"
