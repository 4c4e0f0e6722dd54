"""The host's end of an agent: starts it, asks it, and starts it again after it was lost."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
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
    Question,
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

    `is_cut` where the way to it was cut, which is nothing that it did; `has_hung` where it was
    ended because it gave no answer.
    """

    def __init__(self, message: str, *, is_cut: bool = False, has_hung: bool = False) -> None:
        super().__init__(message)
        self.is_cut, self.has_hung = is_cut, has_hung


@dataclass
class _Running:
    child: Child
    connection: Connection[Said, Asked]
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
        #: Held while a question is under way; any thread may ask.
        self.lock = ProcessLock()

    def ask(
        self, method: Callable[Concatenate[Any, P], R], *arguments: P.args, **named: P.kwargs
    ) -> R:
        """What a method that is a question gives over there.

        Arguments that are called are called here; one raises `FrameError` for what cannot be, which
        ends the agent. Raises `AgentLostError` where it does not answer, and codl's own errors as
        the agent raised them.
        """
        with self.lock:
            return self._exchange(self._ready(), method, arguments, named)  # type: ignore[no-any-return]

    def _ready(self) -> _Running:
        """The running agent, greeted and made what the one before was."""
        if self._running is not None:
            return self._running
        begin = perf_counter()
        child = Child(self._command, cores=self._cores, environment=self._environment)
        child.limit(START_S)
        connection: Connection[Said, Asked] = Connection(child.output, child.input, Said)
        self.generation += 1
        self._running = running = _Running(child, connection)
        first, _ = self._receive(running)
        if not isinstance(first, Hello) or first.version != VERSION:
            raise self._lost(f"expected an agent of version {VERSION}, which says so first")
        if first.build != self._build:
            raise self._lost(
                f"it is of another codl ({first.codl}, build {first.build or 'none'}; this is "
                f"{CODL}, build {self._build or 'none'})"
            )
        running.hello, running.start_s = first, perf_counter() - begin
        for method, arguments in self.prelude.items():
            self._exchange(running, method, arguments, {})
        return running

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
            return self._lost(problem)

    def close(self) -> None:
        """End the agent; the next question starts another."""
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
        self._post(running, question, sent, limit_s)
        while True:
            running.child.limit(limit_s)
            said, blobs = self._receive(running)
            if isinstance(said, Failed):
                raise self._failure(said)
            if isinstance(said, Warned):
                warnings.warn(said.text, CodlWarning, stacklevel=4)
                continue
            if isinstance(said, Answered):
                return self._decoded(question.answer, said.value, blobs)
            if not isinstance(said, Event) or said.name not in called:
                shown = said.name if isinstance(said, Event) else type(said).__name__
                raise self._lost(f"it said {shown!r} where {question.name} was asked")
            values = self._decoded(question.events[said.name], said.values, blobs)
            try:
                called[said.name](*values)
            except FrameError as error:
                raise self._lost(str(error)) from error

    def _decoded(self, form: Form, sent: msgspec.Raw, blobs: Sequence[Blob]) -> Any:
        try:
            return decode(form, sent, blobs)
        except CodlError as error:
            raise self._lost(str(error)) from error

    def _post(
        self, running: _Running, question: Question, sent: Mapping[str, Any], limit_s: float
    ) -> None:
        running.child.limit(limit_s)
        text, blobs = encode(question.arguments, sent)
        try:
            running.connection.send(Asked(question.name, text), blobs)
        except TimedOutError:
            raise self._hung() from None
        except FrameError as error:
            if isinstance(error, ConnectionEnded):
                raise self._lost(_last_words(running)) from error
            raise self._lost(str(error)) from error

    def _receive(self, running: _Running) -> tuple[Said, list[Blob]]:
        try:
            return running.connection.receive()
        except TimedOutError:
            raise self._hung() from None
        except (ConnectionEnded, ConnectionCut) as error:
            raise self._lost("") from error
        except FrameError as error:
            raise self._lost(str(error)) from error

    def _hung(self) -> AgentLostError:
        assert self._running is not None
        self._running.child.kill()
        self.close()
        problem = f"{_capital(self._name)} gave no answer in time and was ended."
        return AgentLostError(problem, has_hung=True)

    def _lost(self, reason: str) -> AgentLostError:
        """The error of an agent that ended, or must, for a reason or by itself."""
        running, self._running = self._running, None
        assert running is not None
        if reason:
            running.child.kill()
            running.child.close()
            return self._error(f"was ended: {reason}")
        # One that has spoken was reached: what its libraries wrote is no word of the client.
        return self._error(running.child.ending(() if running.hello else self._fixes))

    def _error(self, problem: str) -> AgentLostError:
        is_cut = any(cut in problem for cut in self._cuts)
        sentence = explained(f"{_capital(self._name)} {problem}", self._fixes)
        return AgentLostError(sentence, is_cut=is_cut)

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
