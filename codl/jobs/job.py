"""A job: the options of one command, and its work.

Each job is a frozen dataclass. The command line makes it of words, `codl.collect(...)` and the like
of arguments, and `run` does it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from codl.errors import CodlError, CodlWarning
from codl.jobs.options import Option
from codl.measure.budget import Progress, no_progress

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Reporter:
    """Keeps progress to itself, and makes a `CodlWarning` of a warning; a subclass shows both."""

    def note(self, text: str) -> None:
        """A line about what was done."""

    def stage(self, text: str, expected_s: float | None = None) -> None:
        """A line about what is done from now on, and how long it takes where that is known."""

    def warn(self, text: str) -> None:
        """A problem that does not end the job."""
        warnings.warn(text, CodlWarning, stacklevel=3)

    @contextmanager
    def progress(self, label: str, below: Callable[[], Any] | None = None) -> Iterator[Progress]:
        """Yields a function of steps done, steps in all, and seconds left.

        `below` returns what is shown beside them, each time that they are shown.
        """
        yield no_progress


SILENT = Reporter()


#: Types of values as messages call them.
WORDS: Mapping[type, str] = {
    str: "text",
    Path: "text or a path",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    Sequence: "a list",
    Mapping: "a mapping",
    NoneType: "None",
}


@cache
def options_of(kind: Any) -> dict[str, tuple[tuple[type, ...], Option]]:
    """The types and options of a job's fields; a field without an option is for Python alone."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, tuple[tuple[type, ...], Option]] = {}
    for name in (field.name for field in fields(kind)):
        for option in getattr(hints[name], "__metadata__", ()):
            found[name] = _kinds(get_args(hints[name])[0]), option
    return found


def _kinds(hint: Any) -> tuple[type, ...]:
    """The classes of a type; a whole number is a number, too."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for each in get_args(hint) for kind in _kinds(each))
    return (float, int) if hint is float else (get_origin(hint) or hint,)


def _described(kinds: tuple[type, ...]) -> str:
    named = [kind for kind in kinds if kind is not NoneType and not (kind is str and Path in kinds)]
    return " or ".join(dict.fromkeys(WORDS[kind] for kind in named))


@dataclass(frozen=True, kw_only=True)
class Job:
    """The options of a job, and who hears of its progress."""

    reporter: Reporter = SILENT

    def __post_init__(self) -> None:
        """Raise `CodlError` for a value of another type, and for a number outside its bounds."""
        for name, (kinds, option) in options_of(cast(Any, type(self))).items():
            value = getattr(self, name)
            if isinstance(value, str) and Path in kinds and str not in kinds:
                object.__setattr__(self, name, value := Path(value))
            is_text = isinstance(value, str) and str not in kinds
            if not isinstance(value, kinds) or is_text or (value is True and bool not in kinds):
                raise CodlError(f"{name} must be {_described(kinds)}, got {value!r}.")
            if problem := option.problem(value):
                raise CodlError(f"{name} {problem}.")


class Runs(Protocol[R_co]):
    """A job that runs."""

    def run(self) -> R_co: ...


def function(kind: Callable[P, Runs[R]]) -> Callable[P, R]:
    """A function with the parameters and the documentation of a job, which it makes and runs."""

    @wraps(kind, updated=())
    def run(*args: P.args, **options: P.kwargs) -> R:
        return kind(*args, **options).run()

    run.job = kind  # type: ignore[attr-defined]
    return run
