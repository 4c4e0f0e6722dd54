"""Commands in which a driver never returns: Ctrl-C ends them within seconds, and so do budgets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codl.machine.placement import LocalSoc
from codl.runtime.guard import END_S

PLUGIN = Path(__file__).parent.parent / "support" / "hanging_driver"
#: What a busy machine may take beside the guard's own time.
SLOW_S = 5.0
FIRST_S = 120.0


@contextmanager
def hanging(folder: Path, call: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that has come to the OpenCL call that never returns."""
    hung = folder / "hung"
    settings = {"CODL_PLUGINS": str(PLUGIN), "CODL_HANGS": call, "CODL_HUNG": str(hung)}
    process = subprocess.Popen(
        [sys.executable, "-c", "from codl.cli import main; main()", *words],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + FIRST_S
        while not hung.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert hung.exists(), process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("serial", "call", "code"),
    [
        ("local", "get_platforms held", -signal.SIGKILL),
        ("local", "Program.build free", -signal.SIGKILL),
        ("process", "get_platforms held", 128 + signal.SIGINT),
        ("process", "Program.build free", 128 + signal.SIGINT),
    ],
)
def test_ctrl_c_ends_a_command_whose_driver_hangs(
    serial: str, call: str, code: int, first_soc: LocalSoc, tmp_path: Path
) -> None:
    soc = str(first_soc.save(tmp_path / "soc.yaml"))
    words = ("bench", "ops", "--soc", soc, "--ops=fc in=1x8x2x2 oc=4", "--serial", serial)
    with hanging(tmp_path, call, *words) as process:
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert time.monotonic() - begin < END_S + SLOW_S
    assert process.returncode == code
    assert "Error: Interrupted." in said
    assert not hung_agents(process.pid)


@pytest.mark.parametrize(("serial", "code"), [("local", -signal.SIGKILL), ("process", 1)])
def test_a_collection_ends_soon_after_its_budget_where_the_driver_hangs(
    serial: str, code: int, first_soc: LocalSoc, tmp_path: Path
) -> None:
    soc = str(first_soc.save(tmp_path / "soc.yaml"))
    words = ("collect", "--soc", soc, "--serial", serial, "--budget", "4")
    call = "enqueue_nd_range_kernel free"
    with hanging(tmp_path, call, *words, "--datasets", str(tmp_path / "data")) as process:
        begin = time.monotonic()
        process.communicate(timeout=120)
        assert time.monotonic() - begin < 4 + 15 + 15 + SLOW_S
    assert process.returncode == code


def hung_agents(session: int) -> list[str]:
    """The processes of a session that are neither ended nor about to be taken note of."""
    listed = subprocess.run(
        ["ps", "-o", "stat=,args=", "-s", str(session)], capture_output=True, text=True
    ).stdout
    return [line for line in listed.splitlines() if not line.startswith("Z")]
