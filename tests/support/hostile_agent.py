"""An agent that says anything that its types allow: what the host asks, answered at random."""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

from codl.errors import CodlError
from codl.ir import parse
from codl.kernels.tuning import Tuning
from codl.measure.batch import MeasureBatch
from codl.measure.check_variants import task_of as check_task
from codl.measure.facts import FACTS
from codl.measure.timing import Effort, Rounds
from codl.measure.tuner import task_of as tune_task
from codl.provenance import VERSION as CODL
from codl.records import soc as socs
from codl.runtime.loaded import Footprint
from codl.runtime.placement import LocalSoc
from codl.runtime.probe import ProbedDevice, ProbeResult
from codl.targets import client, messages
from codl.targets.arrays import to_wire
from codl.targets.detect import detect
from codl.targets.find_facts import _checked, with_facts
from codl.targets.measure_messages import Probed
from codl.targets.message_base import VERSION, Advanced, Done, Hello, Warned
from codl.targets.messages import AnyReply
from codl.targets.model_messages import Lacking, ModelLoaded, PeerStarted, Ran
from codl.targets.remote import RemoteTarget
from support.device_doubles import BOARD
from support.executables import small_executable
from support.message_seeds import CONV
from support.random_messages import members, stream
from support.simulated import conv_tasks

EXECUTABLE = small_executable()
TASKS = tuple(conv_tasks(ops=2)[:3])
BATCH = MeasureBatch(TASKS, "run1", Rounds(), Tuning(), float("inf"), {}, {})
OP = parse(CONV)
#: An agent that was started so often for one call is started for ever.
MOST_AGENTS = 100


def ask_soc(target: RemoteTarget) -> None:
    """What becomes a SoC file can be read from there."""
    check_readable(detect(target, "there"))


def ask_facts(target: RemoteTarget) -> None:
    """What goes into a SoC file; a value that cannot be there must have been left out."""
    facts = [_checked(key, target.measure_facts("none", "gpu", [key])) for key in FACTS]
    check_readable(with_facts(BOARD, facts))


def check_readable(soc: LocalSoc) -> None:
    try:
        again = socs.from_dict(yaml.safe_load(soc.to_yaml()), Path("soc.yaml"))
    except CodlError as error:
        raise AssertionError(f"the SoC file cannot be read: {error}") from error
    assert again == soc.facts


#: By the names of the replies that an answer may hold.
ASKED: Mapping[str, Callable[[RemoteTarget], object]] = {
    "Probed": lambda target: target.probe(),
    "Described": ask_soc,
    "FactsMeasured": ask_facts,
    "CoresSeen": lambda target: target.observe_cores(),
    "Clocks": lambda target: target.clocks_mhz(),
    "ConditionsRead": lambda target: target.conditions(),
    "GovernorSet": lambda target: target.set_governor("performance"),
    "Building Timing MeasuredRow Measured": lambda target: target.measure(BATCH),
    "Searching Found Advanced TuneEnded": lambda target: target.tune(
        [tune_task(CONV, "gpu_direct")], Tuning(), keep=lambda result: None
    ),
    "Benched": lambda target: target.bench(OP, Tuning()),
    "FramesDrawn": lambda target: target.draw_frames(0.0),
    "PowerMeasured": lambda target: target.power(0.0),
    "Examined": lambda target: target.examine(),
    "Imported": lambda target: target.import_package("numpy"),
    "Paced": lambda target: target.pace(0.0),
    "Checking KernelChecked ChecksEnded": lambda target: target.check_kernels(
        [check_task(CONV, name) for name in ("cpu_gemm", "gpu_direct")]
    ),
    "Identified": lambda target: target.open(),
    "Lacking ModelLoaded KernelsRefused": lambda target: target.load(EXECUTABLE),
    "Ran": lambda target: target.load(EXECUTABLE).run(),
    "Profiled": lambda target: target.load(EXECUTABLE).profile(),
    "BinariesRead": lambda target: target.binaries(target.load(EXECUTABLE)),
    "TimesTogether": lambda target: target.time({"x": target.load(EXECUTABLE)}, Effort()),
    "PeerStarted": lambda target: target.start_peer("ort", b"", {}),
    "PeerOutputs": lambda target: target.start_peer("ort", b"", {}).outputs(),
    "Spent": lambda target: target.cold_start(),
}
_FACTS = {own.name: getattr(BOARD.gpu, own.name, "none") for own in fields(ProbedDevice)}
_TOLD = {"version": "OpenCL 3.0", "extensions": (), "svm": "none", "half": False}
DEVICE = ProbedDevice(**{**_FACTS, **_TOLD, "max_read_images": 0})
_RECORDS, _BLOBS = to_wire(
    {name: np.zeros(port.shape, np.float32) for name, port in EXECUTABLE.outputs.items()}
)
_LOADED = (
    (Lacking(()), ()),
    (ModelLoaded(1, Footprint(**{own.name: 0 for own in fields(Footprint)})), ()),
)
_RAN = (*_LOADED, (Ran(_RECORDS), tuple(map(bytes, _BLOBS))))
#: What is answered as it should be, so that the rest is asked too.
BEFORE: Mapping[str, Sequence[tuple[Any, Sequence[bytes]]]] = {
    "Described": [(Probed((ProbeResult("none", (DEVICE,)),)), ())],
    "PeerOutputs": [(PeerStarted(1, "1.0", (0,), 1.0), ())],
    "Ran": _LOADED,
    **dict.fromkeys(("Profiled", "BinariesRead", "TimesTogether"), _RAN),
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
    names = [list(ASKED)[at % len(ASKED)] for at in range(count)]
    answered = sum(_answers(dice, name) for name in names)
    return answered, count - answered


def _answers(dice: random.Random, name: str) -> bool:
    """Whether an agent that says anything gave an answer that was taken."""
    likely = [getattr(messages, own) for own in name.split()]
    kinds = [*likely * 8, Advanced, Warned, dice.choice(members(AnyReply))]
    greeting = [(Hello(VERSION, CODL, 0.0, 1.0), ()), (Done(), ()), *BEFORE.get(name, ())]
    agents = iter(range(MOST_AGENTS))

    def spawn(*arguments: Any, **options: Any) -> FakeChild:
        assert next(agents, None) is not None, f"{name}: agents are started for ever"
        return FakeChild(stream(dice, greeting, kinds, 6))

    target = RemoteTarget("hostile", ("agent",), BOARD)
    with patch.object(client, "Child", spawn), warnings.catch_warnings(), closing(target):
        warnings.simplefilter("ignore")
        try:
            ASKED[name](target)
        except CodlError:
            return False
    return True
