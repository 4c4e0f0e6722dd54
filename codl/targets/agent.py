"""The agent: answers questions on its standard input by the target that is this very process.

It executes nothing that it is sent but kernels and nets. Libraries print to standard output as they
like; for them it is standard error.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any

from codl.boundary import explained
from codl.errors import CodlError, CodlWarning
from codl.plugins import load_installed
from codl.provenance import VERSION as CODL
from codl.runtime import clock_settings
from codl.runtime.child import ending_with, own_streams
from codl.runtime.connection import Blob, Connection, ConnectionEnded, FrameError, Reader, Writer
from codl.targets.process import Process, first_line
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
)

if TYPE_CHECKING:
    from codl.runtime.placement import LocalSoc
    from codl.targets.local import LocalTarget
    from codl.targets.peers import PeerHost
    from codl.targets.served_models import Models

#: The classes whose questions are answered, and where they are.
ANSWER: Mapping[str, str] = {
    "Process": "codl.targets.process",
    "Target": "codl.targets.base",
    "Models": "codl.targets.served_models",
    "PeerHost": "codl.targets.peers",
}


def main(begin: float, build: str = "") -> int:
    """Serve until the input ends; returns the exit code.

    `begin` is when this process began, and `build` that of the file which it was started from.
    """
    if clock_settings.is_left():
        clock_settings.put_back_left()
    reader, writer = own_streams()
    with reader, writer, ending_with(reader.fileno()):
        return Agent(reader, writer, begin, build).serve()


class Agent:
    """Answers one question after the other.

    What is wrong with a question becomes `Failed`; what is wrong with a frame ends the connection.
    """

    def __init__(self, reader: Reader, writer: Writer, begin: float, build: str = "") -> None:
        self._connection: Connection[Asked, Said] = Connection(reader, writer, Asked)
        self._begin, self._build = begin, build
        self._process = Process(_local_target, _peer_host)
        self._models: Models | None = None

    def serve(self) -> int:
        """Until the other side closes the connection; 1 where that was because of an error."""
        self._connection.send(Hello(VERSION, CODL, self._begin, perf_counter(), self._build))
        try:
            with warnings.catch_warnings():
                warnings.showwarning = self._warn  # type: ignore[assignment]
                while True:
                    asked, blobs = self._connection.receive()
                    start = perf_counter()
                    answer, parts = self._answer(asked, blobs)
                    self._process.spent_s[asked.question] += perf_counter() - start
                    self._connection.send(answer, parts)
        except ConnectionEnded:
            return 0
        except FrameError as error:
            print(error, file=sys.stderr)
            with suppress(FrameError):
                self._connection.send_last(Failed("FrameError", str(error)))
            return 1
        finally:
            if self._models is not None:
                self._models.close()
            self._process.close()

    def _answer(self, asked: Asked, blobs: list[Blob]) -> tuple[Said, Sequence[bytes | memoryview]]:
        try:
            question = question_named(asked.question)
            with explained():
                arguments = decode(question.arguments, asked.arguments, blobs)
                told = {name: self._told(name, form) for name, form in question.events.items()}
                method = getattr(self._answering(question), question.method.__name__)
                return _sent(Answered, question.answer, method(**arguments, **told))
        except FrameError as error:
            raise self._connection.refuse(str(error)) from error
        except CodlError as error:
            return Failed(_kind(error), str(error)), ()
        except Exception as error:  # a defect here, or a library's
            traceback.print_exc()
            return Failed(type(error).__name__, first_line(error)), ()

    def _answering(self, question: Question) -> Any:
        """Whose question it is."""
        owner = question.name.partition(".")[0]
        if owner == "Models":
            return self.models
        if owner == "Target":
            return self._process.target
        return self._process.peer if owner == "PeerHost" else self._process

    def _told(self, name: str, form: Form) -> Callable[..., None]:
        """What tells the other side that it was called."""

        def tell(*values: Any) -> None:
            text, blobs = encode(form, values)
            self._connection.send(Event(name, text), blobs)

        return tell

    def _warn(self, message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, CodlWarning):
            self._connection.send(Warned(str(message)))
        else:
            print(message, file=sys.stderr)

    @property
    def models(self) -> Models:
        """What was loaded here."""
        if self._models is None:
            from codl.targets.served_models import Models

            self._models = Models(self._process.target)
        return self._models


def question_named(name: str) -> Question:
    """The question of a class of `ANSWER`; raises `FrameError` where it is none."""
    owner, _, method = name.partition(".")
    cls = getattr(import_module(ANSWER[owner]), owner) if owner in ANSWER else None
    question = getattr(getattr(cls, method, None), "question", None)
    if not isinstance(question, Question) or question.limit is None:
        raise FrameError(f"It was asked {name!r}, which is no question.")
    return question


def _local_target(soc: LocalSoc | None) -> LocalTarget:
    from codl.targets.local import LocalTarget

    load_installed()
    return LocalTarget(soc)


def _peer_host(*arguments: Any) -> PeerHost:
    from codl.targets.peers import PeerHost

    return PeerHost(*arguments)


def _sent(
    message: Callable[[Any], Said], form: Form, value: Any
) -> tuple[Said, Sequence[bytes | memoryview]]:
    text, blobs = encode(form, value)
    return message(text), blobs


def _kind(error: CodlError) -> str:
    """The nearest of codl's own classes: others cannot be raised on the other side."""
    return next(c.__name__ for c in type(error).__mro__ if c.__module__ == CodlError.__module__)


if __name__ == "__main__":
    sys.exit(main(perf_counter()))
