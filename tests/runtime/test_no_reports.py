"""No library that codl imports reports its use: no socket is opened, and no process started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.libraries import INSTALLED

import codl
from codl.ir.records.soc import Soc
from codl.jobs.doctor import LIBRARY_PACKAGES

ROOT = Path(codl.__file__).parent
#: Notes sockets and processes, but for git's, which codl asks for its commit.
WATCH = """
import sys
seen = []
def note(event, args):
    begins = event in ("os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec")
    is_program = event == "subprocess.Popen" and "git" not in str(args[0])
    if begins or is_program or event.startswith("socket."):
        seen.append(f"{event} {args!r:.200}")
sys.addaudithook(note)
"""
#: Compiles a model and evaluates it, all in one of the CPU's libraries.
RUN = """
import json, time, warnings
from unittest.mock import patch
import codl
from codl.errors import CodlWarning
from support.synthetic_predictors import SyntheticPredictors
soc, library = sys.argv[1:]
def times(target):
    others = [name for name in ("ort", "openvino") if name in target]
    return 1.0 if (others or ["ncnn"]) == [library] else 100.0
warnings.simplefilter("ignore", CodlWarning)
with patch("codl.predict.model_set.load", lambda *args: SyntheticPredictors(times=times)):
    codl.compile("op_chain", soc=soc, strategy="cpu", profile=False).close()
    run = codl.evaluate(
        ["op_chain"], soc=soc, strategies=["cpu"], seconds=0.05, profile=False
    )
time.sleep(0.3)  # for a thread that reports
print(json.dumps([[row.status for row in run.result.rows], seen, [*sys.modules]]))
"""


@pytest.mark.parametrize("library", INSTALLED)
def test_compile_and_eval_open_no_socket(library: str, first_soc: Soc, tmp_path: Path) -> None:
    paths = (ROOT.parent, ROOT.parent / "tests", os.environ.get("PYTHONPATH", ""))
    home = {"CODL_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WATCH + RUN, str(first_soc.save(tmp_path / "soc.yaml")), library],
        env={**os.environ, **home, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    statuses, seen, modules = json.loads(done.stdout)
    assert statuses == ["ok"]
    assert LIBRARY_PACKAGES[library] in modules
    assert seen == []
    assert not (tmp_path / "intel").exists()  # where OpenVINO keeps its user's number
