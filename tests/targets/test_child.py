"""An agent ends with its input even while it works; what is idle ends by itself."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.frame_fuzz import frames_of
from support.message_seeds import sent

from codl.targets.requests import Facts

#: An agent that hangs in its first request; it says when it is there.
HANGING = """
import os, signal, sys, threading
from codl.targets import child
from codl.targets import agent, local
child.GRACE_S = 0.05
ignores = sys.argv[1] == "ignores"
def hang(*request):
    if ignores:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(2, b"here")
    threading.Event().wait()
local.LocalTarget.ask = hang
agent.main(0.0)
"""
LONGEST_S = 60.0


@pytest.mark.parametrize(
    ("how", "ending"), [("listens", -signal.SIGTERM), ("ignores", -signal.SIGKILL)]
)
def test_a_process_at_work_ends_with_its_input(how: str, ending: int) -> None:
    command = [sys.executable, "-c", HANGING, how]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as child:  # type: ignore[call-overload]
        child.stdin.write(b"".join(frames_of([sent(Facts("machine"))])))
        child.stdin.flush()
        assert child.stderr.read(4) == b"here"
        child.stdin.close()
        assert child.wait(LONGEST_S) == ending


def test_an_idle_process_ends_by_itself() -> None:
    program = "from codl.targets.agent import main; raise SystemExit(main(0.0))"
    done = subprocess.run([sys.executable, "-c", program], input=b"", capture_output=True)
    assert done.returncode == 0
