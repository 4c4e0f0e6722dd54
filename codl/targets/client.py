"""The host's end of an agent: starts it, asks it, and starts it again after it was lost."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import TypeVar

from codl import errors
from codl.errors import CodlError, CodlWarning, DeviceError
from codl.provenance import VERSION as CODL
from codl.runtime.child import Child, TimedOutError
from codl.runtime.connection import Blob, Connection, ConnectionCut, ConnectionEnded, FrameError
from codl.runtime.threads import ProcessLock
from codl.targets.device_shell import Fix, explained
from codl.targets.message_base import VERSION, Failed, Hello, Reply, Request, Warned
from codl.targets.messages import AnyReply, AnyRequest

#: An agent on this machine. Its clock is read before anything of codl is imported.
COMMAND = (
    sys.executable,
    "-c",
    "import time; begin = time.perf_counter(); "
    "from codl.targets.agent import main; raise SystemExit(main(begin))",
)
#: Python's modules of an agent are read from a disk that may be slow.
START_S = 120.0
Blobs = Sequence[bytes | memoryview]
ReplyT = TypeVar("ReplyT", bound=Reply)


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
    connection: Connection[AnyReply, AnyRequest]
    #: By this process's clock.
    begin: float
    #: None before the agent has said that it is there, which took so long.
    hello: Hello | None = None
    start_s: float = 0.0


class AgentClient:
    """An agent behind a command that speaks frames; started at the first request.

    `prelude` requests are made of every agent that is started, before anything else: the state that
    one that was lost took with it. `name` is what errors call it. `build` is that of the file which
    it must come from, if it comes from one; `fixes` say what to do where its last words have a key,
    and one of `cuts` in them means that the way to it was cut.
    """

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        *,
        name: str = "the agent",
        cores: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        prelude: Sequence[Request] = (),
        build: str = "",
        fixes: Mapping[str, Fix] = MappingProxyType({}),
        cuts: Sequence[str] = (),
    ) -> None:
        self._command, self._name, self._cores = tuple(command), name, tuple(cores)
        self.prelude, self._environment = list(prelude), environment
        self._build, self._fixes, self._cuts = build, fixes, tuple(cuts)
        #: So many agents were started; what one knew, the next one does not.
        self.generation = 0
        self._running: _Running | None = None
        #: Held while a request is under way; any thread may ask.
        self.lock = ProcessLock()

    def ask(
        self,
        request: Request,
        reply: type[ReplyT],
        blobs: Blobs = (),
        *,
        on_event: Callable[[Reply], None] | None = None,
        limit_s: float | None = None,
    ) -> tuple[ReplyT, list[Blob]]:
        """The answer to a request, and the blobs that came with it.

        `on_event` raises `FrameError` for an event that cannot be, which ends the agent. Raises
        `AgentLostError` where it does not answer, and codl's own errors as the agent raised them.
        """
        with self.lock:
            running = self._ready()
            return self._exchange(running, request, reply, blobs, on_event, limit_s)

    def spawn(self) -> None:
        """Start the agent's process without waiting for it, as where several begin at once."""
        begin = perf_counter()
        child = Child(self._command, cores=self._cores, environment=self._environment)
        self.generation += 1
        child.limit(START_S)
        connection: Connection[AnyReply, AnyRequest] = Connection(
            child.output, child.input, AnyReply
        )
        self._running = _Running(child, connection, begin)

    def _ready(self) -> _Running:
        """The running agent, greeted and made what the one before was."""
        if self._running is None:
            self.spawn()
        running = self._running
        assert running is not None
        if running.hello is None:
            first, _ = self._receive(running)
            if not isinstance(first, Hello) or first.version != VERSION:
                raise self._lost(f"expected an agent of version {VERSION}, which says so first")
            if first.build != self._build:
                raise self._lost(
                    f"it is of another codl ({first.codl}, build {first.build or 'none'}; this is "
                    f"{CODL}, build {self._build or 'none'})"
                )
            running.hello, running.start_s = first, perf_counter() - running.begin
            for request in self.prelude:
                self._exchange(running, request, request.reply, (), None, None)
        return running

    def start_seconds(self) -> tuple[float, float]:
        """From starting the agent to hearing of it, and what it said that its modules took."""
        hello = self._ready().hello
        assert hello is not None
        assert self._running is not None
        return self._running.start_s, hello.ready - hello.begin

    @property
    def pid(self) -> int | None:
        """The process of the agent on this machine; None where none runs."""
        return self._running.child.pid if self._running else None

    def refuse(self, problem: str) -> AgentLostError:
        """End the agent because of an answer that cannot be; the error to raise."""
        with self.lock:
            return self._lost(problem)

    def close(self) -> None:
        """End the agent; the next request starts another."""
        running, self._running = self._running, None
        if running is not None:
            running.child.close()

    def fileno(self) -> int:
        """What becomes readable when the agent answers."""
        assert self._running is not None
        return self._running.child.output.fileno()

    def _exchange(
        self,
        running: _Running,
        request: Request,
        reply: type[ReplyT],
        blobs: Blobs,
        on_event: Callable[[Reply], None] | None,
        limit_s: float | None,
    ) -> tuple[ReplyT, list[Blob]]:
        limit = request.limit_s if limit_s is None else limit_s
        self._post(running, request, blobs, limit)
        while True:
            running.child.limit(limit)
            answer, parts = self._receive(running)
            if isinstance(answer, reply):
                return answer, parts
            if isinstance(answer, Failed):
                raise self._failure(answer)
            if isinstance(answer, Warned):
                warnings.warn(answer.text, CodlWarning, stacklevel=4)
            elif on_event is not None:
                try:
                    on_event(answer)
                except FrameError as error:
                    raise self._lost(str(error)) from error
            else:
                raise self._lost(
                    f"answered {type(request).__name__} with {type(answer).__name__}, "
                    f"where {reply.__name__} was expected"
                )

    def post(self, request: Request, blobs: Blobs = (), *, limit_s: float | None = None) -> None:
        """Send a request whose answer is taken later, by `receive`."""
        self._post(self._ready(), request, blobs, request.limit_s if limit_s is None else limit_s)

    def _post(self, running: _Running, request: Request, blobs: Blobs, limit_s: float) -> None:
        running.child.limit(limit_s)
        try:
            running.connection.send(request, blobs)  # type: ignore[arg-type]
        except TimedOutError:
            raise self._hung() from None
        except FrameError as error:
            if isinstance(error, ConnectionEnded):
                raise self._lost(_last_words(running)) from error
            raise self._lost(str(error)) from error

    def receive(self) -> tuple[AnyReply, list[Blob]]:
        """The next frame; raises `AgentLostError`."""
        assert self._running is not None
        return self._receive(self._running)

    def _receive(self, running: _Running) -> tuple[AnyReply, list[Blob]]:
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


def _last_words(running: _Running) -> str:
    """Why an agent ended, where it said so before it closed the connection."""
    try:
        last = running.connection.last()
    except TimedOutError:
        return ""
    return last.text if isinstance(last, Failed) else ""


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
