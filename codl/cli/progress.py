"""What a command is at, told on stderr: on a terminal at once, elsewhere where it takes long.

Where no terminal is, nothing is said of what takes less than `SILENT_S` seconds, and then a line as
often. `--verbose` tells all of it there, too, and `--quiet` nothing but warnings and errors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
)
from rich.progress import Progress as RichProgress
from rich.status import Status
from rich.text import Text

from codl import files
from codl.errors import CodlError
from codl.files import printable
from codl.measure.budget import Progress

STDERR = Console(stderr=True, markup=False, emoji=False)
#: A stage that says nothing is reported as often, in seconds.
SILENT_S = 3.0
#: On a terminal what is left of a stage is told from here on, in seconds.
SHORT_S = 1.0
#: How much is told: `always`, `never`, or by default what fits where stderr goes.
VARIABLE = "CODL_PROGRESS"
#: Of stages whose durations are remembered.
MOST_STAGES = 300


def is_told() -> bool:
    """Whether lines about what is being done are shown at once."""
    asked = os.environ.get(VARIABLE, "")
    return asked == "always" or (asked != "never" and STDERR.is_terminal)


def is_quiet() -> bool:
    return os.environ.get(VARIABLE) == "never"


class Durations:
    """How long stages took the last time, by what was said of them; on disk, beside the cache."""

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._seconds: dict[str, float] | None = None

    def get(self, stage: str) -> float | None:
        return self._known().get(stage)

    def keep(self, stage: str, seconds: float) -> None:
        """What cannot be kept is asked for once more: nothing depends on it."""
        known = {**self._known()}
        known.pop(stage, None)  # the last one stands last
        known[stage] = round(seconds, 1)
        self._seconds = dict([*known.items()][-MOST_STAGES:])
        with suppress(OSError, CodlError):
            files.write(self._path(), json.dumps(self._seconds, indent=0))

    def _known(self) -> Mapping[str, float]:
        if self._seconds is None:
            try:
                content = json.loads(self._path().read_bytes())
                self._seconds = {str(name): float(value) for name, value in content.items()}
            except (OSError, ValueError, TypeError, AttributeError, RecursionError):
                self._seconds = {}
        return self._seconds


def _durations_file() -> Path:
    from codl.runtime.cache import folder

    return folder() / "stages.json"


class CurrentStage:
    """What a command is at, how long it is expected to take, and when something was last said.

    A thread reads it. Where steps are counted, `count` says how far they are.
    """

    def __init__(
        self, clock: Callable[[], float] = perf_counter, durations: Durations | None = None
    ) -> None:
        self._clock, self._durations = clock, durations
        self.text, self._steps, self._since = "", "", clock()
        self.begin("")

    def begin(self, text: str, expected_s: float | None = None) -> None:
        """Another stage; the empty text ends the last."""
        self._keep()
        self.text, self._steps = text, ""
        self._since = self._clock()
        if not text:
            self._told = self._since
        known = self._durations.get(text) if self._durations and text else None
        self._end = None if (left := expected_s or known) is None else self._since + left

    def count(self, done: int, total: int, seconds_left: float) -> None:
        self._steps = f": {done}/{total}"
        self._end = self._clock() + seconds_left

    def hear(self) -> None:
        """Something was said."""
        self._told = self._clock()

    @property
    def age_s(self) -> float:
        return self._clock() - self._since if self.text else 0.0

    def time(self) -> str:
        """How long it has taken, and what is left as far as that is known."""
        now = self._clock()
        left = "" if self._end is None else f", about {_span(max(0.0, self._end - now))} left"
        return f"{_span(now - self._since)} so far{left}"

    def overdue(self) -> str:
        """What to say of it now; empty where something was said lately."""
        if not self.text or self._clock() - self._told < SILENT_S:
            return ""
        time = f": {self.time()}" if self.age_s > SHORT_S else ""
        return f"{self.text}{self._steps}{time}"

    def _keep(self) -> None:
        if self._durations and self.age_s > SHORT_S and not self._steps:
            self._durations.keep(self.text, self.age_s)


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


STAGE = CurrentStage(durations=Durations(_durations_file))
#: A line that changes at the bottom of a terminal, meanwhile.
_lines: list[Status] = []


def ended() -> None:
    """Nothing is being done any more."""
    _put_away()
    STAGE.begin("")


def _put_away() -> None:
    while _lines:
        _lines.pop().stop()
        if STAGE.age_s > SHORT_S:
            note(f"{STAGE.text}: {_span(STAGE.age_s)}")


@contextmanager
def heartbeat() -> Iterator[None]:
    """Meanwhile a stage that takes long says so every few seconds, on stderr."""
    over = Event()

    def beat() -> None:
        while not over.wait(SILENT_S / 6):
            if _lines:
                with suppress(IndexError):  # put away meanwhile
                    _lines[-1].update(Text(f"{STAGE.text}: {STAGE.time()}"))
            elif not is_quiet() and (text := STAGE.overdue()):
                say(Text(printable(text), style="dim"))

    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _put_away()


def say(text: Text) -> None:
    STAGE.hear()
    with suppress(OSError):  # a full disk behind stderr is no reason to lose a result
        STDERR.print(text, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """A line about what was done, where such lines are told."""
    if is_told():
        say(Text(printable(text), style="dim"))


def stage(text: str, expected_s: float | None = None) -> None:
    """What is done from now on, and for how long as far as that is known.

    A terminal has a line that tells the time, and keeps it where it took long.
    """
    _put_away()
    STAGE.begin(text, expected_s)
    if not STDERR.is_terminal:
        note(text)
    elif is_told():
        line = Status(Text(printable(text)), console=STDERR)
        line.start()
        _lines.append(line)


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

    `below` gives what stands below it, whenever it is drawn anew. Where no terminal is, `heartbeat`
    tells how far it is, and what stands below comes at the end.
    """
    below = below or Group
    _put_away()
    if not STDERR.is_terminal or not is_told():
        STAGE.begin(label)
        note(label)
        try:
            yield STAGE.count
        finally:
            STAGE.begin("")
            if is_told():
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
            bar.update(task, completed=done, total=total, left=f"{_span(seconds_left)} left")

        yield update
