"""The commands by name: where each lies, and its summary. A command is imported when it is run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from importlib import import_module
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from codl import registry
from codl.cli.output import TERMINAL, tell
from codl.errors import explained
from codl.jobs.options import Job, Option

#: Types of defaults that are shown; a sequence is described by its option's help.
SHOWN = (bool, int, float, str, Path)
USUAL_SOC = (
    "By default CODL_SOC, else the one measured last; plans alone may use one that ships with codl."
)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer: each field of a job that has an option is an option of the command."""
    hints = get_type_hints(command, include_extras=True)
    jobs: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    options: dict[str, Option] = {}

    def add(name: str, hint: Any, default: Any) -> bool:
        metadata = getattr(hint, "__metadata__", ())
        option = next((each for each in metadata if isinstance(each, Option)), None)
        if option is not None:
            options[name] = option
            parameters.append(_parameter(name, option, get_args(hint)[0], default))
        return option is not None

    for name, parameter in inspect.signature(command).parameters.items():
        if name in jobs:
            kinds = get_type_hints(jobs[name], include_extras=True)
            for field in fields(jobs[name]):
                default: Any = (
                    inspect.Parameter.empty if field.default is MISSING else field.default
                )
                if field.default_factory is not MISSING:
                    default = field.default_factory()
                add(field.name, kinds[field.name], default)
        elif not add(name, hints[name], parameter.default):
            parameters.append(
                parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            )

    @wraps(command)
    def called(**values: Any) -> None:
        given = _read(options, {name: values.pop(name) for name in options})
        made = {
            name: kind(
                **({"reporter": TERMINAL} if issubclass(kind, Job) else {}),
                **{f.name: given.pop(f.name) for f in fields(kind) if f.name in given},
            )
            for name, kind in jobs.items()
        }
        command(**made, **given, **values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _parameter(name: str, option: Option, hint: Any, default: Any) -> inspect.Parameter:
    """An option as a parameter of typer's; its value is None where it is not given."""
    inner = str if option.read else _inner(hint)
    if default is not inspect.Parameter.empty:
        is_shown = isinstance(default, SHOWN) and not (option.usual or option.many)
        default = option.text or (default if is_shown else None)
        if option.read and default is not None:
            default = str(default) if isinstance(default, str | Path) else None
    kind: Any = list[inner] if option.many else inner  # type: ignore[valid-type]
    usual = f" {USUAL_SOC}" if option.usual else ""
    how: dict[str, Any] = {"help": f"{option.help}{usual}", "min": option.least, "max": option.most}
    metavar = option.metavar
    if metavar is None and inner is not bool and option.names:
        long = next(name for name in option.names if name.startswith("--"))
        metavar = long.strip("-").replace("-", "_").upper()
    info = (
        typer.Option(*option.names, **how, metavar=metavar)
        if option.names
        else typer.Argument(**how, metavar=metavar)
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, info],
    )


def _inner(hint: Any) -> Any:
    """The type of a value, or of each of several, without None."""
    if get_origin(hint) in (Union, UnionType):
        return _inner(next(kind for kind in get_args(hint) if kind is not NoneType))
    return _inner(get_args(hint)[0]) if get_origin(hint) is not None else hint


def _read(options: Mapping[str, Option], texts: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the options that were given; raises `typer.BadParameter` for wrong usage."""
    values: dict[str, Any] = {}
    for name, value in texts.items():
        option = options[name]
        if value is None or (option.many and not value):
            continue
        try:
            values[name] = option.read(value) if option.read else value
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=[*option.names]) from error
        if isinstance(values[name], float) and not isfinite(values[name]):
            raise typer.BadParameter("must be a finite number.", param_hint=[*option.names])
    for name, option in options.items():
        if name not in values and option.usual is not None:
            values[name], said = option.usual(values)
            if said:
                tell(said)
    return values


#: Where commands lie in `codl.cli`, and their summaries; a command of a group has both words.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("demo:run_demo", "Show what codl does: a table and a page, without a GPU or a file."),
    "devices": ("devices:list_devices", "List processors, and the cores of their threads."),
    "doctor": ("devices:check_device", "Check a device, and every kernel variant on it."),
    "collect": ("collect:collect_data", "Measure ops in every kernel variant, and data sharing."),
    "tune": ("collect:tune_kernels", "Find the fastest tiles and work-groups of GPU kernels."),
    "train": ("train:train_predictors", "Train latency predictors, and test them."),
    "models": ("files:list_models", "List models: inputs, weights, work, and what to use."),
    "search": ("search:search_plan", "Find a plan of a model: chains, dimensions and ratios."),
    "show": ("show:show_file", "Show a plan, or what a bundle or an executable runs."),
    "package": ("run:package_model", "Write a model as one file that starts at once."),
    "run": ("run:run_model", "Run a model or a bundle, and print its latency."),
    "eval": ("evaluate:evaluate_strategies", "Compare strategies on models, in turns."),
    "validate": ("evaluate:validate_plan", "Check that a plan computes the right outputs."),
    "explain": ("evaluate:explain_model", "Say where the time of a plan goes."),
    "trace": ("evaluate:trace_model", "Write a trace of both processors for ui.perfetto.dev."),
    "compare": ("files:compare_files", "Compare two result files, and tell noise apart."),
    "report": ("files:write_report", "Make one HTML page of result files."),
    "agent": ("agent:agent_app", "The side of a target that runs on the device."),
    "soc list": ("devices:list_socs", "List the SoC files in ./socs, and of codl."),
    "soc show": ("devices:show_soc", "Show one SoC; of published facts, their sources."),
    "soc detect": ("devices:detect_soc", "Describe a device as a SoC, and write its file."),
    "dataset info": ("files:dataset_info", "Say what a dataset holds: rows, failures and source."),
    "cache show": ("files:show_cache", "Say where the cache lies, and how large it is."),
    "cache prune": ("files:prune_cache", "Remove from the cache what was not used for long."),
    "cache clear": ("files:clear_cache", "Empty the cache: kernels are compiled again."),
    "bench ops": ("bench:bench_ops", "Measure ops in every kernel variant, in turns."),
    "bench stream": ("bench:bench_stream", "Run frames of a model on both processors at once."),
    "bench ui": ("bench:bench_interface", "Draw an interface at 60 Hz beside a model."),
}
#: Groups of commands, and their help.
GROUPS = {
    "soc": "SoC files: the pair of processors under study.",
    "dataset": "Datasets of measured latencies.",
    "cache": "The cache of compiled kernels and prepared nets.",
    "bench": "Benchmarks: ops, streams of frames, an interface beside a model.",
}


def _places(group: str) -> dict[str, tuple[str, str]]:
    """Where the commands of a group lie, by their last words; plugins' have no summary."""
    every = {name: (f"codl.cli.{at}", summary) for name, (at, summary) in COMMANDS.items()}
    every |= {name: (at, "") for name, at in sorted(registry.COMMANDS.places.items())}
    every |= {name: ("", help) for name, help in GROUPS.items()}
    split = {tuple(name.rpartition(" ")[::2]): place for name, place in every.items()}
    return {word: place for (parent, word), place in split.items() if parent == group}


#: In the help of an option: the place of a registry, a constant, or a function that gives words.
PLACE = re.compile(r"\{([\w.]+:\w+)\}")


def filled(text: str) -> str:
    """The help of an option with the names that lie at the places in it."""
    return PLACE.sub(lambda match: _words(_at(match[1])), text)


def _words(value: Any) -> str:
    if callable(value):
        value = value()
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return ", ".join(map(str, value)) if several else str(value)


def _at(place: str) -> Any:
    """The object at "module:attribute"; raises `MissingPackageError`."""
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
            place, summary = _places(self._group)[name]
            self._loaded[name] = _load(f"{self._group} {name}".strip(), place, summary)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.made, **_places(self._group)})

    def __len__(self) -> int:
        return sum(1 for _ in self)


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are run, or their own help is wanted."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands(self.name or "", self.commands)

    def _listed(self) -> TyperGroup:
        """The same group with names and summaries alone."""
        group = copy(self)
        lazy = {
            name: TyperCommand(
                name, help=summary or f"Command of the plugin {place.partition('.')[0]}."
            )
            for name, (place, summary) in _places(self.name or "").items()
        }
        group.commands = {**self.commands.made, **lazy}
        return group

    def format_help(self, ctx: Any, formatter: Any) -> None:
        TyperGroup.format_help(self._listed(), ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        ctx.command = self._listed()
        return TyperGroup.shell_complete(ctx.command, ctx, incomplete)


def unwrapped(text: str) -> str:
    """Paragraphs of help in a line each, for the terminal to wrap; examples keep their lines."""
    return "\n\n".join(
        paragraph if paragraph.startswith("[dim]") else paragraph.replace("\n", " ")
        for paragraph in text.split("\n\n")
    )


def _load(name: str, place: str, summary: str) -> Any:
    """Import a command, or make a group; raises `MissingPackageError` for a missing package."""
    word = name.rpartition(" ")[2]
    if name in GROUPS:
        return LazyGroup(name=name, help=summary, no_args_is_help=True, rich_markup_mode="rich")
    with explained():
        from codl.cli.commands import with_options

        what = registry.COMMANDS.get(name) or _at(place)
    app = typer.Typer(rich_markup_mode="rich")
    if isinstance(what, typer.Typer):
        app.add_typer(what, name=word, cls=LazyGroup)
    else:
        app.command(word, cls=LazyCommand)(with_options(what))
    command = typer.main.get_group(app).commands[word]
    command.help = unwrapped("\n\n".join(filter(None, (summary, command.help))))
    return command
