"""Host side of an agent: starts it, sends requests, and restarts a lost one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import inf
from time import monotonic, perf_counter
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from codl import errors
from codl.errors import CodlError, CodlWarning, DeviceError
from codl.files import VERSION as CODL
from codl.machine.threads import ProcessLock
from codl.targets.child import Child, TimedOutError
from codl.targets.connection import (
    AgentLostError,
    Blob,
    Connection,
    ConnectionCut,
    ConnectionEnded,
    FrameError,
)
from codl.targets.requests import Answer, EventHandler, Request
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

#: Command of an agent on this machine; it reads its clock before importing codl.
COMMAND = (
    sys.executable,
    "-c",
    "import time; begin = time.perf_counter(); "
    "from codl.targets.agent import main; raise SystemExit(main(begin))",
)
#: Seconds for an agent to start, which may read its modules from a slow disk.
START_S = 120.0
#: Remedy of an error: a sentence, or a function that returns one.
Fix: TypeAlias = str | Callable[[], str]
#: Remedy of a full disk.
NO_ROOM = (
    "Make room on the device: codl needs 10 MB there, 60 MB for a Python that it brings, and "
    "250 MB for packages."
)
FULL = {"No space left": NO_ROOM, "quota exceeded": NO_ROOM, "too large": NO_ROOM}


@dataclass
class _Running:
    child: Child
    connection: Connection[Response, RequestMessage]
    #: Whether the agent is starting or working on a request, and accepts no other.
    is_busy: bool = True
    #: First message of the agent, received after `start_s`; None before.
    hello: Hello | None = None
    start_s: float = 0.0


class AgentClient:
    """An agent behind a command that reads and writes frames; started at the first request.

    Every started agent first receives the requests of `prelude`, which restore the state of a lost
    one. `name` names the agent in errors. `build` is the required agent file, if any. `fixes` map
    parts of an error to remedies; an error containing one of `cuts` means a cut connection.
    """

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        *,
        name: str = "the agent",
        cores: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        prelude: Iterable[Request[Any]] = (),
        build: str = "",
        fixes: Mapping[str, Fix] = MappingProxyType({}),
        cuts: Sequence[str] = (),
    ) -> None:
        self._command, self._name, self._cores = tuple(command), name, tuple(cores)
        self.prelude, self._environment = [*prelude], environment
        self._build, self._fixes, self._cuts = build, fixes, tuple(cuts)
        #: Number of started agents. Handles are valid only within one generation.
        self.generation = 0
        self._running: _Running | None = None
        #: End of all requests, by `monotonic`.
        self._deadline = inf
        #: Held during a request; any thread may send one.
        self.lock = ProcessLock()

    def ask(self, request: Request[Answer], on_event: EventHandler | None = None) -> Answer:
        """Send a request and return its answer; `on_event` receives the events before it.

        A `FrameError` raised by `on_event` means an invalid event, and ends the agent. Raises
        `AgentLostError` if the agent does not answer, and the agent's own codl errors. Any other
        exception, such as of Ctrl-C, ends the agent.
        """
        with self.lock:
            running = self._ready()
            with self._working(running):
                return self._exchange(running, request, on_event)  # type: ignore[no-any-return]

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Limit all requests inside to `seconds` in total; then end the agent."""
        before = self._deadline
        self._deadline = min(before, monotonic() + seconds)
        try:
            yield
        finally:
            self._deadline = before

    def _ready(self) -> _Running:
        """The running agent; starts one and sends the prelude if needed."""
        if self._running is not None:
            return self._running
        begin = perf_counter()
        child = Child(self._command, cores=self._cores, environment=self._environment)
        connection: Connection[Response, RequestMessage] = Connection(
            child.output, child.input, Response
        )
        self.generation += 1
        self._running = running = _Running(child, connection)
        with self._working(running):
            self._limit(running, START_S)
            with self._connected(running):
                first, _ = connection.receive()
            if not isinstance(first, Hello) or first.version != VERSION:
                problem = f"expected an agent of version {VERSION}"
                raise self._lost(running, problem)
            if first.build != self._build:
                raise self._lost(
                    running,
                    f"it is of another codl ({first.codl}, build {first.build or 'none'}; this is "
                    f"{CODL}, build {self._build or 'none'})",
                )
            running.hello, running.start_s = first, perf_counter() - begin
            for request in self.prelude:
                running.is_busy = True
                self._exchange(running, request)
            running.is_busy = False
        return running

    @contextmanager
    def _working(self, running: _Running) -> Iterator[None]:
        """End an agent that has not answered, whose answer would be taken for the next one."""
        try:
            yield
        finally:
            if running.is_busy:
                self._forget(running)
                running.child.end()

    def _limit(self, running: _Running, seconds: float) -> None:
        running.child.limit(max(0.0, min(seconds, self._deadline - monotonic())))

    def _forget(self, running: _Running) -> None:
        running.is_busy = False
        if self._running is running:
            self._running = None

    def start_seconds(self) -> tuple[float, float]:
        """Seconds from starting the agent to its first message, and the part for imports."""
        running = self._ready()
        assert running.hello is not None
        return running.start_s, running.hello.ready - running.hello.begin

    @property
    def pid(self) -> int | None:
        """Process id of the agent on this machine; None if none runs."""
        return self._running.child.pid if self._running else None

    def refuse(self, problem: str) -> AgentLostError:
        """End the agent because of an invalid answer; returns the error to raise."""
        with self.lock:
            assert self._running is not None
            return self._lost(self._running, problem)

    def close(self) -> None:
        """End the agent and any request of another thread; the next request starts a new agent."""
        running = self._running
        if running is not None and running.is_busy:
            running.child.kill()
        with self.lock:
            running, self._running = self._running, None
            if running is not None:
                running.child.close()

    def _exchange(
        self, running: _Running, request: Request[Any], on_event: EventHandler | None = None
    ) -> Any:
        kind, limit_s = type(request).__name__, request.limit_s
        content, parts = encode(request)
        running.is_busy = True
        self._limit(running, limit_s)
        with self._connected(running):
            running.connection.send(RequestMessage(kind, content), parts)
        while True:
            self._limit(running, limit_s)
            with self._connected(running):
                message, blobs = running.connection.receive()
            running.is_busy = not isinstance(message, Failed | Answered)
            match message:
                case Failed():
                    raise self._failure(message)
                case Warned():
                    warnings.warn(message.text, CodlWarning, stacklevel=4)
                case Answered():
                    return self._decoded(running, request.answer, message.value, blobs)
                case Event() if on_event is not None:
                    hint = request.event if message.kind == "done" else None
                    value = self._decoded(running, hint, message.content, blobs)
                    try:
                        on_event(message.kind, message.index, value)
                    except FrameError as error:
                        raise self._lost(running, str(error)) from error
                case _:
                    raise self._lost(running, f"it sent {type(message).__name__} on {kind}")

    def _decoded(
        self, running: _Running, hint: Any, sent: msgspec.Raw, blobs: Sequence[Blob]
    ) -> Any:
        try:
            return decode(hint, sent, blobs)
        except CodlError as error:
            raise self._lost(running, str(error)) from error

    @contextmanager
    def _connected(self, running: _Running) -> Iterator[None]:
        """Turn errors of the connection into an `AgentLostError`."""
        try:
            yield
        except TimedOutError:
            raise self._hung(running) from None
        except (ConnectionEnded, ConnectionCut) as error:  # the agent's last line says why
            raise self._lost(running, "") from error
        except FrameError as error:
            raise self._lost(running, str(error)) from error

    def _hung(self, running: _Running) -> AgentLostError:
        is_over = monotonic() >= self._deadline
        self._forget(running)
        running.child.kill()
        running.child.close()
        when = "before the time for it was over" if is_over else "in time"
        problem = f"{_capital(self._name)} gave no answer {when} and was ended."
        return AgentLostError(problem, is_blameless=is_over, has_hung=not is_over)

    def _lost(self, running: _Running, reason: str) -> AgentLostError:
        """The error of an agent that ended by itself, or that is ended for `reason`."""
        self._forget(running)
        if reason:
            running.child.kill()
            running.child.close()
            return self._error(f"was ended: {reason}")
        # An agent that sent a message was reached, so its last line is not the client's.
        return self._error(running.child.ending(() if running.hello else self._fixes))

    def _error(self, problem: str) -> AgentLostError:
        is_cut = any(cut in problem for cut in self._cuts)
        problem = f"{_capital(self._name)} {problem}".rstrip(".")
        sentence = f"{problem}. {fix_of(problem, self._fixes)}".strip()
        return AgentLostError(sentence, is_blameless=is_cut)

    def _failure(self, answer: Failed) -> CodlError:
        """The agent's error; exceptions outside codl become a `DeviceError`."""
        kind = getattr(errors, answer.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, CodlError)):
            return DeviceError(f"{_capital(self._name)} failed: {answer.kind}: {answer.text}")
        error = kind.__new__(kind)
        error.args = (answer.text,)
        return error


def fix_of(problem: str, fixes: Mapping[str, Fix]) -> str:
    """The remedy of the first key that a problem contains; empty without one."""
    fix = next((fix for key, fix in {**FULL, **fixes}.items() if key in problem), "")
    return fix() if callable(fix) else fix


def ask_once(name: str, request: Request[Answer]) -> Answer:
    """The answer of an agent started for this request alone, which may crash it."""
    with closing(AgentClient(name=name)) as agent:
        return agent.ask(request)


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
