"""The host's end of an agent: starts it, asks it, and starts it again after it was lost."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from time import monotonic, perf_counter
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import msgspec

from codl import errors
from codl.errors import CodlError, CodlWarning, DeviceError
from codl.provenance import VERSION as CODL
from codl.runtime.child import Child, TimedOutError
from codl.runtime.connection import Blob, Connection, ConnectionCut, ConnectionEnded, FrameError
from codl.runtime.threads import ProcessLock
from codl.targets.wire import (
    VERSION,
    Answered,
    Asked,
    Event,
    Failed,
    Form,
    Hello,
    Said,
    Warned,
    decode,
    encode,
    question_of,
)

#: An agent on this machine. Its clock is read before anything of codl is imported.
COMMAND = (
    sys.executable,
    "-c",
    "import time; begin = time.perf_counter(); "
    "from codl.targets.agent import main; raise SystemExit(main(begin))",
)
#: Python's modules of an agent are read from a disk that may be slow.
START_S = 120.0
#: What to do: a sentence, or what looks around and says one.
Fix: TypeAlias = str | Callable[[], str]
#: What is said of a disk that is full.
NO_ROOM = (
    "Make room on the device: codl needs 10 MB there, 60 MB for a Python that it brings, and "
    "250 MB for packages."
)
FULL = {"No space left": NO_ROOM, "quota exceeded": NO_ROOM, "too large": NO_ROOM}
P = ParamSpec("P")
R = TypeVar("R")


class AgentLostError(DeviceError):
    """An agent crashed, was killed, hung, or said what cannot be understood; it has ended.

    `is_blameless` where that says nothing of what it was doing: the way to it was cut, or the time
    was over within which it was asked; `has_hung` where it was ended because it gave no answer.
    """

    def __init__(self, message: str, *, is_blameless: bool = False, has_hung: bool = False) -> None:
        super().__init__(message)
        self.is_blameless, self.has_hung = is_blameless, has_hung


@dataclass
class _Running:
    child: Child
    connection: Connection[Said, Asked]
    #: Whether it starts, or has not answered a question: nothing else can be asked of it then.
    is_busy: bool = True
    #: None before the agent has said that it is there, which took so long.
    hello: Hello | None = None
    start_s: float = 0.0


class AgentClient:
    """An agent behind a command that speaks frames; started at the first question.

    What `prelude` has, methods and their arguments, is asked of every agent that is started before
    anything else: the state that one that was lost took with it. `name` is what errors call it.
    `build` is that of the file which it must come from, if it comes from one; `fixes` say what to
    do where its last words have a key, and one of `cuts` in them means that the way to it was cut.
    """

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        *,
        name: str = "the agent",
        cores: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        prelude: Mapping[Callable[..., Any], Sequence[Any]] = MappingProxyType({}),
        build: str = "",
        fixes: Mapping[str, Fix] = MappingProxyType({}),
        cuts: Sequence[str] = (),
    ) -> None:
        self._command, self._name, self._cores = tuple(command), name, tuple(cores)
        self.prelude, self._environment = dict(prelude), environment
        self._build, self._fixes, self._cuts = build, fixes, tuple(cuts)
        #: How many agents were started; what one knew, the next one does not.
        self.generation = 0
        self._running: _Running | None = None
        #: When whatever it is asked ends, by `monotonic`.
        self._deadline = inf
        #: Held while a question is under way; any thread may ask.
        self.lock = ProcessLock()

    def ask(
        self, method: Callable[Concatenate[Any, P], R], *arguments: P.args, **named: P.kwargs
    ) -> R:
        """What a method that is a question gives over there.

        Arguments that are called are called here; one raises `FrameError` for what cannot be, which
        ends the agent. Raises `AgentLostError` where it does not answer, and codl's own errors as
        the agent raised them. Whatever else ends the question, such as Ctrl-C, ends the agent.
        """
        with self.lock:
            running = self._ready()
            with self._asking(running):
                return self._exchange(running, method, arguments, named)  # type: ignore[no-any-return]

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """What is asked inside is ended, with the agent, after `seconds` in all."""
        before = self._deadline
        self._deadline = min(before, monotonic() + seconds)
        try:
            yield
        finally:
            self._deadline = before

    def _ready(self) -> _Running:
        """The running agent, greeted and made what the one before was."""
        if self._running is not None:
            return self._running
        begin = perf_counter()
        child = Child(self._command, cores=self._cores, environment=self._environment)
        connection: Connection[Said, Asked] = Connection(child.output, child.input, Said)
        self.generation += 1
        self._running = running = _Running(child, connection)
        with self._asking(running):
            self._limit(running, START_S)
            first, _ = self._receive(running)
            if not isinstance(first, Hello) or first.version != VERSION:
                problem = f"expected an agent of version {VERSION}, which says so first"
                raise self._lost(running, problem)
            if first.build != self._build:
                raise self._lost(
                    running,
                    f"it is of another codl ({first.codl}, build {first.build or 'none'}; this is "
                    f"{CODL}, build {self._build or 'none'})",
                )
            running.hello, running.start_s = first, perf_counter() - begin
            for method, arguments in self.prelude.items():
                running.is_busy = True
                self._exchange(running, method, arguments, {})
            running.is_busy = False
        return running

    @contextmanager
    def _asking(self, running: _Running) -> Iterator[None]:
        """End an agent whose answer nobody waits for: it would be taken for the next one."""
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
        """From starting the agent to hearing of it, and what it said that its modules took."""
        running = self._ready()
        assert running.hello is not None
        return running.start_s, running.hello.ready - running.hello.begin

    @property
    def pid(self) -> int | None:
        """The process of the agent on this machine; None where none runs."""
        return self._running.child.pid if self._running else None

    def refuse(self, problem: str) -> AgentLostError:
        """End the agent because of an answer that cannot be; the error to raise."""
        with self.lock:
            assert self._running is not None
            return self._lost(self._running, problem)

    def close(self) -> None:
        """End the agent; the next question starts another.

        A question that another thread waits for ends, too.
        """
        running = self._running
        if running is not None and running.is_busy:
            running.child.kill()
        with self.lock:
            running, self._running = self._running, None
            if running is not None:
                running.child.close()

    def _exchange(
        self,
        running: _Running,
        method: Callable[..., Any],
        arguments: Sequence[Any],
        named: Mapping[str, Any],
    ) -> Any:
        question = question_of(method)
        sent, called = question.bind(arguments, named)
        limit_s = question.limit_s(sent)
        text, parts = encode(question.arguments, sent)
        running.is_busy = True
        self._post(running, Asked(question.name, text), parts, limit_s)
        while True:
            self._limit(running, limit_s)
            said, blobs = self._receive(running)
            running.is_busy = not isinstance(said, Failed | Answered)
            if isinstance(said, Failed):
                raise self._failure(said)
            if isinstance(said, Warned):
                warnings.warn(said.text, CodlWarning, stacklevel=4)
                continue
            if isinstance(said, Answered):
                return self._decoded(running, question.answer, said.value, blobs)
            if not isinstance(said, Event) or said.name not in called:
                shown = said.name if isinstance(said, Event) else type(said).__name__
                raise self._lost(running, f"it said {shown!r} where {question.name} was asked")
            values = self._decoded(running, question.events[said.name], said.values, blobs)
            try:
                called[said.name](*values)
            except FrameError as error:
                raise self._lost(running, str(error)) from error

    def _decoded(
        self, running: _Running, form: Form, sent: msgspec.Raw, blobs: Sequence[Blob]
    ) -> Any:
        try:
            return decode(form, sent, blobs)
        except CodlError as error:
            raise self._lost(running, str(error)) from error

    def _post(
        self,
        running: _Running,
        asked: Asked,
        blobs: Sequence[bytes | memoryview],
        limit_s: float,
    ) -> None:
        self._limit(running, limit_s)
        try:
            running.connection.send(asked, blobs)
        except TimedOutError:
            raise self._hung(running) from None
        except FrameError as error:
            if isinstance(error, ConnectionEnded):
                raise self._lost(running, _last_words(running)) from error
            raise self._lost(running, str(error)) from error

    def _receive(self, running: _Running) -> tuple[Said, list[Blob]]:
        try:
            return running.connection.receive()
        except TimedOutError:
            raise self._hung(running) from None
        except (ConnectionEnded, ConnectionCut) as error:
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
        """The error of an agent that ended, or must, for a reason or by itself."""
        self._forget(running)
        if reason:
            running.child.kill()
            running.child.close()
            return self._error(f"was ended: {reason}")
        # One that has spoken was reached: what its libraries wrote is no word of the client.
        return self._error(running.child.ending(() if running.hello else self._fixes))

    def _error(self, problem: str) -> AgentLostError:
        is_cut = any(cut in problem for cut in self._cuts)
        sentence = explained(f"{_capital(self._name)} {problem}", self._fixes)
        return AgentLostError(sentence, is_blameless=is_cut)

    def _failure(self, answer: Failed) -> CodlError:
        """The error as the agent raised it; another exception becomes a `DeviceError`."""
        kind = getattr(errors, answer.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, CodlError)):
            return DeviceError(f"{_capital(self._name)} failed: {answer.kind}: {answer.text}")
        error = kind.__new__(kind)
        error.args = (answer.text,)
        return error


def explained(problem: str, fixes: Mapping[str, Fix]) -> str:
    """A sentence about a problem, and what can be done about it, where that is known."""
    return f"{problem.rstrip('.')}. {fix_of(problem, fixes)}".strip()


def fix_of(problem: str, fixes: Mapping[str, Fix]) -> str:
    """The fix of the first key that a problem contains; empty where it has none."""
    fix = next((fix for key, fix in {**FULL, **fixes}.items() if key in problem), "")
    return fix() if callable(fix) else fix


def _last_words(running: _Running) -> str:
    """Why an agent ended, where it said so before it closed the connection."""
    try:
        last = running.connection.last()
    except TimedOutError:
        return ""
    return last.text if isinstance(last, Failed) else ""


def ask_apart(
    name: str, method: Callable[Concatenate[Any, P], R], *arguments: P.args, **named: P.kwargs
) -> R:
    """What an agent gives that is started for this question alone, as it may take it down."""
    agent = AgentClient(name=name)
    try:
        return agent.ask(method, *arguments, **named)
    finally:
        agent.close()


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
