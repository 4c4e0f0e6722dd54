"""The agent's models and peers, held by handle for the host, and what it measures and tunes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir.constants import array_digest
from codl.ir.executable import Refusal
from codl.ir.executable_json import decode
from codl.records.gpu_limits import LimitedGpu
from codl.runtime.loaded import Footprint, RefusedError
from codl.targets.wire import Arrays, question

if TYPE_CHECKING:
    from codl.ir.plan import Plan
    from codl.kernels.tuning import Tuning
    from codl.measure.batch import MeasureBatch, Measurement
    from codl.measure.budget import Progress
    from codl.measure.dataset import AnchorRow
    from codl.measure.timing import Effort, TimedTogether
    from codl.measure.tuner import TuneRun, TuneTask
    from codl.records.results import Conditions, TimeSpan
    from codl.records.tuned import Tuned
    from codl.runtime.program_cache import Binary
    from codl.targets.base import Target


@dataclass(frozen=True)
class LoadedModel:
    handle: int
    footprint: Footprint
    limited: LimitedGpu | None


@dataclass(frozen=True)
class StartedPeer:
    handle: int
    version: str
    observed_cores: tuple[int, ...]
    busy_cores: float


class Models:
    """Loads, runs and times what it is sent, on a target in this process.

    Raises `CodlError` for a handle that is none, and for arrays that do not fit.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        #: What an executable came with, until it is loaded: what is refused is lowered again.
        self._arrays: dict[str, NDArray[Any]] = {}
        self._models: dict[int, Any] = {}
        self._handles = count(1)

    @question()
    def lacks(self, digests: tuple[str, ...]) -> tuple[str, ...]:
        """Which of these arrays, by digest, were not sent yet."""
        return tuple(digest for digest in digests if digest not in self._arrays)

    @question(300.0)  # from one step to the next, each of which may be compiled
    def load(
        self, content: bytes, arrays: Arrays, tries: bool, on_cpu: bool,
        on_step: Callable[[int], object],
    ) -> LoadedModel | tuple[Refusal, ...]:  # fmt: skip
        """Load an executable, with the arrays that lacked by their digests; or what is refused.

        Without `tries` no kernel runs for a trial; one `on_cpu` needs no GPU, and none is opened.
        """
        for digest, array in arrays.items():
            if array_digest(array) != digest:
                raise CodlError(f"An array was damaged on its way: its digest is not {digest}.")
            self._arrays[digest] = array
        executable = decode(content, self._array)
        try:
            if on_cpu:
                model = self._target.load_on_cpu(executable)
            else:
                model = self._target.load(executable, tries=tries, on_step=on_step)
        except RefusedError as error:
            return error.refusals
        self._arrays.clear()  # the model has what it needs of them
        return LoadedModel(self._held(model), model.footprint, model.limited)

    @question(120.0)
    def run(self, handle: int, inputs: Arrays) -> Arrays:
        """The outputs of a model."""
        model = self._model(handle)
        wanted = {name: (array.dtype, array.shape) for name, array in model.inputs.items()}
        sent = {name: (array.dtype, array.shape) for name, array in inputs.items()}
        if sent != wanted:
            raise CodlError(f"The inputs must be {wanted}, got {sent}.")
        with model.lock:
            for name, value in inputs.items():
                np.copyto(model.inputs[name], value)
            model.run()
            return dict(model.outputs)

    @question(300.0)
    def profile(self, handle: int, layers: bool) -> tuple[TimeSpan, ...]:
        """What each processor does when in one inference on what was fed last."""
        return tuple(self._model(handle).profile(layers=layers))

    @question(300.0)
    def time(
        self,
        handles: dict[str, int],
        effort: Effort,
        with_energy: bool,
        anchors: Tuning | None,
        after_round: Callable[[], None],
    ) -> TimedTogether:
        """Time models and peers in turns, each on what it was fed last."""
        models = {name: self._model(handle) for name, handle in handles.items()}
        return self._target.time(
            models, effort, with_energy=with_energy, anchors=anchors, after_round=after_round
        )

    @question()
    def unload(self, handle: int) -> None:
        """Release a model or end a peer."""
        self._model(handle).close()
        del self._models[handle]

    @question()
    def binaries(self, handle: int) -> tuple[Binary, ...]:
        """The compiled programs of a model, and those that opening the device takes."""
        return tuple(self._target.binaries(self._model(handle)))

    @question(400.0)
    def start_peer(self, name: str, model: bytes, inputs: Arrays, plan: Plan | None) -> StartedPeer:
        """Start a peer for an ONNX model, and feed it."""
        peer = self._target.start_peer(name, model, inputs, plan)
        return StartedPeer(self._held(peer), peer.version, peer.observed_cores, peer.busy_cores)

    @question()
    def peer_outputs(self, handle: int) -> Arrays:
        """The outputs of a peer's last run."""
        return self._model(handle).outputs()  # type: ignore[no-any-return]

    @question(lambda asked: 300.0 + 4 * asked["batch"].rounds.span_s)
    def measure(
        self,
        batch: MeasureBatch,
        building: Callable[[int], None],
        timing: Callable[[], None],
        measured: Callable[[int, dict[str, Any], bool], None],
    ) -> tuple[tuple[AnchorRow, ...], Conditions]:
        """Measure a batch: `measured` gets each row with the index of its task, as CSV has it."""
        from codl.measure.batch import BatchListener

        def send(measurement: Measurement) -> None:
            row = msgspec.to_builtins(measurement.row)
            measured(batch.tasks.index(measurement.task), row, measurement.is_disturbed)

        result = self._target.measure(batch, BatchListener(building, timing, send))
        return result.anchors, result.conditions

    @question(600.0)
    def tune(
        self,
        tasks: tuple[TuneTask, ...],
        begun: tuple[Tuned, ...],
        budget_s: float | None,
        keep: Callable[[Tuned], object],
        searching: Callable[[TuneTask], object],
        progress: Progress,
    ) -> TuneRun:
        """Search the choices of kernels; `begun` are results of searches that were cut short."""
        from codl.kernels.tuning import Tuning
        from codl.records.tuned import Choices

        return self._target.tune(
            tasks,
            Tuning.of_choices(Choices(begun)),
            keep=keep,
            searching=searching,
            budget_s=budget_s,
            progress=progress,
        )

    def close(self) -> None:
        while self._models:
            self._models.popitem()[1].close()

    def _held(self, model: Any) -> int:
        handle = next(self._handles)
        self._models[handle] = model
        return handle

    def _model(self, handle: int) -> Any:
        if handle not in self._models:
            held = ", ".join(map(str, self._models)) or "none"
            raise CodlError(f"There is no model {handle} here; there are: {held}.")
        return self._models[handle]

    def _array(self, digest: str) -> NDArray[Any]:
        if digest not in self._arrays:
            raise CodlError(f"The array {digest} of the executable was not sent.")
        return self._arrays[digest]
