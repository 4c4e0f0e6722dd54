"""The docs: what is generated is current, what is named exists, and scripts and notebooks run."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import nbformat
import pytest
import render_docs
import typer
from nbclient import NotebookClient

from codl.cli.app import app
from codl.ir.records.soc import Soc
from codl.machine.placement import Placement

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


#: Those of the paper's figures are checked in tests/docs/test_gains.py.
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


SCRIPTS = sorted((ROOT / "scripts").rglob("*.py"))


def imported(script: Path) -> Iterator[tuple[str, str]]:
    """Modules of codl, its plugins or beside a script, and the names imported from each."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_imports_what_there_is(script: Path) -> None:
    beside = {path.stem for path in script.parent.glob("*.py")}
    names = list(imported(script))
    assert names or script.name == "__init__.py"
    for module, name in names:
        if (
            module.startswith("codl")
            and name
            and not hasattr(importlib.import_module(module), name)
        ):
            importlib.import_module(f"{module}.{name}")
        elif module in beside and name:
            tree = ast.parse((script.parent / f"{module}.py").read_text())
            assert name in ast.unparse(tree), f"{script}: {module} has no {name}"


def test_bootstrap_leaves_what_a_link_leads_to(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / ".venv"
    shared.mkdir()
    (shared / "kept").write_text("of somebody else")
    link.symlink_to(shared)
    command = [sys.executable, str(ROOT / "scripts" / "bootstrap.py"), str(link)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert f"{link} is a link to {shared}" in ran.stderr
    assert f"rm {link}" in ran.stderr
    assert (shared / "kept").read_text() == "of somebody else"


TROUBLES = DOCS / "reference" / "troubleshooting.md"
#: The first cell of a row, as far as it is quoted.
QUOTED = re.compile(r"^\| `([^|]+?)`[^`|]*(?:`[^`|]*`)?[^`|]* \|", re.MULTILINE)


def _texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a module; what an f-string fills in, and what follows it, is apart."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_message_is_one_of_codls() -> None:
    files = [path for name in ("codl", "contrib") for path in (ROOT / name).rglob("*.py")]
    texts = [text for path in files for text in _texts(ast.parse(path.read_text()))]
    messages = QUOTED.findall(TROUBLES.read_text())
    assert len(messages) > 20
    for message in messages:
        pieces = [piece.strip() for piece in message.split("...") if piece.strip(" ;:,.")]
        assert any(all(piece in text for piece in pieces) for text in texts), message


ROW = re.compile(r"^\| `([\w.]+)` \|", re.MULTILINE)


def keys(kind: Any, prefix: str = "") -> Iterator[str]:
    """The keys of a class, and those of the classes that it holds, lists or not."""
    hints = get_type_hints(kind)
    for own in fields(kind):
        if kind is not Soc or own.name not in ("cpu", "gpu"):
            yield prefix + own.name
        hint = hints[own.name]
        for inner in filter(is_dataclass, (hint, *get_args(hint))):
            yield from keys(inner, f"{prefix}{own.name}.")


def listed(heading: str) -> list[str]:
    page = (DOCS / "reference" / "soc.md").read_text()
    section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    return ROW.findall(section)


def test_every_key_of_a_file_has_its_line() -> None:
    assert sorted(listed("Keys of NAME.yaml")) == sorted(keys(Soc))
    assert sorted(listed("Keys of NAME.local.yaml")) == sorted(keys(Placement))


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks_which_a_page_names() -> None:
    text = (ROOT / "docs" / "howto" / "python.md").read_text()
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]
    assert all(f"notebooks/{path.name}" in text for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_has_its_picture(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert f"](pictures/{path.stem}.png)" in notebook.cells[0].source
    picture = path.parent / "pictures" / f"{path.stem}.png"
    assert picture.is_file(), f"`python scripts/notebook_pictures.py {path.stem}` draws it"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    for cell in notebook.cells:
        assert not cell.metadata
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_draws(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=where).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert sum("image/png" in out.get("data", {}) for out in outputs) >= 3
    assert not [out.text for out in outputs if out.get("name") == "stderr"]
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install --group docs")
    folder = tmp_path_factory.mktemp("site")
    words = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "doctrees")]
    run = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(DOCS), str(folder / "html")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return folder / "html"


def test_it_has_every_page(site: Path) -> None:
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md")]
    assert len(pages) > 20
    assert [page for page in pages if not (site / page.with_suffix(".html")).is_file()] == []


def test_a_word_of_the_glossary_is_told_at_its_first_use(site: Path) -> None:
    text = (site / "concepts" / "coexecution.html").read_text()
    (halo,) = re.findall(r'<a class="word[^>]*title="([^"]*)"[^>]*>halo</a>', text)
    assert f"| halo | {halo} |" in (DOCS / "concepts" / "glossary.md").read_text()
    assert 'class="word' not in (site / "concepts" / "glossary.html").read_text()


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    text = (site / "index.html").read_text()
    loaded = [part.split('"')[0] for part in text.split('src="')[1:]]
    loaded += [part.split('"')[0] for part in text.split('rel="stylesheet" type="text/css" href="')]
    assert len(loaded) > 2
    assert [address for address in loaded if address.startswith(("http:", "https:", "//"))] == []
