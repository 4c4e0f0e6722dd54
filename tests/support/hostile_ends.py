"""Ends that say anything that their types allow.

A host asks a real agent, behind which is no device; an agent answers what the real host asks.
"""

from __future__ import annotations

import io
import os
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stderr
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

from codl.errors import CodlError, DeviceError
from codl.files import VERSION as CODL
from codl.ir import parse
from codl.ir.records import soc as socs
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.machine.placement import LocalSoc, ProbedDevice, ProbeResult
from codl.measure.check_variants import CheckTask
from codl.measure.tasks import MeasureBatch
from codl.measure.timing import Effort, Rounds
from codl.measure.tuner import TuneTask
from codl.runtime import probe
from codl.runtime.loaded import Footprint
from codl.targets import (
    agent,
    client,
    kernel_requests,
    local,
    measuring,
    model_requests,
    peers,
    requests,
)
from codl.targets.agent import Agent
from codl.targets.connection import Connection, ConnectionEnded
from codl.targets.detect import detect
from codl.targets.kernel_requests import Bench, Check, Tune
from codl.targets.kernel_runs import check_kernels, tune
from codl.targets.measuring import Measure, Time
from codl.targets.model_requests import (
    Binaries,
    Load,
    LoadedModel,
    PeerOutputs,
    Profile,
    Run,
    StartedPeer,
    StartPeer,
)
from codl.targets.remote import RemoteTarget
from codl.targets.requests import Begin, Facts, ImportPackage, Open, Probe, Request
from codl.targets.wire import VERSION, Failed, Hello, Response
from support.device_doubles import BOARD
from support.executables import small_executable
from support.frame_fuzz import CONV, answered
from support.random_messages import answers, asks, stream, tells, warns
from support.simulated import conv_tasks

#: All requests to an agent.
EVERY: Sequence[type[Request[Any]]] = tuple(
    kind
    for module in (requests, model_requests, measuring, kernel_requests)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Request) and kind is not Request
)


class Nothing:
    """Has everything that is asked of it, and can do none of it."""

    version = "1.0"

    def __init__(self, *arguments: object, **options: object) -> None:
        """Whatever it is made of."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*arguments: object, **options: object) -> None:
            raise DeviceError(f"There is no device to {name}.")

        return refuse

    def close(self) -> None:
        """There is nothing to close."""


@contextmanager
def _without_devices() -> Iterator[None]:
    """What would load a driver, or bind this process, is replaced."""
    nothing = Nothing()
    with ExitStack() as stack:
        for owner, name in ((local, "LocalTarget"), (peers, "PeerHost")):
            stack.enter_context(patch.object(owner, name, Nothing))
        stack.enter_context(patch.object(probe, "look", nothing.look))
        stack.enter_context(patch.object(agent, "load_installed", lambda **_: None))
        with open(os.devnull, "w") as silence:
            stack.enter_context(redirect_stderr(silence))
            yield


def fuzz_agent(count: int, seed: int = 1) -> Counter[str]:
    """Serve so many hosts: how often which answer was given, failures by the kind of their error.

    Raises where an agent ends without a code, or says what is no reply.
    """
    dice, found = random.Random(seed), Counter[str]()
    with _without_devices():
        for at in range(count):
            said = io.BytesIO()
            asked = stream(dice, (), [asks(EVERY[at % len(EVERY)]), asks(dice.choice(EVERY))], 4)
            assert Agent(io.BytesIO(asked), said, 0.0).serve() in (0, 1)
            found.update(_heard(said.getvalue()))
    return found


def _heard(said: bytes) -> Iterator[str]:
    """What an agent answered, whose first word is a greeting."""
    connection: Connection[Any, Any] = Connection(io.BytesIO(said), io.BytesIO(), Response)
    first, _ = connection.receive()
    assert isinstance(first, Hello)
    while True:
        try:
            answer, _ = connection.receive()
        except ConnectionEnded:
            return
        yield answer.kind if isinstance(answer, Failed) else type(answer).__name__


EXECUTABLE = small_executable()
TASKS = tuple(conv_tasks(ops=2)[:3])
BATCH = MeasureBatch(TASKS, "run1", Rounds(), Tuning(), float("inf"), {}, {})
OP = parse(CONV)
#: An agent that was started so often for one call is started for ever.
MOST_AGENTS = 100


def ask_soc(target: RemoteTarget) -> None:
    """What becomes a SoC file can be read from there."""
    check_readable(detect(target, "there"))


def check_readable(soc: LocalSoc) -> None:
    try:
        again = socs.from_dict(yaml.safe_load(yaml.safe_dump(soc.to_dict())), Path("soc.yaml"))
    except CodlError as error:
        raise AssertionError(f"the SoC file cannot be read: {error}") from error
    assert again == soc.facts


#: Calls of a target, and the requests that each sends.
ASKED: Sequence[tuple[Callable[[RemoteTarget], object], Sequence[Any]]] = (
    (lambda target: target.probe(), [Probe]),
    (ask_soc, [Facts("machine")]),
    (lambda target: target.conditions(), [Facts("conditions")]),
    (lambda target: target.measure(BATCH), [Measure]),
    (
        lambda target: tune(
            target,
            [TuneTask(OP, registry.find(OP, "gpu_direct"))],
            Tuning(),
            keep=lambda result: None,
        ),
        [Tune],
    ),
    (lambda target: target.bench(OP, Tuning()), [Bench]),
    (lambda target: target.examine(), [Facts("examination")]),
    (lambda target: target.import_package("numpy"), [ImportPackage]),
    (
        lambda target: check_kernels(
            target, [CheckTask(OP, registry.find(OP, name)) for name in ("cpu_gemm", "gpu_direct")]
        ),
        [Check],
    ),
    (lambda target: target.open(), [Open]),
    (lambda target: target.load(EXECUTABLE), [Load]),
    (lambda target: target.load(EXECUTABLE).run(), [Run]),
    (lambda target: target.load(EXECUTABLE).profile(), [Profile]),
    (lambda target: target.binaries(target.load(EXECUTABLE)), [Binaries]),
    (lambda target: target.time({"x": target.load(EXECUTABLE)}, Effort()), [Time]),
    (lambda target: target.start_peer("ort", b"", {}), [StartPeer]),
    (lambda target: target.start_peer("ort", b"", {}).outputs(), [PeerOutputs]),
    (lambda target: target.cold_start(), [Facts("seconds")]),
)
_FACTS = {own.name: getattr(BOARD.gpu, own.name, "none") for own in fields(ProbedDevice)}
_TOLD = {"version": "OpenCL 3.0", "extensions": (), "half": False}
DEVICE = ProbedDevice(**{**_FACTS, **_TOLD})
_OUTPUTS = {name: np.zeros(port.shape, np.float32) for name, port in EXECUTABLE.outputs.items()}
_LOADED = (
    answered(Load, LoadedModel(1, Footprint(**{own.name: 0 for own in fields(Footprint)}), None)),
)
_RAN = (*_LOADED, answered(Run, _OUTPUTS))
#: What is answered as it should be before a question, so that it is asked too.
BEFORE: Mapping[Any, Sequence[tuple[Any, Sequence[bytes]]]] = {
    Facts("machine"): [answered(Probe, (ProbeResult("none", (DEVICE,)),))],
    PeerOutputs: [answered(StartPeer, StartedPeer(1, "1.0", 1.0))],
    Run: _LOADED,
    **dict.fromkeys((Profile, Binaries, Time), _RAN),
}


class FakeChild:
    """A process that has said all that it says."""

    pid = 1

    def __init__(self, said: bytes) -> None:
        self.output, self.input = io.BytesIO(said), io.BytesIO()

    def limit(self, seconds: float) -> None:
        """It never takes any time."""

    def kill(self) -> None:
        """It is none."""

    def close(self) -> int:
        return 0

    def ending(self, keys: Iterable[str] = ()) -> str:
        return "ended with code 0"


def fuzz_host(count: int, seed: int = 1) -> tuple[int, int]:
    """Ask so many agents: how often there was an answer, and how often a `CodlError`.

    Whatever else is raised is raised.
    """
    dice = random.Random(seed)
    taken = sum(_answers(dice, *ASKED[at % len(ASKED)]) for at in range(count))
    return taken, count - taken


def _answers(
    dice: random.Random, ask: Callable[[RemoteTarget], object], sent: Sequence[Any]
) -> bool:
    """Whether an agent that says anything gave an answer that was taken."""
    has_events = (Load, Measure, Tune, Check, Time)
    likely = [*map(answers, sent), *(tells(own) for own in sent if own in has_events)]
    other = dice.choice([kind for kind in EVERY if kind is not Facts])
    kinds = [*likely * 8, warns, answers(other), tells(other)]
    greeting = [(Hello(VERSION, CODL, 0.0, 1.0), ()), answered(Begin, None)]
    agents = iter(range(MOST_AGENTS))

    def spawn(*arguments: Any, **options: Any) -> FakeChild:
        assert next(agents, None) is not None, f"{sent}: agents are started for ever"
        first = [*greeting, *BEFORE.get(sent[0], ())]
        return FakeChild(stream(dice, first, kinds, 6))

    target = RemoteTarget("hostile", ("agent",), BOARD)
    with patch.object(client, "Child", spawn), warnings.catch_warnings(), closing(target):
        warnings.simplefilter("ignore")
        try:
            ask(target)
        except CodlError:
            return False
    return True
