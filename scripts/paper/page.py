"""Draws the paper's figures from their result files, and puts them and their tables into docs.

    python scripts/paper/page.py            # docs/paper.md, docs/paper/*.svg
    python scripts/paper/page.py --check    # write nothing; exit code 1 where something is stale

A figure stands in docs/paper.md between `<!-- paper: NAME -->` and `<!-- end -->`. Result files are
`docs/results/paper-NAME-SOC.json`, which `python scripts/paper/NAME.py --soc SOC -o FILE` writes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from figure import PaperFigure, frame_of, read

from codl.provenance import ROOT
from codl.report import op_pictures

PAGE = ROOT / "docs" / "paper.md"
PICTURES = ROOT / "docs" / "paper"
NAMES = ("fig05", "fig06", "speedups", "predictors", "fig17", "fig20", "costs")
MARKED = re.compile(r"(<!-- paper: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
FIGURES: Mapping[str, PaperFigure] = {name: import_module(name).FIGURE for name in NAMES}


def rendered(text: str) -> str:
    """The page with every figure as its files have it."""
    return MARKED.sub(lambda match: f"{match[1]}\n{_part(match[2])}\n\n{match[3]}", text)


def _part(name: str) -> str:
    figure, contents = FIGURES[name], read(name)
    if not contents:
        return f"Not measured yet: `python scripts/paper/{name}.py --help` says how."
    lines = []
    if name in op_pictures.SUMMARIES:
        lines += [f"![{figure.title}](paper/{name}.svg)", ""]
    elif name in op_pictures.FIGURES:
        of = contents[0]["soc"]["name"]
        lines += [f"![{figure.title}, of {of}](paper/{name}.svg)", "", f"The picture is of `{of}`."]
        lines.append("")
    return "\n".join([*lines, figure.table(frame_of(contents)).to_markdown(), "", *_made(contents)])


def _made(contents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The commands behind the files; one for several SoCs where they differ in the name alone."""
    socs: dict[str, list[str]] = {}
    for each in contents:
        name = each["soc"]["name"]
        command = each["made_by"].replace(name, "SOC")
        socs.setdefault(f"`{command}` ({each['created'][:10]}, {each['commit']})", []).append(name)
    for command, names in socs.items():
        told = command if len(names) > 1 else command.replace("SOC", names[0])
        yield f"- {', '.join(names)}: {told}"


def pictures() -> dict[Path, str]:
    """The pictures of all figures that have result files, by their paths."""
    every = {name: figure.svg(read(name)) for name, figure in FIGURES.items() if read(name)}
    return {PICTURES / f"{name}.svg": svg for name, svg in every.items() if svg}


def is_current(path: Path, content: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == content


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, list what is stale")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    content = {path: svg for path, svg in pictures().items() if not is_current(path, svg)}
    if (page := rendered(before)) != before:
        content[PAGE] = page
    for path, text in content.items():
        print(f"{path.relative_to(ROOT)} {'is stale' if check else 'rewritten'}")
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and content:
        sys.exit("`make paper` draws them again.")


if __name__ == "__main__":
    main()
