"""Output of every command: results to stdout, progress to stderr, errors as one message."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Annotated, Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from codl import files
from codl.files import printable, provenance
from codl.jobs.options import Reporter, option, result_file
from codl.measure.budget import Progress

STDERR = Console(stderr=True, markup=False, emoji=False)
#: Seconds until a stage is told, and until one that was told before is told again.
SILENT_S, REPEAT_S = 3.0, 30.0
#: How much is told: `always`, `never`, or by default what fits where stderr goes.
VARIABLE = "CODL_PROGRESS"


def is_told() -> bool:
    """Whether lines about what is being done are shown at once."""
    asked = os.environ.get(VARIABLE, "")
    return asked == "always" or (asked != "never" and STDERR.is_terminal)


def is_quiet() -> bool:
    return os.environ.get(VARIABLE) == "never"


class CurrentStage:
    """The stage of a command, and when something was last said. A thread reads it.

    Where steps are counted, `count` says how far they are.
    """

    def __init__(self) -> None:
        #: Texts of stages that were said; interleaved stages begin again and again.
        self._told: set[str] = set()
        self._heard = perf_counter()
        self.begin("")

    def begin(self, text: str, expected_s: float | None = None) -> bool:
        """Another stage, the empty text for none; returns whether it was not said before."""
        self.text, self._steps, self._since = text, "", perf_counter()
        self._end = None if expected_s is None else self._since + expected_s
        return text not in self._told

    def forget(self) -> None:
        """Another command: no stage was said yet."""
        self._told.clear()

    def count(self, done: int, total: int, seconds_left: float) -> None:
        self._steps = f": {done}/{total}"
        self._end = perf_counter() + seconds_left

    def hear(self, text: str = "") -> None:
        """Something was said, such as the stage of this text."""
        self._heard = perf_counter()
        self._told.add(text)

    def overdue(self) -> str:
        """A line about the stage where one is due; else empty."""
        now = perf_counter()
        since, silent_s = max(self._heard, self._since), SILENT_S
        if self.text in self._told:
            since, silent_s = self._heard, REPEAT_S
        if not self.text or now - since < silent_s:
            return ""
        self.hear(self.text)
        left = "" if self._end is None else f", about {span_text(max(0.0, self._end - now))} left"
        return f"{self.text}{self._steps}: {span_text(now - self._since)} so far{left}"


def span_text(seconds: float) -> str:
    """A time as 12 s or 3:05."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


STAGE = CurrentStage()


def ended() -> None:
    """No stage goes on any more."""
    STAGE.begin("")


@contextmanager
def heartbeat() -> Iterator[None]:
    """Tells long stages on stderr meanwhile."""
    over = Event()

    def beat() -> None:
        while not over.wait(SILENT_S / 6):
            if not is_quiet() and (text := STAGE.overdue()):
                say(Text(printable(text), style="dim"))

    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def say(text: Text) -> None:
    STAGE.hear()
    with suppress(OSError):  # a full disk behind stderr is no reason to lose a result
        STDERR.print(text, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """A line about what was done, where such lines are told."""
    if is_told():
        say(Text(printable(text), style="dim"))


def stage(text: str, expected_s: float | None = None) -> None:
    """A line about what is done from now on, and for how long as far as that is known."""
    if STAGE.begin(text, expected_s) and is_told():
        note(text)
        STAGE.hear(text)


@contextmanager
def progress(label: str) -> Iterator[Progress]:
    """A progress bar on stderr; yields a function of done, total and seconds left.

    Where no terminal is, `heartbeat` tells how far it is.
    """
    if not STDERR.is_terminal or not is_told():
        stage(label)
        try:
            yield STAGE.count
        finally:
            ended()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    ended()  # the bar says it all
    with RichProgress(*columns, console=STDERR) as bar:
        task = bar.add_task(label, total=None, left="")

        def update(done: int, total: int, seconds_left: float) -> None:
            bar.update(task, completed=done, total=total, left=f"{span_text(seconds_left)} left")

        yield update


PlacementOption = Annotated[
    bool, option("--placement", help="Show where every op runs, not only a summary.")
]

#: Tables are as wide as the terminal, as COLUMNS says, or as this.
WIDTH = 160
_width = None if Console().is_terminal or "COLUMNS" in os.environ else WIDTH
#: Brackets and colons of a name or a value are none of rich's: what has a style is a `Text`.
STDOUT = Console(width=_width, markup=False, emoji=False)


@dataclass(frozen=True, kw_only=True)
class JsonOutput:
    """How a command prints its result."""

    as_json: Annotated[bool, option("--json", help="Print the result as JSON.")] = False

    def emit(
        self, command: str, result: dict[str, Any], render: Callable[[], RenderableType]
    ) -> None:
        """Print a result, as a table or as JSON, and keep it."""
        ended()
        text = document(command, result)
        self.keep(text)
        if self.as_json:
            print(text)
        else:
            STDOUT.print(render())

    def keep(self, text: str) -> None:
        """Nothing is kept without a file."""


@dataclass(frozen=True, kw_only=True)
class Output(JsonOutput):
    """How a command prints its result, and the file that it is written to."""

    to_file: Annotated[
        Path | None,
        option(
            "-o",
            "--output",
            help="Write the result to this file as JSON, for `codl report`.",
            read=result_file,
        ),
    ] = None

    def keep(self, text: str) -> None:
        if self.to_file is not None:
            files.write(self.to_file, text + "\n")


def document(command: str, result: dict[str, Any]) -> str:
    """A result of a command as JSON, with where it comes from."""
    content = {"command": command, "version": 1, **provenance(), **result}
    return json.dumps(finite(content), indent=1)


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON has not, such as the error of a NaN."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def tell(text: str) -> None:
    """What must be known about the command or its result, such as what was taken or left out."""
    if not is_quiet():
        say(Text(printable(text), style="dim"))


def warn(text: str) -> None:
    """Something that went wrong and did not stop the command."""
    say(Text.assemble(("Warning:", "bold yellow"), " ", printable(text)))


def fail(text: str) -> None:
    say(Text.assemble(("Error:", "bold red"), " ", printable(text)))


class Terminal(Reporter):
    note = staticmethod(note)
    tell = staticmethod(tell)
    stage = staticmethod(stage)
    warn = staticmethod(warn)
    progress = staticmethod(progress)


TERMINAL = Terminal()
