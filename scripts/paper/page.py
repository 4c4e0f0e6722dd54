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
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from figure import PaperFigure, frame_of, read

from codl.provenance import ROOT

PAGE = ROOT / "docs" / "paper.md"
PICTURES = ROOT / "docs" / "paper"
NAMES = ("fig05", "fig06", "speedups", "predictors", "fig17", "fig20", "costs")
MARKED = re.compile(r"(<!-- paper: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
#: What a picture shows, in words: not every matplotlib draws it in the same letters.
DESCRIPTION = re.compile(r"<desc[^>]*>.*?</desc>", re.DOTALL)
FIGURES: Mapping[str, PaperFigure] = {name: import_module(name).FIGURE for name in NAMES}


def rendered(text: str) -> str:
    """The page with every figure as its files have it."""
    return MARKED.sub(lambda match: f"{match[1]}\n{_part(match[2])}\n\n{match[3]}", text)


def _part(name: str) -> str:
    figure, contents = FIGURES[name], read(name)
    if not contents:
        return f"Not measured yet: `python scripts/paper/{name}.py --help` says how."
    lines = [f"![{figure.title}](paper/{name}.svg)", ""] if figure.draw else []
    lines += [figure.table(frame_of(contents)).to_markdown(), ""]
    lines += [
        f"- {each['soc']['name']}: {each['soc']['description']}. `{each['made_by']}`, "
        f"{each['created'][:10]}, codl {each['commit']}."
        for each in contents
    ]
    return "\n".join(lines)


def pictures() -> dict[Path, str]:
    """The pictures of all figures that have result files, by their paths."""
    return {
        PICTURES / f"{name}.svg": figure.svg(frame_of(contents))
        for name, figure in FIGURES.items()
        if figure.draw and (contents := read(name))
    }


def is_current(path: Path, content: str) -> bool:
    now = path.read_text(encoding="utf-8") if path.is_file() else ""
    return DESCRIPTION.findall(now) == DESCRIPTION.findall(content)


def is_written(path: Path, content: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == content


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, list what is stale")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    is_done = is_current if check else is_written
    content = {path: svg for path, svg in pictures().items() if not is_done(path, svg)}
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
