"""What an agent answers: of models and peers that it holds for the other side by handle, and of
checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir.constants import array_digest
from codl.ir.executable import Executable
from codl.ir.executable_json import decode
from codl.ir.plan import read_plan
from codl.runtime.connection import Blob
from codl.runtime.loaded import Loaded, RefusedError
from codl.runtime.program_cache import Binary, Offer
from codl.targets.arrays import from_wire, headed, one_each, to_wire
from codl.targets.local import LocalTarget
from codl.targets.measure_messages import (
    Checking,
    CheckKernels,
    ChecksEnded,
    Examine,
    Examined,
    Identified,
    Import,
    Imported,
    KernelChecked,
    MeasurePace,
    OfferedBinary,
    OpenDevice,
    Paced,
)
from codl.targets.message_base import Done, Reply
from codl.targets.model_messages import (
    BinariesRead,
    KernelsRefused,
    Lacking,
    Lacks,
    Load,
    ModelLoaded,
    PeerOutputs,
    PeerStarted,
    Profile,
    Profiled,
    Ran,
    ReadBinaries,
    ReadPeerOf,
    Run,
    StartPeer,
    Time,
    TimesTogether,
    Unload,
)

if TYPE_CHECKING:
    from codl.targets.local import LocalTarget


Send: TypeAlias = Callable[[Checking | KernelChecked], None]


def answer(
    request: Examine | Import | MeasurePace | CheckKernels, target: LocalTarget, send: Send
) -> Reply:
    """The reply to a request; events on the way to it go to `send`."""
    if isinstance(request, Examine):
        return Examined(target.examine())
    if isinstance(request, Import):
        return Imported(target.import_package(request.package))
    if isinstance(request, MeasurePace):
        return Paced(tuple(target.pace(request.seconds)))
    return _check_kernels(request, target, send)


def _check_kernels(request: CheckKernels, target: LocalTarget, send: Send) -> ChecksEnded:
    from codl.measure.check_variants import task_of  # needs the libraries of both processors

    tasks = [task_of(own.op, own.variant) for own in request.tasks]
    index = {task.key: at for at, task in enumerate(tasks)}
    run = target.check_kernels(
        tasks,
        keep=lambda done: send(KernelChecked(index[done.task.key], done.problem)),
        checking=lambda task: send(Checking(index[task.key])),
        budget_s=request.budget_s,
    )
    return ChecksEnded(run.left)


Blobs = Sequence[bytes | memoryview]
Answer = tuple[Reply, Blobs]


class ServedModels:
    """Loads, runs and times what it is sent, on a target in this process.

    Raises `CodlError` for a handle that is none, and for arrays that do not fit.
    """

    def __init__(self, target: LocalTarget) -> None:
        self._target = target
        #: What an executable came with, until it is loaded: what is refused is lowered again.
        self._arrays: dict[str, NDArray[Any]] = {}
        self._models: dict[int, Any] = {}
        self._handles = count(1)

    def lacks(self, request: Lacks) -> Answer:
        return Lacking(tuple(d for d in request.digests if d not in self._arrays)), ()

    def load(self, request: Load, blobs: Sequence[Blob], trying: Callable[[int], object]) -> Answer:
        """`trying` is told of every step before the driver is asked for its kernels."""
        executable, arrays = headed(blobs)
        for digest, array in from_wire(request.arrays, arrays).items():
            if array_digest(array) != digest:
                raise CodlError(f"An array was damaged on its way: its digest is not {digest}.")
            self._arrays[digest] = array
        try:
            model = self._loaded(decode(executable, self._array), request, trying)
        except RefusedError as error:
            return KernelsRefused(error.refusals), ()
        self._arrays.clear()  # the model has what it needs of them
        handle = next(self._handles)
        self._models[handle] = model
        return ModelLoaded(handle, model.footprint, model.limited), ()

    def _loaded(
        self, executable: Executable, request: Load, trying: Callable[[int], object]
    ) -> Loaded:
        if request.on_cpu:
            return self._target.load_on_cpu(executable)
        return self._target.load(executable, tries=request.tries, trying=trying)

    def run(self, request: Run, blobs: Sequence[Blob]) -> Answer:
        model, inputs = self._model(request.handle), from_wire(request.inputs, blobs)
        wanted = {name: (own.dtype, own.shape) for name, own in model.inputs.items()}
        given = {name: (own.dtype, own.shape) for name, own in inputs.items()}
        if given != wanted:
            raise CodlError(f"The inputs must be {wanted}, got {given}.")
        with model.lock:
            for name, value in inputs.items():
                np.copyto(model.inputs[name], value)
            model.run()
            records, parts = to_wire(model.outputs)
        return Ran(records), parts

    def profile(self, request: Profile) -> Answer:
        return Profiled(tuple(self._model(request.handle).profile())), ()

    def time(self, request: Time, advance: Callable[[], None]) -> Answer:
        from codl.kernels.tuning import Tuning

        times = self._target.time(
            {name: self._model(handle) for name, handle in request.handles.items()},
            request.effort,
            with_energy=request.with_energy,
            anchors=Tuning.of_choices(request.tuning) if request.with_anchors else None,
            after_round=advance,
        )
        return TimesTogether(times), ()

    def unload(self, request: Unload) -> Answer:
        self._model(request.handle).close()
        del self._models[request.handle]
        return Done(), ()

    def open(self, request: OpenDevice, blobs: Sequence[Blob]) -> Answer:
        pairs = one_each(request.offered, blobs, "programs")
        binaries = tuple(Binary(own.name, own.source, own.options, blob) for own, blob in pairs)
        offer = Offer(request.identity, binaries) if binaries else None
        return Identified(dict(self._target.open(offer))), ()

    def binaries(self, request: ReadBinaries) -> Answer:
        binaries = self._target.binaries(self._model(request.handle))
        listed = tuple(OfferedBinary(b.name, b.source, b.options) for b in binaries)
        return BinariesRead(listed), [b.blob for b in binaries]

    def start_peer(self, request: StartPeer, blobs: Sequence[Blob]) -> Answer:
        plan = None if request.plan is None else read_plan(request.plan, Path("plan"))
        model, arrays = headed(blobs)
        inputs = from_wire(request.inputs, arrays)
        peer = self._target.start_peer(request.name, model, inputs, plan)
        handle = next(self._handles)
        self._models[handle] = peer
        return PeerStarted(handle, peer.version, peer.observed_cores, peer.busy_cores), ()

    def read_peer(self, request: ReadPeerOf) -> Answer:
        records, blobs = to_wire(self._model(request.handle).outputs())
        return PeerOutputs(records), blobs

    def close(self) -> None:
        while self._models:
            self._models.popitem()[1].close()

    def _model(self, handle: int) -> Any:
        if handle not in self._models:
            known = ", ".join(map(str, self._models)) or "none"
            raise CodlError(f"There is no model {handle} here; there are: {known}.")
        return self._models[handle]

    def _array(self, digest: str) -> NDArray[Any]:
        if digest not in self._arrays:
            raise CodlError(f"The array {digest} of the executable was not sent.")
        return self._arrays[digest]
