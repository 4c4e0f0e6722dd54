"""Where every command is, and groups that import a command when somebody asks for it.

Help and completion list commands by what their sources say of them, and import none. The help of an
option names what lies elsewhere by its place, such as {codl.ir.types:PRECISIONS}, which is imported
when that help is shown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from codl import plugins
from codl.boundary import explained

#: Commands by where they are, as those of plugins.
COMMANDS = {
    "demo": "codl.cli.demo:run_demo",
    "devices": "codl.cli.devices:list_devices",
    "doctor": "codl.cli.doctor:check_device",
    "collect": "codl.cli.collect:collect_data",
    "tune": "codl.cli.tune:tune_kernels",
    "train": "codl.cli.train:train_predictors",
    "models": "codl.cli.models:list_models",
    "search": "codl.cli.search:search_plan",
    "show": "codl.cli.show:show_file",
    "package": "codl.cli.package:package_model",
    "run": "codl.cli.run:run_model",
    "eval": "codl.cli.evaluate:evaluate_strategies",
    "validate": "codl.cli.validate:validate_plan",
    "explain": "codl.cli.explain:explain_model",
    "trace": "codl.cli.trace:trace_model",
    "runs": "codl.cli.runs:list_runs",
    "compare": "codl.cli.compare:compare_files",
    "report": "codl.cli.report:write_report",
}
#: Groups, each a `Typer` of its own; a command of one that is elsewhere has both words above.
GROUPS = {
    "soc": "codl.cli.devices:soc_app",
    "dataset": "codl.cli.dataset:dataset_app",
    "cache": "codl.cli.cache:cache_app",
    "bench": "codl.cli.bench:bench_app",
    "agent": "codl.cli.agent:agent_app",
}


def places_of(group: str) -> dict[str, str]:
    """The commands of a group by their last words, with those of plugins; "" is the top."""
    every = {**COMMANDS, **dict(sorted(plugins.COMMANDS.places.items())), **GROUPS}
    split = {tuple(name.rpartition(" ")[::2]): place for name, place in every.items()}
    return {word: place for (parent, word), place in split.items() if parent == group}


#: In the help of an option: the names that lie there, or a function that gives the words.
PLACE = re.compile(r"\{([\w.]+:\w+)\}")


def filled(text: str) -> str:
    """The help of an option with what lies at the places in it."""
    return PLACE.sub(lambda match: _words(_at(match[1])), text)


def _words(value: Any) -> str:
    if callable(value):
        return str(value())
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return ", ".join(map(str, value)) if several else str(value)


def _at(place: str) -> Any:
    """What is called "module:attribute"; raises `MissingPackageError`."""
    module, _, attribute = place.partition(":")
    with explained():
        return getattr(import_module(module), attribute)


class LazyCommand(TyperCommand):
    """A command whose options' help is filled when it is shown."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.params:
            if text := getattr(parameter, "help", None):
                parameter.help = filled(text)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        items = super().shell_complete(ctx, incomplete)
        for item in items:
            item.help = PLACE.sub("...", item.help or "")
        return items


class _Commands(Mapping[str, Any]):
    """The commands of a group: those that it was made with, and those that are imported."""

    def __init__(self, group: str, made: Mapping[str, Any]) -> None:
        self._group, self.made = group, dict(made)
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name in self.made:
            return self.made[name]
        if name not in self._loaded:
            place = places_of(self._group)[name]
            self._loaded[name] = _load(f"{self._group} {name}".strip(), place)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.made, **places_of(self._group)})

    def __len__(self) -> int:
        return sum(1 for _ in self)


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are run, or their own help is wanted."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands(self.name or "", self.commands)

    def _listed(self) -> TyperGroup:
        """The same with names and first paragraphs alone."""
        group = copy(self)
        lazy = {name: _listed(name, place) for name, place in places_of(self.name or "").items()}
        group.commands = {**self.commands.made, **lazy}
        return group

    def format_help(self, ctx: Any, formatter: Any) -> None:
        TyperGroup.format_help(self._listed(), ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        ctx.command = self._listed()
        return TyperGroup.shell_complete(ctx.command, ctx, incomplete)


def unwrapped(text: str) -> str:
    """Paragraphs of help in a line each, for the terminal to wrap; examples keep theirs."""
    return "\n\n".join(
        paragraph if paragraph.startswith("[dim]") else paragraph.replace("\n", " ")
        for paragraph in text.split("\n\n")
    )


def _load(name: str, place: str) -> Any:
    """Import a command or a group; raises `MissingPackageError` where a package is missing."""
    with explained():
        what = plugins.COMMANDS.get(name) or _at(place)
    alone, word = typer.Typer(rich_markup_mode="rich"), name.rpartition(" ")[2]
    if isinstance(what, typer.Typer):
        for registered in what.registered_commands:
            registered.cls = LazyCommand if registered.cls is TyperCommand else registered.cls
        alone.add_typer(what, name=word, cls=LazyGroup)
    else:
        alone.command(word, cls=LazyCommand)(what)
    command = typer.main.get_group(alone).commands[word]
    for each in (command, *getattr(getattr(command, "commands", None), "made", {}).values()):
        each.help = unwrapped(each.help or "")
    return command


def _listed(name: str, place: str) -> Any:
    """A command as it is listed: its name, and what its source says of it."""
    module, _, attribute = place.partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        match node:
            case ast.FunctionDef(name=defined) if defined == attribute:
                return TyperCommand(name, help=unwrapped(ast.get_docstring(node) or ""))
            case ast.Assign([ast.Name(defined)], ast.Call(keywords=words)) if defined == attribute:
                (text,) = (ast.literal_eval(word.value) for word in words if word.arg == "help")
                return TyperCommand(name, help=unwrapped(text))
    return _load(name, place)  # a plugin's, which makes it in another way
