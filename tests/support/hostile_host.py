"""A host that asks a real agent anything that its types allow; behind the agent is no device."""

from __future__ import annotations

import io
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any
from unittest.mock import patch

from codl.errors import DeviceError
from codl.runtime import probe
from codl.targets import (
    agent,
    kernel_requests,
    local,
    measuring,
    model_requests,
    peers,
    requests,
)
from codl.targets.agent import Agent
from codl.targets.connection import Connection, ConnectionEnded
from codl.targets.requests import Request
from codl.targets.wire import Failed, Hello, Response
from support.random_messages import asks, stream

#: All requests to an agent.
EVERY: Sequence[type[Request[Any]]] = tuple(
    kind
    for module in (requests, model_requests, measuring, kernel_requests)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Request) and kind is not Request
)


class Nothing:
    """Has everything that is asked of it, and can do none of it."""

    version = "1.0"

    def __init__(self, *arguments: object, **options: object) -> None:
        """Whatever it is made of."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*arguments: object, **options: object) -> None:
            raise DeviceError(f"There is no device to {name}.")

        return refuse

    def close(self) -> None:
        """There is nothing to close."""


@contextmanager
def _without_devices() -> Iterator[None]:
    """What would load a driver, or bind this process, is replaced."""
    nothing = Nothing()
    with ExitStack() as stack:
        for owner, name in ((local, "LocalTarget"), (peers, "PeerHost")):
            stack.enter_context(patch.object(owner, name, Nothing))
        stack.enter_context(patch.object(probe, "look", nothing.look))
        stack.enter_context(patch.object(agent, "load_installed", lambda **_: None))
        with open(os.devnull, "w") as silence:
            stack.enter_context(redirect_stderr(silence))
            yield


def fuzz_agent(count: int, seed: int = 1) -> Counter[str]:
    """Serve so many hosts: how often which answer was given, failures by the kind of their error.

    Raises where an agent ends without a code, or says what is no reply.
    """
    dice, found = random.Random(seed), Counter[str]()
    with _without_devices():
        for at in range(count):
            said = io.BytesIO()
            asked = stream(dice, (), [asks(EVERY[at % len(EVERY)]), asks(dice.choice(EVERY))], 4)
            assert Agent(io.BytesIO(asked), said, 0.0).serve() in (0, 1)
            found.update(_heard(said.getvalue()))
    return found


def _heard(said: bytes) -> Iterator[str]:
    """What an agent answered, whose first word is a greeting."""
    connection: Connection[Any, Any] = Connection(io.BytesIO(said), io.BytesIO(), Response)
    first, _ = connection.receive()
    assert isinstance(first, Hello)
    while True:
        try:
            answer, _ = connection.receive()
        except ConnectionEnded:
            return
        yield answer.kind if isinstance(answer, Failed) else type(answer).__name__
