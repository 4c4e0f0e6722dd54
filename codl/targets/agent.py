"""The agent: answers requests from its standard input with a target in this process.

It executes no received code but kernels and nets. Libraries' output goes to standard error.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, CodlWarning, explained
from codl.files import VERSION as CODL
from codl.ir.constants import array_digest
from codl.ir.executable import Refusal
from codl.ir.executable_json import decode as decode_executable
from codl.registry import load_installed
from codl.runtime.loaded import RefusedError
from codl.targets import model_requests, requests
from codl.targets.base import Target
from codl.targets.child import ending_with, first_line, own_streams
from codl.targets.connection import Blob, Connection, ConnectionEnded, FrameError, Reader, Writer
from codl.targets.model_requests import Load, LoadedModel
from codl.targets.requests import Arrays, EventKind, Request
from codl.targets.wire import (
    VERSION,
    Answered,
    Event,
    Failed,
    Hello,
    RequestMessage,
    Response,
    Warned,
    decode,
    encode,
)

if TYPE_CHECKING:
    from codl.machine.placement import LocalSoc


def main(begin: float, build: str = "") -> int:
    """Serve until the input ends; returns the exit code.

    `begin` is the start of this process by `perf_counter`, `build` the agent file it runs from.
    """
    reader, writer = own_streams()
    with reader, writer, ending_with(reader.fileno()):
        return Agent(reader, writer, begin, build).serve()


class Agent:
    """Answers requests in turn, errors by `Failed`; invalid messages end the connection."""

    def __init__(self, reader: Reader, writer: Writer, begin: float, build: str = "") -> None:
        self._connection: Connection[RequestMessage, Response] = Connection(
            reader, writer, RequestMessage
        )
        self._begin, self._build = begin, build
        self._target: Target | None = None
        self._models: dict[int, Any] = {}
        self._handles = count(1)
        #: Seconds spent on requests, by request name.
        self._spent_s: dict[str, float] = defaultdict(float)

    def serve(self) -> int:
        """Serve until the host closes the connection; returns 0, or 1 after an invalid message."""
        self._connection.send(Hello(VERSION, CODL, self._begin, perf_counter(), self._build))
        try:
            with warnings.catch_warnings():
                warnings.showwarning = self._warn  # type: ignore[assignment]
                while True:
                    message, blobs = self._connection.receive()
                    start = perf_counter()
                    response, parts = self._response(message, blobs)
                    self._spent_s[message.kind] += perf_counter() - start
                    self._connection.send(response, parts)
        except ConnectionEnded:
            return 0
        except FrameError as error:
            print(error, file=sys.stderr)
            with suppress(FrameError):
                self._connection.send_last(Failed("FrameError", str(error)))
            return 1
        finally:
            for opened in (*self._models.values(), self._target):
                if opened is not None:
                    opened.close()

    def _response(
        self, message: RequestMessage, blobs: list[Blob]
    ) -> tuple[Response, Sequence[bytes | memoryview]]:
        try:
            with explained():
                request = decode(request_class(message.kind), message.content, blobs)
                value, parts = encode(self._answer(request))
                return Answered(value), parts
        except FrameError as error:
            raise self._connection.refuse(str(error)) from error
        except CodlError as error:
            return Failed(_kind(error), str(error)), ()
        except Exception as error:  # a defect here, or a library's error
            traceback.print_exc()
            return Failed(type(error).__name__, first_line(error)), ()

    def _answer(self, request: Request[Any]) -> object:
        match request:
            case requests.Begin(soc):
                if self._target is not None:
                    raise FrameError("Begin must be the first request.")
                self._target = self._local_target(soc)
                return None
            case requests.Facts("seconds"):
                return dict(self._spent_s)
            case Load():
                return self._load(request)
            case model_requests.Run(handle, inputs):
                return self._run(handle, inputs)
            case model_requests.Profile(handle, layers):
                return self._model(handle).profile(layers=layers)
            case model_requests.Binaries(handle):
                return self.target.binaries(self._model(handle))
            case model_requests.StartPeer(name, content, inputs, plan):
                peer = self.target.start_peer(name, content, inputs, plan)
                return model_requests.StartedPeer(self._keep(peer), peer.version, peer.busy_cores)
            case model_requests.PeerOutputs(handle):
                return self._model(handle).outputs()
            case model_requests.Close(handle):
                self._model(handle).close()
                del self._models[handle]
                return None
            case model_requests.BecomePeer(name, content, soc, cores, plan):
                from codl.targets.peers import PeerHost

                host = PeerHost(name, content, soc, cores, plan)
                return self._keep(host), host.version
            case model_requests.FeedPeer(handle, inputs):
                return self._model(handle).feed(inputs)
            case model_requests.RunPeer(handle, runs):
                return self._model(handle).run(runs)
        if type(request).__name__ == "Time":
            return self._time(request)
        return self.target.ask(request, self._emit)

    def _local_target(self, soc: LocalSoc | None) -> Target:
        from codl.targets.local import LocalTarget

        load_installed()
        return LocalTarget(soc)

    @property
    def target(self) -> Target:
        if self._target is None:
            self._target = self._local_target(None)
        return self._target

    def _load(self, request: Load) -> LoadedModel | tuple[Refusal, ...]:
        for digest, array in request.arrays.items():
            if array_digest(array) != digest:
                raise CodlError(f"An array was damaged on its way: its digest is not {digest}.")

        def array_of(digest: str) -> NDArray[Any]:
            if digest not in request.arrays:
                raise CodlError(f"The array {digest} of the executable was not sent.")
            return request.arrays[digest]

        executable = decode_executable(request.content, array_of)
        try:
            if request.on_cpu:
                model = self.target.load_on_cpu(executable)
            else:
                model = self.target.load(
                    executable,
                    tries=request.tries,
                    on_step=lambda step: self._emit("begin", step, None),
                )
        except RefusedError as error:
            return tuple(error.refusals)
        return LoadedModel(self._keep(model), model.footprint, model.limited)

    def _run(self, handle: int, inputs: Arrays) -> Arrays:
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

    def _time(self, request: Any) -> object:
        return self.target.time(
            {name: self._model(handle) for name, handle in request.handles.items()},
            request.effort,
            with_energy=request.with_energy,
            anchors=request.anchors,
            after_round=lambda: self._emit("round", 0, None),
        )

    def _keep(self, model: Any) -> int:
        handle = next(self._handles)
        self._models[handle] = model
        return handle

    def _model(self, handle: int) -> Any:
        if handle not in self._models:
            known = ", ".join(map(str, self._models)) or "none"
            raise CodlError(f"There is no model {handle} here; there are: {known}.")
        return self._models[handle]

    def _emit(self, kind: EventKind, index: int, value: Any) -> None:
        """Send an event before the answer."""
        text, blobs = encode(value)
        self._connection.send(Event(kind, index, text), blobs)

    def _warn(self, message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, CodlWarning):
            self._connection.send(Warned(str(message)))
        else:
            print(message, file=sys.stderr)


def request_class(kind: str) -> Any:
    """The class of a request by name; raises `FrameError` for an unknown name."""
    found = vars(requests).get(kind) or vars(model_requests).get(kind)
    for module in ("measuring", "kernel_requests") if found is None else ():  # loaded on demand
        found = found or vars(import_module(f"codl.targets.{module}")).get(kind)
    if not (isinstance(found, type) and issubclass(found, Request) and found is not Request):
        raise FrameError(f"Unknown request {kind!r}.")
    return found


def _kind(error: CodlError) -> str:
    """The nearest of codl's own error classes, which the host can raise too."""
    return next(c.__name__ for c in type(error).__mro__ if c.__module__ == CodlError.__module__)


if __name__ == "__main__":
    sys.exit(main(perf_counter()))
