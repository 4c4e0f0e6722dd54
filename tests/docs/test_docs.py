"""The docs: what is generated is current, and commands, files and modules that are named exist."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from codl.cli.app import app

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import render_docs  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FENCED = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(codl (?!\.\.\.)[^`]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
#: What a page says of a result file whose figures its text quotes: the file, and its commit.
FIGURES = re.compile(r"<!-- figures: (?P<file>\S+) (?P<commit>\w+) -->")
FILE = re.compile(r"`((?:codl|scripts|docs|tests)/[\w/.-]+\.\w+)`")
MODULE = re.compile(r"`(codl(?:\.\w+)+)`")
#: What follows a command in a shell, and is none of its words.
SHELL = {"|", ">", "&&", ";", "&"}


PAGES: list[Path] = render_docs.pages()


def _id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _blocks(text: str) -> Iterator[str]:
    """The `codl` command lines of a page's code blocks, continued ones in one line."""
    for block in FENCED.finditer(text):
        if block["kind"] in ("", "console", "sh"):
            lines = block["text"].replace("\\\n", " ").splitlines()
            stripped = (line.strip().removeprefix("$ ") for line in lines)
            yield from (line for line in stripped if line.startswith("codl "))


@cache
def _top() -> Any:
    return typer.main.get_command(app)


def _command(words: list[str]) -> Any:
    """The command that a line names; its words are taken off the list."""
    command = _top()
    while hasattr(command, "list_commands") and words and not words[0].startswith("-"):
        names = command.list_commands(typer.Context(command))
        assert words[0] in names, f"{words[0]!r} is none of {', '.join(names)}"
        command = command.get_command(typer.Context(command), words.pop(0))
    return command


def _check_line(line: str) -> None:
    """Raise where a line would be refused for its command, options or number of arguments."""
    words = shlex.split(line, comments=True)[1:]
    end = next((at for at, word in enumerate(words) if word in SHELL), len(words))
    words = words[:end]
    command = _command(words)
    command.make_parser(typer.Context(command)).parse_args(words)


def _check_mention(line: str) -> None:
    """The same of a command in a sentence, which may leave arguments out."""
    words = [word for word in line.split()[1:] if word != "..."]
    command = _command(words)
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    given = {word.split("=")[0] for word in words if word.startswith("-")}
    assert given <= known | {"--help"}, f"{line!r}: {given - known}"


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_generated_parts_are_current(page: Path) -> None:
    stale = f"{_id(page)} differs from what it is made of: run `make docs`."
    assert page.read_text() == render_docs.rendered(page), stale


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_pictures_are_current(page: Path) -> None:
    drawn = render_docs.drawn(page).items()
    stale = [_id(path) for path, svg in drawn if not render_docs.is_current(path, svg)]
    assert stale == [], "run `make docs`"


def _stale_figures(text: str, docs: Path) -> list[str]:
    """The result files that are newer than the figures that a page quotes of them."""
    marks = [(match["file"], match["commit"]) for match in FIGURES.finditer(text)]
    return [
        name for name, commit in marks if json.loads((docs / name).read_text())["commit"] != commit
    ]


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_figures_in_a_text_are_of_their_file(page: Path) -> None:
    text = FENCED.sub("", page.read_text())
    assert _stale_figures(text, DOCS) == [], "write the text anew, and the commit"


def test_pages_have_what_is_looked_for() -> None:
    """Each of them alone may have none."""
    text = "\n".join(page.read_text() for page in PAGES)
    assert len(list(_blocks(text))) > 80
    assert all(len(form.findall(text)) > 10 for form in (INLINE, LINK, FILE, MODULE))
    assert sum(len(render_docs.drawn(page)) for page in PAGES) >= 1


def _check_commands(text: str) -> None:
    for line in _blocks(text):
        _check_line(line)
    for match in INLINE.finditer(text):
        _check_mention(" ".join(match[1].split()))


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_commands_exist(page: Path) -> None:
    _check_commands(page.read_text())


def test_the_map_of_the_package_lists_the_layers_in_order() -> None:
    layers = (ROOT / "pyproject.toml").read_text().partition("layers = [")[2].partition("]")[0]
    text = (DOCS / "architecture.md").read_text().partition("## Map of the package")[2]
    rows = re.findall(r"^\| (`.*?) \|", text.partition("## ")[0], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert named == re.findall(r"codl\.(\w+)", layers)


def test_the_commands_of_reference_results_exist() -> None:
    script = (ROOT / "scripts" / "reference_results.sh").read_text()
    assert len(list(_blocks(f"```sh\n{script}```"))) >= 8
    for line in _blocks(f"```sh\n{script}```"):
        _check_line(line)


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_files_and_modules_exist(page: Path) -> None:
    text = page.read_text()
    paths = [page.parent / target for target in LINK.findall(text)]
    paths += [ROOT / name for name in FILE.findall(text)]
    assert [path for path in paths if not path.exists()] == []
    assert [name for name in MODULE.findall(text) if not _is_there(name)] == []


def _is_there(dotted: str) -> bool:
    """Whether a module, or an attribute of one, exists; nothing is imported that is not found."""
    module, _, attribute = dotted.rpartition(".")
    if (ROOT / dotted.replace(".", "/")).is_dir():
        return True
    if (ROOT / (dotted.replace(".", "/") + ".py")).is_file():
        return True
    return hasattr(importlib.import_module(module), attribute)


#: Those of the paper's figures are checked by tests/docs/test_paper.py.
RESULTS = sorted(
    path for path in (DOCS / "results").glob("*.json") if not path.name.startswith("paper-")
)


@pytest.mark.parametrize("path", RESULTS, ids=_id)
def test_results_are_what_a_kept_command_writes(path: Path) -> None:
    assert json.loads(path.read_text())["commit"].isalnum(), "of a tree that was changed"
    render_docs.load_curve(path)
    soc = path.stem.rpartition("-")[2]
    makers = ("reference_results.sh", "bench/stage.py")
    script = "".join((ROOT / "scripts" / name).read_text() for name in makers)
    script += (ROOT / "Makefile").read_text()
    names = {path.name, *(path.name.replace(f"-{soc}.", f"-{n}.") for n in ("$name", "$$gpu"))}
    names |= {re.sub(r"^package-\w+-", "package-$model-", name) for name in names}
    assert any(name in script for name in names), f"no command makes {path.name}"
