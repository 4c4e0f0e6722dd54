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

#: Where commands are, and their summaries; a command of a group has both words.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": (
        "codl.cli.demo:run_demo",
        "Show what codl does: a table of predictions, and a page, without a GPU or a file.",
    ),
    "devices": (
        "codl.cli.devices:list_devices",
        "List the processors of this machine, and where their threads really run.",
    ),
    "doctor": (
        "codl.cli.doctor:check_device",
        "Check that a device has what codl needs, and that every kernel variant is right on it.",
    ),
    "collect": (
        "codl.cli.collect:collect_data",
        "Measure ops in every kernel variant of both processors, and the cost of data sharing.",
    ),
    "tune": (
        "codl.cli.tune:tune_kernels",
        "Find the fastest tiles and work-groups of every GPU kernel on this device, and keep them.",
    ),
    "kernels": (
        "codl.cli.kernels:compile_kernels",
        "Compile every kernel that models need on a phone's GPU, by that GPU's compiler, on a PC.",
    ),
    "train": (
        "codl.cli.train:train_predictors",
        "Train latency predictors on a SoC's dataset, and say how accurate they are.",
    ),
    "models": (
        "codl.cli.files:list_models",
        "List models: inputs, weights, work, and of named models how many ops were measured.",
    ),
    "search": (
        "codl.cli.search:search_plan",
        "Find a plan of a model: its chains, their dimensions and ratios. Or of each of several.",
    ),
    "show": (
        "codl.cli.show:show_file",
        "Show what a plan says, or what a bundle or an executable allocates and runs, in order.",
    ),
    "quantize": (
        "codl.cli.quantize:quantize_model",
        "Write a model with the constant matrices of its products in 4 or 8 bits.",
    ),
    "package": (
        "codl.cli.run:package_model",
        "Write a model as one file that starts at once, without import, search or compilation.",
    ),
    "run": (
        "codl.cli.run:run_model",
        "Run a model by a plan or a strategy, or a bundle, and print its latency.",
    ),
    "eval": (
        "codl.cli.evaluate:evaluate_strategies",
        "Compare strategies on models: measured in turns in one run, with outputs checked.",
    ),
    "validate": (
        "codl.cli.validate:validate_plan",
        "Check that every op of a plan, and the whole of it, computes what it should.",
    ),
    "explain": (
        "codl.cli.explain:explain_model",
        "Say where the time of a plan goes, from the lossless bound of the model to its run.",
    ),
    "trace": (
        "codl.cli.explain:trace_model",
        "Write what both processors do when, as a trace for Perfetto: open it in ui.perfetto.dev.",
    ),
    "compare": (
        "codl.cli.files:compare_files",
        "Compare two results of `eval`, `run`, `train`, `validate` or `kernels`: what is no noise?",
    ),
    "report": (
        "codl.cli.files:write_report",
        "Make one HTML page of result files: what commands write with -o, or print with --json.",
    ),
    "agent": (
        "codl.cli.agent:agent_app",
        "The side of a target that measures and runs, on the device.",
    ),
    "soc list": (
        "codl.cli.devices:list_socs",
        "List the SoC files in ./socs, and those that come with codl.",
    ),
    "soc show": (
        "codl.cli.devices:show_soc",
        "Show one SoC; of published facts, also where they are from.",
    ),
    "soc detect": (
        "codl.cli.devices:detect_soc",
        "Describe a device as a SoC and write its file, and beside it where its parts are here.",
    ),
    "soc power": (
        "codl.cli.devices:measure_soc_power",
        "Measure the power of a SoC (idle, each processor alone, both) and write it to its file.",
    ),
    "dataset info": (
        "codl.cli.files:dataset_info",
        "Say what a dataset holds: rows and failures of every file, its SoC and its source.",
    ),
    "cache show": ("codl.cli.files:show_cache", "Say where the cache lies, and how large it is."),
    "cache prune": (
        "codl.cli.files:prune_cache",
        "Remove from the cache what was not used for long.",
    ),
    "cache clear": (
        "codl.cli.files:clear_cache",
        "Empty the cache: what is needed again is compiled again.",
    ),
    "bench ops": (
        "codl.cli.bench:bench_ops",
        "Measure ops in every kernel variant of both processors, in turns.",
    ),
    "bench sustained": (
        "codl.cli.bench:bench_sustained",
        "Run a model on and on: does it become slower, and by how much?",
    ),
    "bench ui": (
        "codl.cli.bench:bench_interface",
        "Draw an interface at 60 Hz beside a model, on the same GPU: its frames, and their cost.",
    ),
    "bench llm": (
        "codl.cli.bench_llm:bench_llm",
        "Measure a language model: tokens a second of a prompt (pp512), and of new ones (tg128).",
    ),
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
    every = {**COMMANDS, **{name: (at, "") for name, at in plugins.COMMANDS.places.items()}}
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
