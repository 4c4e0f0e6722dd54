"""The `Target` interface: a device that describes itself, measures, and runs executables.

Most methods send one request of `codl.targets.requests` through `ask`, to this process
(`codl.targets.local`) or an agent (`codl.targets.remote`). Bundles import this module, so methods
import the modules for measuring.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from codl.errors import CodlError, CodlWarning, DeviceError, MissingPackageError, UnsupportedError
from codl.ir.environment import Environment
from codl.ir.records.results import Conditions
from codl.ir.records.soc import Soc
from codl.machine.examination import Examination
from codl.machine.placement import LocalSoc, require_local
from codl.runtime import guard
from codl.runtime.loaded import StepCallback, no_callback
from codl.targets import requests

if TYPE_CHECKING:
    from codl.ir import Op
    from codl.ir.executable import Executable
    from codl.ir.plan import Plan
    from codl.ir.records.tuned import BenchRow, Refused
    from codl.kernels.tuning import Tuning
    from codl.machine.placement import ProbeResult
    from codl.measure.tasks import BatchResult, MeasureBatch, Task
    from codl.measure.timing import Effort, TimedTogether
    from codl.measure.ui_frames import Drawn
    from codl.runtime.loaded import Binary, Loaded, Offer
    from codl.targets.requests import Answer, Arrays, EventHandler, Request


#: Largest budget in a request, in seconds: JSON has no infinity.
LONGEST_S = 1e9


@dataclass(frozen=True)
class ColdStart:
    """Milliseconds from starting a process on a target to the first output of a model.

    `process_ms` is the total: `import_ms` for Python's modules, `load_ms` for the driver and the
    executable, `first_run_ms` for the first inference, and the rest for the interpreter and the
    connection. Sending the executable is not counted.
    """

    process_ms: float
    import_ms: float
    load_ms: float
    first_run_ms: float

    @property
    def without_interpreter_ms(self) -> float:
        return self.import_ms + self.load_ms + self.first_run_ms


class Started(Protocol):
    """A running peer library, with its threads, its mean busy cores, and its outputs."""

    name: str
    version: str
    busy_cores: float

    @property
    def threads(self) -> int: ...
    def outputs(self) -> Arrays: ...
    def close(self) -> None: ...


class Target:
    """A device that measures and runs; `soc` is its pair of processors.

    A method that needs the SoC raises `CodlError` if the target was opened without one. Methods
    raise `DeviceError` for a failure of the device, and `UnsupportedError` for a method that this
    kind of target does not have. A lost process is restarted at the next call.
    """

    #: The name given when connecting.
    serial = "local"

    def __init__(self, soc: Soc | None = None) -> None:
        self._soc = soc

    @property
    def soc(self) -> LocalSoc:
        """The SoC with its placement; raises `CodlError` for a target opened without a SoC."""
        return require_local(self._facts)

    @property
    def _facts(self) -> Soc:
        if self._soc is None:
            raise CodlError(
                f"The target {self.serial!r} was opened without a SoC; name one by --soc."
            )
        return self._soc

    @property
    def replays(self) -> Mapping[str, Any] | None:
        """Description of the dataset that a replay answers from; None for a machine."""
        return None

    def can_measure(self, task: Task) -> bool:
        """Whether the target can measure a task; a replay can measure only its dataset's tasks."""
        return True

    def ask(self, request: Request[Answer], on_event: EventHandler | None = None) -> Answer:
        """Answer a request without handles; `on_event` receives its events."""
        raise self._unsupported(f"answer {type(request).__name__}")

    def _refuse(self, problem: str) -> CodlError:
        """The error for an invalid answer; ends the agent that sent it."""
        return CodlError(f"{self.serial!r}: {problem}.")

    def _unsupported(self, what: str) -> CodlError:
        return UnsupportedError(f"{self.serial!r} cannot {what}.")

    def fresh(self) -> Target:
        """The same target in its own process, which starts at the first call."""
        raise self._unsupported("start a process")

    def cold_start(self) -> ColdStart:
        """Times of a fresh process, after one `load` and one run."""
        raise self._unsupported("measure a cold start")

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Stop everything inside after `seconds`, even a hanging driver.

        In this process a time-out ends the command if it is guarded (see `guard.within`).
        """
        with guard.within(seconds):
            yield

    def close(self) -> None:
        """Release what is open."""

    # Facts.

    def describe(self) -> requests.TargetInfo:
        """Facts about the machine."""
        return self.ask(requests.Facts("machine"))  # type: ignore[no-any-return]

    def probe(self) -> Sequence[ProbeResult]:
        """Every OpenCL driver, each tried in its own process; a crash is the result's error."""
        return self.ask(requests.Probe())

    def conditions(self) -> Conditions:
        """Current temperature, clocks and battery."""
        return self.ask(requests.Facts("conditions"))  # type: ignore[no-any-return]

    def examine(self) -> Examination:
        """Installed software and settings of the machine; loads no driver, imports no package."""
        return self.ask(requests.Facts("examination"))  # type: ignore[no-any-return]

    def libraries(self) -> dict[str, str]:
        """Versions of the installed computing libraries, for which its measurements are valid."""
        return self.ask(requests.Facts("libraries"))

    def import_package(self, name: str) -> float:
        """Import a package that codl depends on; returns the seconds taken.

        Some packages abort the process instead. Raises `DeviceError` for a failed import, and
        `UnknownNameError` for a package outside codl's dependencies.
        """
        return self.ask(requests.ImportPackage(name))

    # Measuring.

    def measure(self, batch: MeasureBatch) -> BatchResult:
        """Measure a batch of tasks; the result names the suspects of a crashed or hung process."""
        from codl.measure.tasks import BatchResult
        from codl.targets.connection import AgentLostError, FrameError
        from codl.targets.measuring import Arriving, Measure, check_anchors

        arriving = Arriving(batch)
        sent = replace(batch, left_s=min(batch.left_s, LONGEST_S))
        try:
            anchors, conditions = self.ask(Measure(sent), arriving.on_event)
            try:
                check_anchors(anchors)
            except FrameError as error:
                raise self._refuse(str(error)) from error
        except AgentLostError as error:
            return BatchResult(
                arriving.measurements,
                (),
                lost=str(error),
                suspects=() if error.is_blameless else arriving.suspects,
                has_hung=error.has_hung,
            )
        return BatchResult(arriving.measurements, anchors, conditions=conditions)

    def bench(
        self, op: Op, tuning: Tuning, *, every: bool = False
    ) -> tuple[list[BenchRow], list[Refused]]:
        """Measure an op in every kernel variant; the second list has the variants not measured."""
        from codl.targets.kernel_requests import Bench

        return self.ask(Bench(op, tuning, every))

    # Running.

    def open(self, offer: Offer | None = None) -> Mapping[str, str]:
        """Open the OpenCL device, as other methods do on demand.

        Kernels with a binary for this driver in `offer` are not compiled. Returns the identity of
        device and driver that compiled programs depend on.
        """
        return self.ask(requests.Open(offer))

    def load(
        self, executable: Executable, *, tries: bool = True, on_step: StepCallback = no_callback
    ) -> Loaded:
        """Allocate, build and bind an executable; with `tries`, run each kernel once as a trial.

        Without `tries`, compiling a kernel emits a warning. `on_step` receives each step's number
        before its kernels are built. An executable without GPU work loads even if no device opens,
        except in a fork, where ncnn may hang. Raises `RefusedError` for kernels that the device
        refuses and other variants can replace.
        """
        raise self._unsupported("load")

    def load_on_cpu(self, executable: Executable) -> Loaded:
        """Load an executable without GPU work, without opening the device."""
        raise self._unsupported("load")

    def binaries(self, model: Any) -> Sequence[Binary]:
        """Compiled programs of a loaded model, and of opening the device."""
        raise self._unsupported("list binaries")

    def draw_frames(self, seconds: float) -> Drawn:
        """Draw an interface at 60 Hz on the GPU for `seconds`; see `codl.measure.ui_frames`.

        The first call calibrates the duration of a frame, so the device must be idle then.
        """
        from codl.measure.ui_frames import is_sound
        from codl.targets.kernel_requests import DrawFrames

        drawn = self.ask(DrawFrames(seconds))
        if not is_sound(drawn):
            raise self._refuse("it sent frames with times that are not possible")
        return drawn

    def start_peer(
        self, name: str, model: bytes, inputs: Arrays, plan: Plan | None = None
    ) -> Started:
        """Start another library on all cores with an ONNX model, in its own process.

        Returns after it received its inputs and ran once. `plan` is for peers that execute plans.
        """
        raise self._unsupported("start a peer")

    def time(
        self,
        models: Mapping[str, Any],
        effort: Effort,
        *,
        with_energy: bool = False,
        anchors: Tuning | None = None,
        after_round: Callable[[], None] = lambda: None,
    ) -> TimedTogether:
        """Time loaded models and started peers in turns, each on its present inputs.

        Energy is measured if sensors exist. With `anchors`, anchor ops run in that tuning to
        monitor the machine's speed.
        """
        raise self._unsupported("time")


# The environment of a target's measurements, as stored in results.


def identity_of(target: Target) -> Mapping[str, str]:
    """Identity of the device and its driver; empty if no device opens."""
    try:
        return target.open()
    except (DeviceError, MissingPackageError):
        return {}


def environment_of(target: Target, protocol: Mapping[str, Any]) -> Environment | None:
    """The present environment of a machine; None for a target that is no machine.

    The driver is empty if no device opens. Raises `DeviceError` if the machine does not answer.
    """
    if target.replays is not None:
        return None
    placement, device = require_local(target.soc).placement, identity_of(target)
    seen = target.examine()  # after opening the device, to include the OpenCL binding
    now = target.conditions()
    if seen.quota:
        warnings.warn(seen.quota, CodlWarning, stacklevel=2)
    environment = Environment(
        machine=target.describe().cpu.name,
        system=f"{seen.system} {seen.machine}",
        platform=device.get("platform", ""),
        device=device.get("device", ""),
        driver=device.get("driver", ""),
        cpu_cores=placement.cpu_cores,
        gpu_cores=placement.gpu_cores,
        threads=placement.threads,
        clocks=_settings(seen, now),
        libraries=seen.libraries,
        protocol=dict(protocol),
    )
    return under(environment, now)


def under(environment: Environment, conditions: Conditions) -> Environment:
    """The environment with the clocks of `conditions`."""
    clocks = {"cpu": conditions.cpu_mhz, "gpu": conditions.gpu_mhz}
    return replace(environment, clocks_mhz={k: mhz for k, mhz in clocks.items() if mhz is not None})


def _settings(seen: Examination, now: Conditions) -> dict[str, str]:
    """Governors of each cluster of cores, and of the GPU."""
    settings = {}
    for governor in seen.governors:
        limit = f", at most {governor.allowed_mhz:.0f} MHz" if governor.allowed_mhz else ""
        settings[f"cores {', '.join(map(str, governor.cores))}"] = f"{governor.name}{limit}"
    if "gpu" in now.governors:
        settings["gpu"] = now.governors["gpu"]
    return settings
