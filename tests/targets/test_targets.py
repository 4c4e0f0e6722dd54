"""Targets: the same answers here and from an agent; agents that are lost or end by themselves."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.frame_fuzz import frames_of, sent
from support.phone import make_phone
from support.simulated import SOC
from support.whole_way import QUICK

from codl.errors import CodlWarning, DeviceError, UnknownNameError
from codl.ir import parse
from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.machine.placement import LocalSoc, Placement, ProbeResult
from codl.measure.collector import Collection
from codl.measure.dataset import Dataset
from codl.measure.tasks import OpTask, Task, make_tasks
from codl.measure.tuner import tune_tasks
from codl.registry import rolled_back
from codl.targets.agent import Agent
from codl.targets.base import Target
from codl.targets.client import COMMAND, AgentClient
from codl.targets.connect import Transport, connect, register, transport_of
from codl.targets.connection import AgentLostError, Connection, FrameError
from codl.targets.kernel_runs import tune
from codl.targets.local import LocalTarget
from codl.targets.measuring import Arriving
from codl.targets.remote import RemoteTarget
from codl.targets.requests import Begin, Facts, Probe
from codl.targets.wire import Failed, Hello, RequestMessage, Response

OPS = [parse(f"conv2d in=1x16x9x9 oc=16 kernel=3x3 pad=1 {act}") for act in ("", "act=relu")]
#: An agent in which convolutions with an activation take the process down in one variant.
DYING = """
import os
from codl.measure.runner import Bench
prepare = Bench.prepare
def deadly(self, task):
    if "relu" in str(task) and getattr(task, "variant", "") == "gpu_direct":
        os.abort()
    return prepare(self, task)
Bench.prepare = deadly
from codl.targets.agent import main
main(0.0)
"""
#: The same while they are timed, when all tasks of a batch take turns.
DYING_LATER = """
import os
from codl.measure import runner
measure = runner.timing.measure
prepare = runner.Bench.prepare
ready = []
def noted(self, task):
    ready.append(task)
    return prepare(self, task)
def deadly(timed, rounds, is_disturbed, **options):
    if any("relu" in str(t) and getattr(t, "variant", "") == "gpu_direct" for t in ready):
        os.abort()
    ready.clear()
    measure(timed, rounds, is_disturbed, **options)
runner.Bench.prepare = noted
runner.timing.measure = deadly
from codl.targets.agent import main
main(0.0)
"""


def gpu_tasks(soc: Soc) -> list[Task]:
    tasks = make_tasks(OPS, soc, [1.0])
    return [task for task in tasks if isinstance(task, OpTask) and task.processor == "gpu"]


def fixed(results: Sequence[ProbeResult]) -> list[ProbeResult]:
    """Without the sizes of images: PoCL's grow with the memory that a virtual machine is given."""
    return [
        replace(one, devices=tuple(replace(d, max_image_width=0, max_image_height=0)
                                   for d in one.devices))
        for one in results
    ]  # fmt: skip


@pytest.mark.device
def test_both_say_the_same_of_the_machine() -> None:
    with closing(connect("local")) as here, closing(connect("process")) as there:
        assert there.describe() == here.describe()
        assert fixed(there.probe()) == fixed(here.probe())


def test_every_variant_is_benched(target: Target) -> None:
    rows, refused = target.bench(OPS[0], Tuning())
    assert {"cpu", "gpu"} == {row.processor for row in rows}
    assert all(row.latency.median > 0 for row in rows)
    assert all(one.reason for one in refused)


def test_choices_are_tuned(target: Target) -> None:
    tasks = tune_tasks([parse("fc in=1x32x5x5 oc=40")], target.soc, [1.0])[:1]
    kept: list[Any] = []
    steps: list[int] = []
    run = tune(
        target,
        tasks,
        Tuning(),
        keep=kept.append,
        progress=lambda done, total, left: steps.append(done),
    )
    assert [result.key for result in run.results] == [tasks[0].key]
    assert kept == list(run.results)
    assert kept[0].trials
    assert (steps, run.left) == ([1], 0)
    again = tune(target, tasks, Tuning.of(kept), keep=kept.append)
    assert [result.key for result in again.known] == [tasks[0].key]
    assert len(kept) == 1


@pytest.fixture
def process(first_soc: Soc) -> Iterator[RemoteTarget]:
    with closing(RemoteTarget("process", COMMAND, first_soc)) as target:
        yield target


@pytest.mark.parametrize("when", ["begin", "timing"])
def test_a_kill_in_the_middle_of_a_row_loses_none(
    process: RemoteTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Killed once, while the second task is built or while all take turns."""
    hear, killed = Arriving.on_event, []

    def kill(self: Any, kind: str, *values: Any) -> None:
        hear(self, kind, *values)
        if kind == when and len(self.built) > 1 and not killed:
            killed.append(process.agent.pid)
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(Arriving, "on_event", kill)
    dataset, tasks = Dataset.of("test", tmp_path), gpu_tasks(process.soc)
    done = Collection(process, dataset, tasks, rounds=QUICK).run()
    assert killed
    assert done.left == 0
    rows = [row for table in dataset.tables().values() for row in table.read()]
    assert len({(name, r.key) for name, t in dataset.tables().items() for r in t.read()}) == len(
        rows
    )
    assert not [row for row in rows if row.status == "failed"]
    assert done.lost == 1


@pytest.mark.parametrize("program", [DYING, DYING_LATER], ids=["built", "timed"])
def test_what_takes_an_agent_down_is_one_failed_row(
    first_soc: Soc, tmp_path: Path, program: str
) -> None:
    dataset, tasks = Dataset.of("test", tmp_path), gpu_tasks(first_soc)
    with closing(RemoteTarget("dying", [sys.executable, "-c", program], first_soc)) as target:
        done = Collection(target, dataset, tasks, rounds=replace(QUICK, span_s=30.0)).run()
    assert (done.left, done.failed) == (0, 1)
    rows = {row.op: row for row in dataset.table("conv2d_gpu_direct").read()}
    (failed,) = (row for row in rows.values() if row.status == "failed")
    assert parse(failed.op) == OPS[1]
    assert failed.reason.startswith("The agent of 'dying' crashed (signal 6)")


def test_an_agent_that_cannot_begin_says_so(first_soc: Soc, tmp_path: Path) -> None:
    silent = [sys.executable, "-c", "raise SystemExit('no such driver')"]
    with closing(RemoteTarget("ssh://nowhere", silent, first_soc)) as target:
        message = "The agent of 'ssh://nowhere' ended with code 1: no such driver"
        with pytest.raises(AgentLostError, match=message):
            target.describe()
        with pytest.raises(DeviceError, match=message):
            Collection(
                target, Dataset.of("test", tmp_path), gpu_tasks(first_soc), rounds=QUICK
            ).run()


def test_an_agent_that_hangs_is_ended_and_the_next_call_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = AgentClient()
    monkeypatch.setattr(Probe, "limit_s", 0.0)
    with pytest.raises(AgentLostError, match="gave no answer in time"):
        agent.ask(Probe())
    assert agent.pid is None
    agent.ask(Facts("machine"))
    agent.close()


def test_a_killed_agent_is_an_error_and_the_next_call_works() -> None:
    agent = AgentClient(name="the agent")
    before = agent.ask(Facts("machine"))
    pid = agent.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(AgentLostError, match=r"The agent crashed \(signal 9\)"):
        agent.ask(Facts("machine"))
    after = agent.ask(Facts("machine"))
    assert after == before
    assert agent.pid not in (None, pid)
    agent.close()


def test_prints_are_no_frames_and_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    loud = (
        "import os, sys, warnings\nfrom codl.errors import CodlWarning\n"
        "from codl.targets import agent, local\n"
        "ask = local.LocalTarget.ask\n"
        "def loudly(self, *request):\n"
        "    print('printed'); os.write(1, b'written\\n'); print('cried', file=sys.stderr)\n"
        "    warnings.warn('mind this', CodlWarning); assert sys.stdin.read() == ''\n"
        "    return ask(self, *request)\n"
        "local.LocalTarget.ask = loudly\nagent.main(0.0)"
    )
    agent = AgentClient([sys.executable, "-c", loud])
    with caplog.at_level("INFO", logger="codl.agent"):
        with pytest.warns(CodlWarning, match="mind this"):
            agent.ask(Facts("machine"))
        agent.close()
    assert {"printed", "written", "cried"} <= set(caplog.messages)


def test_an_agent_that_describes_imports_no_driver() -> None:
    script = (
        "import sys; from codl.targets.agent import main; main(0.0);"
        "loaded = {'ncnn', 'onnx', 'onnxruntime', 'pyopencl'} & sys.modules.keys();"
        "print(sorted(loaded), file=sys.stderr)"
    )
    data = b"".join(frames_of([sent(Facts("machine"))]))
    run = subprocess.run([sys.executable, "-c", script], input=data, capture_output=True)
    assert b"Answered" in run.stdout
    assert run.stderr == b"[]\n"


def served(data: bytes) -> tuple[int, list[Response]]:
    """What an agent answers to some bytes: its exit code, and its messages."""
    out = io.BytesIO()
    code = Agent(io.BytesIO(data), out, 0.0).serve()
    answers: Connection[Any, Any] = Connection(io.BytesIO(out.getvalue()), io.BytesIO(), Response)
    messages = []
    try:
        while True:
            messages.append(answers.receive()[0])
    except FrameError:
        return code, messages


@pytest.mark.parametrize("data", [b"POST /", b"CDL1" + bytes(3), b"CDL1" + bytes(12)])
def test_an_agent_ends_at_what_is_no_frame_and_says_why(data: bytes) -> None:
    code, (hello, failed) = served(data)
    assert code == 1
    assert isinstance(hello, Hello)
    assert isinstance(failed, Failed)
    assert failed.kind == "FrameError"


def test_requests_out_of_order_end_the_connection(first_soc: Soc) -> None:
    twice = frames_of([sent(Begin(first_soc))] * 2)
    code, messages = served(b"".join(twice))
    assert code == 1
    assert isinstance(messages[-1], Failed)
    assert "must be the first request" in messages[-1].text


def test_errors_arrive_as_they_were_raised() -> None:
    agent = AgentClient()
    with pytest.raises(UnknownNameError, match="Unknown OpenCL driver 'no-such-driver'"):
        agent.ask(Probe("no-such-driver"))
    agent.close()


def test_an_answer_that_was_not_asked_for_ends_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = AgentClient()
    monkeypatch.setattr(Facts, "answer", tuple[float, ...])
    with pytest.raises(AgentLostError, match="A value has another type than expected: Expected"):
        agent.ask(Facts("machine"))
    assert agent.pid is None


def test_unknown_requests_are_not_answered() -> None:
    for name in ("measure", "Target.close", "Agent", "serve", "Request", "os.system", ""):
        (wrong,) = frames_of([(RequestMessage(name, msgspec.Raw(b"{}")), [])])
        code, (_, failed) = served(wrong)
        assert code == 1
        assert isinstance(failed, Failed)
        assert f"Unknown request {name!r}" in failed.text


def test_a_transport_goes_before_phones_whose_serials_may_be_almost_anything() -> None:
    assert transport_of("stage:4").pattern == "ADB_SERIAL"
    with rolled_back(always=True):
        register(
            Transport(
                "stage:K",
                "a test's",
                lambda serial: serial == "stage:4",
                lambda serial, soc: LocalTarget(soc),
            )
        )
        assert transport_of("stage:4").pattern == "stage:K"
        assert transport_of("replay:s3a9:1").pattern == "replay:DIR"


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


def test_conditions_are_those_of_the_device(tmp_path: Path) -> None:
    files = make_phone(tmp_path)
    command = (sys.executable, "-c", ON_PHONE, str(tmp_path))
    with closing(RemoteTarget("phone", command, PHONE)) as agent:
        found = agent.conditions()
    assert found == LocalTarget(PHONE, files=files).conditions()
    assert found.temperature_c == pytest.approx(43.6)
    assert found.governors["gpu"] == "msm-adreno-tz"
