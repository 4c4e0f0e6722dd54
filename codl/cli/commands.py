"""The commands by name: where each lies, and its summary. A command is imported when it is run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from codl import plugins
from codl.boundary import explained

#: Where commands lie in `codl.cli`, and their summaries; a command of a group has both words.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("demo:run_demo", "Show what codl does: a table and a page, without a GPU or a file."),
    "devices": ("devices:list_devices", "List processors, and the cores of their threads."),
    "doctor": ("doctor:check_device", "Check a device, and every kernel variant on it."),
    "collect": ("collect:collect_data", "Measure ops in every kernel variant, and data sharing."),
    "tune": ("tune:tune_kernels", "Find the fastest tiles and work-groups of GPU kernels."),
    "train": ("train:train_predictors", "Train latency predictors, and test them."),
    "models": ("files:list_models", "List models: inputs, weights, work and measured ops."),
    "search": ("search:search_plan", "Find a plan of a model: chains, dimensions and ratios."),
    "show": ("show:show_file", "Show a plan, or what a bundle or an executable runs."),
    "package": ("run:package_model", "Write a model as one file that starts at once."),
    "run": ("run:run_model", "Run a model or a bundle, and print its latency."),
    "eval": ("evaluate:evaluate_strategies", "Compare strategies on models, in turns."),
    "validate": ("validate:validate_plan", "Check that a plan computes the right outputs."),
    "explain": ("explain:explain_model", "Say where the time of a plan goes."),
    "trace": ("explain:trace_model", "Write a trace of both processors for ui.perfetto.dev."),
    "compare": ("files:compare_files", "Compare two result files, and tell noise apart."),
    "report": ("files:write_report", "Make one HTML page of result files."),
    "agent": ("agent:agent_app", "The side of a target that runs on the device."),
    "soc list": ("devices:list_socs", "List the SoC files in ./socs, and of codl."),
    "soc show": ("devices:show_soc", "Show one SoC; of published facts, their sources."),
    "soc detect": ("devices:detect_soc", "Describe a device as a SoC, and write its file."),
    "soc power": ("devices:measure_soc_power", "Measure the power of a SoC."),
    "dataset info": ("files:dataset_info", "Say what a dataset holds: rows, failures and source."),
    "cache show": ("files:show_cache", "Say where the cache lies, and how large it is."),
    "cache prune": ("files:prune_cache", "Remove from the cache what was not used for long."),
    "cache clear": ("files:clear_cache", "Empty the cache: kernels are compiled again."),
    "bench ops": ("bench:bench_ops", "Measure ops in every kernel variant, in turns."),
    "bench sustained": ("bench:bench_sustained", "Run a model on and on: does it become slower?"),
    "bench ui": ("bench:bench_interface", "Draw an interface at 60 Hz beside a model."),
}
#: Groups of commands, and their help.
GROUPS = {
    "soc": """SoC files: the pair of processors under study.

[dim]Examples:[/dim]
codl soc detect --serial local --name host
codl soc list
codl soc show host""",
    "dataset": """Datasets of measured latencies.

[dim]Examples:[/dim]
codl dataset info --soc host
codl dataset import t_*.csv --soc redmi""",
    "cache": """The cache of compiled kernels and prepared nets.

[dim]Examples:[/dim]
codl cache show
codl cache prune
codl cache clear""",
    "bench": """Benchmarks: ops, a model on and on, an interface beside one.

[dim]Examples:[/dim]
codl bench ops yolov2
codl bench sustained yolov2 --time 10m
codl bench ui yolov2 --strategy gpu --max-kernel-ms 1""",
}


def _places(group: str) -> dict[str, tuple[str, str]]:
    """Where the commands of a group lie, by their last words; plugins' have no summary."""
    every = {name: (f"codl.cli.{at}", summary) for name, (at, summary) in COMMANDS.items()}
    every |= {name: (at, "") for name, at in sorted(plugins.COMMANDS.places.items())}
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
        from codl.cli.adapter import with_options

        what = plugins.COMMANDS.get(name) or _at(place)
    app = typer.Typer(rich_markup_mode="rich")
    if isinstance(what, typer.Typer):
        app.add_typer(what, name=word, cls=LazyGroup)
    else:
        app.command(word, cls=LazyCommand)(with_options(what))
    command = typer.main.get_group(app).commands[word]
    command.help = unwrapped("\n\n".join(filter(None, (summary, command.help))))
    return command
