"""What every message of a target and its agent is, and the replies that any request may get."""

from __future__ import annotations

from typing import ClassVar

import msgspec

#: Of the messages; an agent of another version is refused.
VERSION = 1


class Message(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="message", tag=True
):
    """Base of everything that is sent."""


class Reply(Message, frozen=True):
    """An answer, or an event on the way to one."""


class Hello(Reply, frozen=True):
    """The first frame of an agent; `begin` and `ready` are its clock's when it began and now.

    `build` is that of the file that it was started from, empty where there is none.
    """

    version: int
    codl: str
    begin: float
    ready: float
    build: str = ""


class Failed(Reply, frozen=True):
    """Why a request failed; `kind` is the name of one of codl's errors, or of another exception."""

    kind: str
    text: str


class Warned(Reply, frozen=True):
    """An event: a warning of codl's."""

    text: str


class Advanced(Reply, frozen=True):
    """An event: so far has the request come (see `codl.measure.budget`)."""

    done: int
    total: int
    seconds_left: float


class Building(Reply, frozen=True):
    """An event: the task of this index is being built, of `Measure`; of `Load`, such a step.

    -1: none, any more.
    """

    index: int


class Timing(Reply, frozen=True):
    """An event of `Measure`: all that was built now takes turns."""


class Done(Reply, frozen=True):
    """There is nothing more to say."""


class Request(Message, frozen=True):
    """Base of what a target is asked; `reply` is the answer, which takes at most `limit_s`.

    The limit is for the time between two frames.
    """

    reply: ClassVar[type[Reply]] = Done
    limit_s: ClassVar[float] = 60.0
