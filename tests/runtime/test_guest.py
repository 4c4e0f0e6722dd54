"""What codl leaves and does in a process: a guest's own state, threads, sockets and memory."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import platform
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import pytest
from support import command_line, guest
from support.libraries import INSTALLED
from support.plans import branching, branching_case, make_plan
from support.worker_tasks import resident_bytes

import codl
from codl.engine.engine import Engine
from codl.errors import DeviceError, UnsupportedError
from codl.ir import parse, to_text
from codl.ir.records.soc import Soc
from codl.jobs.doctor import LIBRARY_PACKAGES
from codl.machine import threads
from codl.machine.driver_search import find_driver
from codl.machine.placement import LocalSoc
from codl.plan.search import no_collection
from codl.targets.local import LocalTarget

ROOT = Path(__file__).parents[2]
CUTS = [(4, "H", 0.5), (3, "OC", 0.5), (20, "H", 1.0)]


@pytest.fixture
def arguments(tmp_path: Path, first_soc: LocalSoc) -> list[str]:
    """A model, a SoC and a plan that splits, as files."""
    network, _, _ = branching_case()
    model, soc, plan = tmp_path / "branching.onnx", tmp_path / "test.yaml", tmp_path / "plan.json"
    onnx.save(branching().build(), model)
    first_soc.save(soc)
    make_plan(network, first_soc, CUTS).save(plan)
    return [str(model), str(soc), str(plan)]


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("order", ["codl", "guest"])
def test_a_program_has_its_process_back(
    order: str, arguments: list[str], tmp_path: Path, first_soc: LocalSoc
) -> None:
    driver = find_driver(first_soc.placement.icd)
    (tmp_path / "mine.icd").write_text(driver.library + "\n")
    environment = {**os.environ, "OCL_ICD_VENDORS": str(tmp_path), "POCL_MAX_PTHREAD_COUNT": "3"}
    alone = [sys.executable, "-c", guest.CHILD, *driver.preload]
    platforms = subprocess.check_output(alone, env=environment, text=True).strip()
    assert int(platforms) > 0
    command = [sys.executable, guest.__file__, order, *arguments, *driver.preload]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["changed"] == {}
    assert said["platforms"] == platforms
    assert len(said["largest"]) == 5
    assert min(said["largest"]) > 0
    assert said["squares"] == [[0, 1, 4, 9, 16]] * (3 if order == "guest" else 1)


def _in_fork(engine: Engine, inputs: Mapping[str, np.ndarray], soc: LocalSoc, answers: Any) -> None:
    def anew() -> None:
        Engine(engine.network, engine.plan, LocalTarget(soc))

    for use in (lambda: engine(inputs), engine.run, engine.profile, anew):
        try:
            use()
        except DeviceError as error:
            answers.put(str(error))
        else:
            answers.put("it ran")


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_an_engine_after_a_fork_says_so(first_soc: LocalSoc, devices: Any, ratio: float) -> None:
    from support.devices import here

    network, x, expected = branching_case()
    plan = make_plan(network, first_soc, [(len(network.layers), "H", ratio)])
    forked = get_context("fork")
    with Engine(network, plan, here(first_soc)) as engine:
        answers = forked.SimpleQueue()
        child = forked.Process(target=_in_fork, args=(engine, {"image": x}, first_soc, answers))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        said = [answers.get() for _ in range(4)]
        assert all("is a fork" in text and "spawn" in text for text in said)
        for name, value in engine({"image": x}).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("devices")
def test_an_engine_is_neither_copied_nor_pickled(first_soc: LocalSoc) -> None:
    from support.devices import here

    network, _, _ = branching_case()
    with Engine(network, make_plan(network, first_soc, CUTS), here(first_soc)) as engine:
        for use in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(UnsupportedError, match="neither copied nor pickled"):
                use(engine)


def test_a_thread_is_back_where_it_was_after_an_error() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    seen = []

    def fail() -> None:
        with threads.pinned_to([core]):
            with threads.pinned_to([core]):
                seen.append(os.sched_getaffinity(0))
            seen.append(os.sched_getaffinity(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == [{core}, {core}]
    assert os.sched_getaffinity(0) == before


def test_a_loaded_plugin_is_told_to_children_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from codl.registry import VARIABLE, rolled_back
    from codl.targets.child import inherited

    monkeypatch.delenv(VARIABLE, raising=False)
    folder = tmp_path / "told_to_children"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    with rolled_back(always=True):
        codl.load_plugin(folder)
        assert VARIABLE not in os.environ
        assert inherited()[VARIABLE] == str(folder)
    assert VARIABLE not in inherited()


@pytest.mark.parametrize("enabled", [True, False])
def test_searches_at_once_leave_the_collector_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with no_collection():
            with no_collection():
                pass
            assert not gc.isenabled(), "another search is still at work"
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


OP = parse("conv2d in=1x64x160x160 oc=64 kernel=3x3 pad=1")


@pytest.mark.parametrize("name", ["cpu_gemm", "cpu_winograd", "cpu_direct"])
def test_works_that_are_gone_hold_no_memory(first_soc: LocalSoc, name: str) -> None:
    """Works one after the other, in a process of their own, do not add up in memory.

    Allocators keep some freed blocks, so that single steps rise and fall, and the first ones rise.
    A work that kept its output would add its bytes at every step: twice the limit in 8 steps.
    """
    times = 24
    with get_context("spawn").Pool(1) as pool:
        sizes = pool.apply(resident_bytes, (to_text(OP), name, first_soc, times))
    middle, last = sizes[8:16], sizes[16:]
    assert median(last) - median(middle) < OP.output.bytes * 4


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
    paths = (ROOT, ROOT / "tests", os.environ.get("PYTHONPATH", ""))
    home = {"CODL_HOME": str(tmp_path), "HOME": str(tmp_path)}
    home["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    soc = first_soc.save(tmp_path / "soc.yaml")
    done = command_line.python(WATCH + RUN, soc, library, env=home)
    statuses, seen, modules = json.loads(done.stdout)
    assert statuses == ["ok"]
    assert LIBRARY_PACKAGES[library] in modules
    assert seen == []
    assert not (tmp_path / "intel").exists()  # where OpenVINO keeps its user's number


CHECK = "import os; from codl.runtime import ncnn_net; print(os.environ.get('GOMP_SPINCOUNT'))"


def _loaded(**variables: str) -> subprocess.CompletedProcess[str]:
    """A process that loads ncnn, whose OpenMP tells what it read."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_"))}
    return subprocess.run(
        [sys.executable, "-c", CHECK],
        env={**kept, "OMP_DISPLAY_ENV": "VERBOSE", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere OpenMP's own waits are brief")
def test_openmp_reads_a_brief_wait() -> None:
    done = _loaded()
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr
    assert done.stdout.strip() == "None"


def test_what_the_user_says_stands() -> None:
    done = _loaded(GOMP_SPINCOUNT="77")
    assert "GOMP_SPINCOUNT = '77'" in done.stderr
    assert done.stdout.strip() == "77"
