"""Progress of a command, on stderr.

On a terminal a line or a bar changes while a stage goes on. Elsewhere a stage that takes longer
than `SILENT_S` seconds is told once, and from then on the command is heard of every `REPEAT_S`
seconds. `--verbose` tells every stage there, and `--quiet` nothing but warnings and errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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

from codl.files import printable
from codl.measure.budget import Progress

STDERR = Console(stderr=True, markup=False, emoji=False)
#: Seconds until a stage is told, and until one that was told before is told again.
SILENT_S, REPEAT_S = 3.0, 30.0
#: On a terminal a stage that took longer, in seconds, keeps its line.
SHORT_S = 1.0
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

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._told: set[str] = set()
        self._heard = clock()
        self.begin("")

    def begin(self, text: str, expected_s: float | None = None) -> bool:
        """Another stage, the empty text for none; whether it was not told before."""
        self.text, self._steps, self._since = text, "", self._clock()
        self._end = None if expected_s is None else self._since + expected_s
        return text not in self._told

    def forget(self) -> None:
        """Another command: no stage was told yet."""
        self._told.clear()

    def count(self, done: int, total: int, seconds_left: float) -> None:
        self._steps = f": {done}/{total}"
        self._end = self._clock() + seconds_left

    def hear(self, text: str = "") -> None:
        """Something was said, such as the stage of this text."""
        self._heard = self._clock()
        self._told.add(text)

    @property
    def age_s(self) -> float:
        return self._clock() - self._since if self.text else 0.0

    def time(self) -> str:
        """How long it has taken, and what is left as far as that is known."""
        now = self._clock()
        left = "" if self._end is None else f", about {_span(max(0.0, self._end - now))} left"
        return f"{_span(now - self._since)} so far{left}"

    def overdue(self) -> str:
        """A line about the stage where one is due; else empty."""
        now = self._clock()
        since, silent_s = max(self._heard, self._since), SILENT_S
        if self.text in self._told:
            since, silent_s = self._heard, REPEAT_S
        if not self.text or now - since < silent_s:
            return ""
        self.hear(self.text)
        return f"{self.text}{self._steps}: {self.time()}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


STAGE = CurrentStage()
#: The changing line at the bottom of a terminal, where there is one.
_lines: list[Status] = []


def ended() -> None:
    """No stage goes on any more."""
    _put_away()
    STAGE.begin("")


def _put_away() -> None:
    while _lines:
        _lines.pop().stop()
        if STAGE.age_s > SHORT_S:
            note(f"{STAGE.text}: {_span(STAGE.age_s)}")


@contextmanager
def heartbeat() -> Iterator[None]:
    """Tells long stages on stderr meanwhile."""
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
    """A line about what is done from now on, and for how long as far as that is known.

    A terminal has a line that tells the time, and keeps it where it took long.
    """
    _put_away()
    is_new = STAGE.begin(text, expected_s)
    if not STDERR.is_terminal:
        if is_new and is_told():
            note(text)
            STAGE.hear(text)
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
    if not STDERR.is_terminal or not is_told():
        stage(label)
        try:
            yield STAGE.count
        finally:
            ended()
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
    ended()  # the bar says it all
    with _Bar(*columns, below=below) as bar:
        task = bar.add_task(label, total=None, left="")

        def update(done: int, total: int, seconds_left: float) -> None:
            bar.update(task, completed=done, total=total, left=f"{_span(seconds_left)} left")

        yield update
