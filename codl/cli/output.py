"""Output of every command: results to stdout, progress to stderr, errors as one message."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
)
from rich.progress import Progress as RichProgress
from rich.text import Text

from codl import files
from codl.api.reporter import Reporter
from codl.files import printable
from codl.measure.budget import Budget, Progress
from codl.provenance import provenance
from codl.records.results import Checked

#: Tables are as wide as the terminal, as COLUMNS says, or as this.
WIDTH = 160
_width = None if Console().is_terminal or "COLUMNS" in os.environ else WIDTH
#: Brackets and colons of a name or a value are none of rich's: what has a style is a `Text`.
STDOUT = Console(width=_width, markup=False, emoji=False)
STDERR = Console(stderr=True, markup=False, emoji=False)
#: A log gets a line of progress every 10 seconds.
QUIET_S = 10.0
#: A stage that says nothing is reported after these seconds, and then after a share of its age.
SILENT_S, SHARE = 3.0, 0.25


def emit(
    command: str,
    result: dict[str, Any],
    render: Callable[[], RenderableType],
    *,
    as_json: bool,
    output: Path | None = None,
) -> None:
    """Print a result, as a table or as JSON, and write it to a file where one is given."""
    STAGE.begin("")
    text = document(command, result)
    if output is not None:
        files.write(output, text + "\n")
    if as_json:
        print(text)
    else:
        STDOUT.print(render())


def document(command: str, result: dict[str, Any]) -> str:
    """A result of a command as JSON, with where it comes from."""
    content = {"command": command, "version": 1, **provenance(), **result}
    return json.dumps(_finite(content), indent=1)


def told_of(checked: Checked | None) -> dict[str, Any]:
    """The keys of a comparison before the first result; None where nobody asked for it."""
    return {
        "check_ms": None if checked is None else checked.ms,
        "check": None if checked is None else asdict(checked),
    }


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON has not, such as the error of a NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


class CurrentStage:
    """What a command is at, and when of that something was last said; a thread reads it."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self.begin("")

    def begin(self, text: str) -> None:
        """Another stage; the empty text ends the last."""
        self.text = text
        self._since = self._told = self._clock()

    def hear(self) -> None:
        """Something was said."""
        self._told = self._clock()

    def overdue(self) -> str:
        """What to say of it now; empty where something was said lately."""
        now = self._clock()
        age = now - self._since
        if not self.text or now - self._told < max(SILENT_S, SHARE * age):
            return ""
        return f"{self.text}: {age:.0f} s so far"


STAGE = CurrentStage()


@contextmanager
def heartbeat() -> Iterator[None]:
    """Meanwhile a stage that takes long says so every few seconds, on stderr."""
    over = Event()

    def beat() -> None:
        while not over.wait(SILENT_S / 6):
            if text := STAGE.overdue():
                note(text)

    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def stage(text: str) -> None:
    """A line about what is done from now on; `heartbeat` repeats it."""
    STAGE.begin(text)
    note(text)


def tell(text: str) -> None:
    """Something about the command line itself, such as what was taken where nothing was named."""
    _say(Text(printable(text), style="dim"))


def note(text: str) -> None:
    """A line about what is being done."""
    _say(Text(printable(text), style="dim"))


def warn(text: str) -> None:
    """Something that went wrong and did not stop the command."""
    _say(Text.assemble(("Warning:", "bold yellow"), " ", printable(text)))


def fail(text: str) -> None:
    """Why a command ends."""
    _say(Text.assemble(("Error:", "bold red"), " ", printable(text)))


def _say(text: Text) -> None:
    STAGE.hear()
    with suppress(OSError):  # a full disk behind stderr is no reason to lose a result
        STDERR.print(text, highlight=False, soft_wrap=True)


class _Bar(RichProgress):
    """Progress with something below it."""

    def __init__(self, *columns: ProgressColumn, below: Callable[[], RenderableType]) -> None:
        self._below = below
        super().__init__(*columns, console=STDERR, transient=False)

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        yield self._below()


@contextmanager
def progress(label: str, below: Callable[[], RenderableType] | None = None) -> Iterator[Progress]:
    """A progress bar on stderr; yields a function of done, total and seconds left.

    `below` gives what stands below it, whenever it is drawn anew. Where no terminal is, there are
    lines instead: one at once, then one every `QUIET_S` seconds at most, and at the end what stands
    below.
    """
    below = below or Group
    if not STDERR.is_terminal:
        try:
            yield _lines(label)
        finally:
            with STDERR.capture() as shown:
                STDERR.print(below())
            if text := shown.get().rstrip():
                STDERR.out(text, highlight=False)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    STAGE.begin("")  # the bar says it all
    with _Bar(*columns, below=below) as bar:
        task = bar.add_task(label, total=None, left="")

        def update(done: int, total: int, seconds_left: float) -> None:
            bar.update(task, completed=done, total=total, left=_left(seconds_left))

        yield update


def _lines(label: str) -> Callable[[int, int, float], None]:
    """Tells how far it has come in lines."""
    stage(label)
    told = Budget(QUIET_S)

    def update(done: int, total: int, seconds_left: float) -> None:
        nonlocal told
        STAGE.text = f"{label}: {done}/{total}"
        if told.is_over() or done == total:
            note(f"{label}: {done}/{total}, {_left(seconds_left)}")
            told = Budget(QUIET_S)

    return update


def _left(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} left"


class Terminal(Reporter):
    """Shows what functions of `codl.api` tell, on stderr."""

    note = staticmethod(note)
    stage = staticmethod(stage)
    warn = staticmethod(warn)
    progress = staticmethod(progress)


TERMINAL = Terminal()
