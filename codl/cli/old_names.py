"""Options and commands that had other names: they go on working, and say what they are called now.

A command line is read as its words are today before anything else looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

#: Options of the top level that take a value.
TOP_VALUES = {"--plugin"}
_DATASETS = {"--dataset": "--datasets"}
_TIME = {"--seconds": "--time"}
#: Options by command: what they were called, and what they are called now.
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "collect": {},
    "dataset info": _DATASETS,
    "train": _DATASETS,
    "tune": _DATASETS,
    "search": {**_DATASETS, "--search": "--method"},
    "show": _DATASETS,
    "run": {**_DATASETS, "--input": "--inputs"},
    "explain": _DATASETS,
    "trace": _DATASETS,
    "package": _DATASETS,
    "validate": {**_DATASETS, "--input": "--inputs"},
    "eval": {**_DATASETS, **_TIME},
    "bench ops": {**_DATASETS, "--op": "--ops"},
    "bench sustained": _DATASETS,
    "bench ui": {**_DATASETS, **_TIME},
    "bench llm": {**_DATASETS, **_TIME},
    "soc power": _TIME,
    "soc detect": {"--device": "--opencl-device"},
    "conformance": {"--device": "--opencl-device"},
}
#: Where --within was the budget of the command, and --budget that of a search.
WITHIN = ("search", "eval", "bench llm")
#: Where -o was a folder that data goes to.
FOLDERS = {"collect": "--datasets", "dataset import": "--datasets", "train": "--predictors"}
OUTPUT = ("-o", "--output")
BENCHES = ("ops", "sustained", "ui", "llm")


@dataclass(frozen=True)
class Line:
    """A command line: the words before the command, its name, and what follows it."""

    head: tuple[str, ...]
    command: str
    rest: tuple[str, ...]
    told: tuple[str, ...] = field(default=())

    def says(self, text: str) -> Line:
        return replace(self, told=tuple(dict.fromkeys((*self.told, text))))

    def has(self, *options: str) -> bool:
        return any(word.partition("=")[0] in options for word in self.rest)

    @property
    def words(self) -> list[str]:
        return [*self.head, *self.command.split(), *self.rest]


def today(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The words of a command line under today's names, and a sentence for each that had another."""
    line = _read(words)
    for change in (_bench, _cache, _within, _renamed, _folder, _arrays):
        line = change(line)
    return line.words, line.told


def _read(words: Sequence[str]) -> Line:
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in TOP_VALUES else 1
    head, command, rest = tuple(words[:at]), "".join(words[at : at + 1]), tuple(words[at + 1 :])
    groups = {name.partition(" ")[0] for name in (*OPTIONS, *FOLDERS) if " " in name}
    if command in groups and rest and f"{command} {rest[0]}" in {*OPTIONS, *FOLDERS}:
        command, rest = f"{command} {rest[0]}", rest[1:]
    return Line(head, command, rest)


def _bench(line: Line) -> Line:
    """`bench` was three commands in one, and `bench-llm` another."""
    if line.command == "bench-llm":
        now = replace(line, command="bench llm")
    elif line.command != "bench" or not line.rest or line.rest[0] == "--help":
        return line
    elif line.has("--ui"):
        rest = tuple(word for word in line.rest if word != "--ui")
        now = replace(line, command="bench ui", rest=rest)
    elif line.has("--minutes"):
        now = _valued(replace(line, command="bench sustained"), ("--minutes",), _minutes)
    else:
        now = replace(line, command="bench ops")
    return now.says(f"`codl {line.command}` is `codl {now.command}` now.")


def _minutes(value: str) -> tuple[str, str]:
    return "--time", f"{value}m"


def _cache(line: Line) -> Line:
    """The cache of compiled kernels was tended by `tune`."""
    flag = next((name for name in ("clear", "prune") if line.has(f"--{name}")), None)
    if line.command != "tune" or flag is None:
        return line
    if not line.has("--soc"):
        rest = tuple(word for word in line.rest if word not in ("--clear", "--prune"))
        now = replace(line, command=f"cache {flag}", rest=rest)
        return now.says(f"`codl tune --{flag}` is `codl cache {flag}` now.")
    told = line.says("The cache has commands of its own now: `codl cache`.")
    names = {"--clear": "--anew", "--prune": ""}
    renamed = (names.get(word, word) for word in told.rest)
    return replace(told, rest=tuple(word for word in renamed if word))


def _within(line: Line) -> Line:
    if line.command not in WITHIN or not line.has("--within"):
        return line
    names = {"--within": "--budget", "--search-budget": "--plan-time"}
    return _all_renamed(line, names)


def _renamed(line: Line) -> Line:
    return _all_renamed(line, OPTIONS.get(line.command, {}))


def _all_renamed(line: Line, names: Mapping[str, str]) -> Line:
    rest: list[str] = []
    for at, word in enumerate(line.rest):
        if word == "--":
            rest += line.rest[at:]
            break
        name, equals, value = word.partition("=")
        now = names.get(name)
        if now is not None:
            line = line.says(f"{name} is {now} now.")
        rest.append(word if now is None else f"{now}{equals}{value}")
    return replace(line, rest=tuple(rest))


def _folder(line: Line) -> Line:
    """-o was the folder that data goes to; it is the result's file, in JSON."""
    if line.command not in FOLDERS:
        return line
    option = FOLDERS[line.command]

    def now(value: str) -> tuple[str, str] | None:
        is_file = value.endswith(".json") and not Path(value).is_dir()
        return None if is_file else (option, value)

    return _valued(line, OUTPUT, now)


def _arrays(line: Line) -> Line:
    """--output of `run` was the file of the model's outputs."""
    if line.command != "run":
        return line
    return _valued(line, OUTPUT, lambda v: ("--outputs", v) if v.endswith(".npz") else None)


def _valued(line: Line, names: Sequence[str], now: Callable[[str], tuple[str, str] | None]) -> Line:
    """The same where options with a value that `now` changes are changed, with their value."""
    rest: list[str] = []
    words = iter(line.rest)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in names:
            rest.append(word)
            continue
        value = value if equals else next(words, "")
        changed = now(value)
        rest += changed or (name, value)
        if changed:
            line = line.says(f"{name} {value} is {' '.join(changed)} now.")
    return replace(line, rest=tuple(rest))
