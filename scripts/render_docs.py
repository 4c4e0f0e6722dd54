"""Writes the generated parts of README.md and docs/: tables, lists, docs/reference/cli.md.

    python scripts/render_docs.py            # rewrite README.md and docs/ where they are stale
    python scripts/render_docs.py --check    # write nothing; exit code 1 where something is stale

A generated part of a page stands between two comments:

    <!-- table: VIEW [results/FILE.json ...] -->
    ...
    <!-- end -->

VIEW is one of `VIEWS`, or of `LISTS` for what needs no file, or `keys module:Class`. Tables are
made by `codl.report` from the files that commands write with `-o FILE`;
scripts/reference_results.sh has the commands. A FILE may be a pattern such as `curve-*.json`. A
picture of `PICTURES` is written to a file of its own:

    <!-- picture: VIEW NAME.svg results/FILE.json ... -->

`<!-- paper: NAME -->` begins a figure of the paper, with its picture in docs/paper.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import typer
from api_pages import api_reference, keys_content
from curves import curve, curve_content, load_curve
from gains import gains_content
from markdown_tables import markdown
from paper_figures import paper_content, paper_picture
from planner_tables import TABLES
from split_picture import split
from standalone import stand_alone
from summaries import (
    accuracy_content,
    comparison_content,
    conformance_content,
    devices_content,
    refusals_content,
)

from codl.cli.app import app
from codl.cli.commands import filled
from codl.frontend.models import description
from codl.ir import OP_TYPES
from codl.ir.types import PROCESSORS, Processor
from codl.jobs.models import builtin_facts
from codl.kernels import registry
from codl.plan.strategies import STRATEGIES, ideal
from codl.registry import load_installed
from codl.report.charts import Picture
from codl.report.tables import (
    bundles_content,
    plan_content,
    run_content,
    train_content,
)
from codl.report.text_table import Column, TextRow, TextSection, TextTable, count
from codl_phone_compilers.report import gpus_content

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CLI_PAGE = DOCS / "reference" / "cli.md"
API_PAGE = DOCS / "reference" / "api.md"
MARKED = re.compile(
    r"(<!-- (?P<kind>table|picture|paper): (?P<what>[^>]*?) -->\n).*?(?P<end><!-- end -->)",
    re.DOTALL,
)
#: Rich's markup in help texts, and the line that begins the examples.
MARKUP = re.compile(r"\[/?(?:dim|bold|italic)\]")
EXAMPLES = re.compile(r"^\[dim\]Examples?:\[/dim\]", re.MULTILINE)
#: Lists in help texts, and the links to pages that replace them.
LINKED = (
    (re.compile(r"built-in model \([^)]*\)"), "[built-in model](models.md)"),
    (re.compile(r"local \(this machine, .* prints it\)"), "a [serial](../concepts/targets.md)"),
)
#: An option of this many commands is described once, at the top of the page.
SHARED_BY = 2
#: Options that most commands have, which the page names once.
RESULT_OPTIONS = {"--json", "--output"}
#: Examples of a command on its page; `--help` has all.
MOST_EXAMPLES = 2
#: Options of every command that plans a model, which the page lists once.
PLAN_OPTIONS = {
    "--plan", "--strategy", "--predictor", "--plan-time", "--profile", "--batch",
    "--shape", "--max-kernel-ms", "--gpu-duty", "--datasets", "--predictors",
}  # fmt: skip
#: What stands for suffixes of kernel variants in a table.
LETTERS = {"image": "i", "fp16": "h", "arithmetic": "a"}
#: The view that shows the keys of a class of data, `module:Class`.
KEYS = "keys"
MISSING = "Not measured yet: `{script}` makes `{file}`."
#: What makes the files of a view, where it is not scripts/reference_results.sh.
MAKERS = {
    "curve": "scripts/bench/stage.py",
    "validations": "scripts/validate_models.py",
    "phone-gpus": "make mobile-kernels",
}

#: Tables of result files. Those of several files take all that exist, the others the first.
VIEWS: Mapping[str, Callable[[Sequence[Any]], TextTable]] = {
    "comparison": lambda results: comparison_content(results[0]),
    "accuracy": lambda results: accuracy_content(results[0]),
    "training": lambda results: train_content(results[0]),
    "plan": lambda results: plan_content(results[0]),
    "run": lambda results: run_content(results[0]),
    "conformance": conformance_content,
    "refusals": refusals_content,
    "bundles": bundles_content,
    "curve": curve_content,
    "validations": devices_content,
    "phone-gpus": gpus_content,
}

#: What sections of a view are headed by, where it is not parts.
BY = {"curve": "size"}
#: Tables that look at files themselves.
OF_FILES: Mapping[str, Callable[[Sequence[Path]], TextTable]] = {
    "gains": gains_content,
}


#: Pictures of result files by name: the title, and what draws them.
PICTURES: Mapping[str, tuple[str, Callable[[Sequence[Any], str], Picture]]] = {
    "curve": (
        "Gain of co-execution against the ratio of the processors' speeds",
        lambda results, title: replace(curve(results), title=title),
    ),
    "split": ("How a network is split, and what both processors then do", split),
}


def models_content() -> TextTable:
    """The built-in models, as `codl models` lists them."""
    summaries = builtin_facts()
    columns = (
        Column("name", numeric=False),
        Column("input", numeric=False),
        Column("million weights"),
        Column("GFLOPs"),
        Column("what it is", numeric=False),
    )
    rows = tuple(
        TextRow(
            (
                f"`{one.name}`",
                ", ".join("x".join(map(str, shape)) for shape in one.inputs.values()),
                f"{one.parameters / 1e6:.2f}",
                f"{one.gflops:.2f}",
                _first_sentence(description(one.name)),
            )
        )
        for one in summaries
    )
    return TextTable("Built-in models", columns, (TextSection("", rows),))


def _first_sentence(documented: Any) -> str:
    """The first line of a docstring, without its full stop."""
    return str(documented.__doc__).strip().splitlines()[0].rstrip(".")


def variants_content() -> TextTable:
    """Every op with its kernel variants on either processor."""
    columns = (
        Column("op", numeric=False),
        Column("variants on the CPU", numeric=False),
        Column("variants on the GPU", numeric=False),
    )
    kinds = sorted(OP_TYPES)
    rows = tuple(
        TextRow((f"`{kind}`", *(_variant_names(kind, side) for side in PROCESSORS)))
        for kind in kinds
    )
    title = f"{count(len(kinds))} ops, {count(len(registry.VARIANTS))} kernel variants"
    letters = "i: also over images (`_image`), h: with halves stored (`_fp16`), a: with halves"
    caption = (f"{title}. {letters} multiplied (`_fp16_arithmetic`).",)
    return TextTable(title, columns, (TextSection("", rows),), caption)


def _variant_names(kind: str, processor: Processor) -> str:
    """Each name once, with letters for the storages that it has beside float32 in buffers."""
    storages: dict[str, set[str]] = {}
    for variant in registry.of_kind(kind, processor):
        name, *suffixes = re.split(r"_(?=image|fp16|arithmetic)", variant.name)
        storages.setdefault(name, set()).update(suffixes)
    return ", ".join(f"`{name}`{_letters(has)}" for name, has in storages.items()) or "none"


def _letters(suffixes: Collection[str]) -> str:
    letters = [letter for suffix, letter in LETTERS.items() if suffix in suffixes]
    return f" {' '.join(letters)}" if letters else ""


def strategies_content() -> TextTable:
    """Every strategy, and the first sentence of what it says of itself."""
    columns = (Column("strategy", numeric=False), Column("how it plans", numeric=False))
    rows = [
        TextRow((f"`{name}`", _first_sentence(STRATEGIES[name].plan)))
        for name in sorted(STRATEGIES)
    ]
    bound = (
        "no plan: the paper's oracle. The best measured split of every op alone, without data "
        "sharing. Plans that fuse ops, or find their data in caches, may beat it"
    )
    rows.append(TextRow((f"`{ideal.NAME}`", bound)))
    return TextTable("Strategies", columns, (TextSection("", tuple(rows)),))


#: Tables of what there is, which need no result file.
LISTS: Mapping[str, Callable[[], TextTable]] = {
    "models": models_content,
    "strategies": strategies_content,
    "variants": variants_content,
    **TABLES,
}


def pages() -> list[Path]:
    """The pages at the top, README.md first, and those of docs/."""
    top = sorted(ROOT.glob("*.md"), key=lambda page: (page.stem != "README", page.stem))
    return [*top, *sorted(DOCS.rglob("*.md"))]


def rendered(page: Path) -> str:
    """What a page should hold."""
    if page == CLI_PAGE:
        return cli_reference()
    if page == API_PAGE:
        return api_reference()
    text = page.read_text(encoding="utf-8")
    return MARKED.sub(lambda match: match[1] + _part(match) + match["end"], text)


def drawn(page: Path) -> dict[Path, str]:
    """The pictures that a page should have, by their files."""
    found = {}
    for match in MARKED.finditer(page.read_text(encoding="utf-8")):
        if match["kind"] == "paper" and (svg := paper_picture(match["what"])):
            found[page.parent / "paper" / f"{match['what']}.svg"] = svg
        elif match["kind"] == "picture":
            view, name, *names = match["what"].split()
            if files := _files(names):
                results = [load_curve(file) for file in files]
                title, draw = PICTURES[view]
                found[page.parent / name] = stand_alone(draw(results, title))
    return found


def is_current(picture: Path, content: str) -> bool:
    """Whether a picture shows what it should."""
    return picture.is_file() and picture.read_text(encoding="utf-8") == content


def _part(match: re.Match[str]) -> str:
    if match["kind"] == "table":
        return _generated(match["what"])
    if match["kind"] == "paper":
        return f"\n{paper_content(match['what'])}\n\n"
    view, name, *names = match["what"].split()
    if view not in PICTURES:
        raise SystemExit(f"<!-- picture: {view} --> must be one of {', '.join(PICTURES)}.")
    return f"\n![{PICTURES[view][0]}]({name})\n\n" if _files(names) else _missing(view, names)


def _missing(view: str, names: Sequence[str]) -> str:
    script = MAKERS.get(view, "scripts/reference_results.sh")
    return f"\n{MISSING.format(script=script, file=names[0])}\n\n"


def _files(names: Sequence[str]) -> list[Path]:
    """The result files that there are."""
    return [file for name in names for file in sorted(DOCS.glob(name))]


def _generated(what: str) -> str:
    view, *names = what.split()
    if view in LISTS and not names:
        return f"\n{markdown(LISTS[view]())}\n\n"
    if view == KEYS and len(names) == 1:
        return f"\n{markdown(keys_content(names[0]))}\n\n"
    if view not in {*VIEWS, *OF_FILES} or not names:
        known = ", ".join([*LISTS, *(f"{name} FILE" for name in (*VIEWS, *OF_FILES))])
        raise SystemExit(f"<!-- table: {what} --> must be one of {known}.")
    files = _files(names)
    if not files:
        return _missing(view, names)
    if view in OF_FILES:
        return f"\n{markdown(OF_FILES[view](files))}\n\n"
    table, by = VIEWS[view]([load_curve(file) for file in files]), BY.get(view, "part")
    return f"\n{markdown(table, by=by)}\n\n"


def cli_reference() -> str:
    """docs/reference/cli.md: every command with its arguments and options, from the typer app."""
    load_installed()
    top = typer.main.get_command(app)
    parts = [
        "# Commands",
        "Generated by `make docs`; `--help` of a command prints its part, with all examples. "
        "Results go to\nstdout, progress and messages to stderr "
        "([exit codes](environment.md#exit-codes)). An asterisk marks a\nrequired option.",
        "These options stand before a command's name:",
        *_options(top),
        "## Common options",
        "Commands that print a result take `--json`. Those that write no other file take "
        "`--output`, too.",
    ]
    commands = list(_commands(top, "codl"))
    common = _common(command for _, command in commands)
    planning = {cells for cells in common if PLAN_OPTIONS & {*re.findall(r"--[\w-]+", cells[0])}}
    parts.append(_table(map(TextRow, sorted(common - planning))))
    parts += ["### Options of a plan", _table(map(TextRow, sorted(planning)))]
    for path, command in commands:
        parts += [f"## {path}", *_described(command, common)]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with all words of its name."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _common(commands: Iterable[Any]) -> set[tuple[str, ...]]:
    """Cells of the arguments and options that several commands share."""
    every = [_parameter(p).cells for command in commands for p in _shown(command)]
    return {cells for cells, n in Counter(every).items() if n >= SHARED_BY}


def _shown(command: Any) -> list[Any]:
    """A command's arguments and options, the arguments first."""
    shown = [p for p in command.params if p.name != "help" and not p.hidden]
    return sorted(shown, key=lambda p: p.param_type_name != "argument")


def _described(command: Any, common: Collection[tuple[str, ...]]) -> Iterator[str]:
    text, *examples = EXAMPLES.split(inspect.cleandoc(command.help or ""))
    for paragraph in MARKUP.sub("", text).strip().split("\n\n"):
        yield "\n".join(wrap(paragraph, 100, break_long_words=False, break_on_hyphens=False))
    if examples:
        lines = [line.strip() for line in examples[0].strip().splitlines()][:MOST_EXAMPLES]
        yield "\n".join(["```console", *(f"$ {line}" for line in lines), "```"])
    yield from _options(command, common)


def _options(command: Any, common: Collection[tuple[str, ...]] = ()) -> Iterator[str]:
    """A command's own arguments and options as a table, and the names of its common ones."""
    every = [(parameter, _parameter(parameter)) for parameter in _shown(command)]
    if own := [row for _, row in every if row.cells not in common]:
        yield _table(own)
    shared = {_longest_name(parameter): None for parameter, row in every if row.cells in common}
    plans = shared.keys() >= PLAN_OPTIONS
    left_out = RESULT_OPTIONS | (PLAN_OPTIONS if plans else set())
    names = [f"`{name}`" for name in shared if name not in left_out]
    if plans:
        names.append("[all of a plan](#options-of-a-plan)")
    if names:
        line = f"[Common options](#common-options): {', '.join(names)}."
        yield "\n".join(wrap(line, 100, break_long_words=False, break_on_hyphens=False))


def _table(rows: Iterable[TextRow]) -> str:
    columns = tuple(Column(name, numeric=False) for name in ("option", "what it is"))
    return markdown(TextTable("", columns, (TextSection("", tuple(rows)),)))


def _longest_name(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    return parameter.name.upper() if is_argument else max(parameter.opts, key=len)


def _parameter(parameter: Any) -> TextRow:
    """An argument or an option; its value in capitals."""
    if parameter.param_type_name == "argument":
        name = f"`{parameter.name.upper()}`"
    else:
        names = ", ".join(sorted(parameter.opts, key=len))
        off = "".join(f" / {name}" for name in parameter.secondary_opts)
        value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
        name = f"`{names}{off}{value}`"
    text = MARKUP.sub("", filled(parameter.help or ""))
    for listed, link in LINKED:
        text = listed.sub(link, text)
    value = parameter.default
    if parameter.required:
        name += "\\*"
    elif parameter.show_default and value not in (None, False, "", ()):
        text += f" Default: {'on' if value is True else f'`{value}`'}."
    return TextRow((name, text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, list what is stale")
    check = parser.parse_args().check
    stale = [
        p
        for p in dict.fromkeys([*pages(), CLI_PAGE, API_PAGE])
        if not p.is_file() or p.read_text() != rendered(p)
    ]
    content = {page: rendered(page) for page in dict.fromkeys(stale)}
    pictures = [pair for page in pages() for pair in drawn(page).items()]
    content |= {path: svg for path, svg in pictures if not is_current(path, svg)}
    for path, text in content.items():
        print(f"{path.relative_to(ROOT)} {'is stale' if check else 'rewritten'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and content:
        sys.exit("`make docs` renders them again.")


if __name__ == "__main__":
    main()
