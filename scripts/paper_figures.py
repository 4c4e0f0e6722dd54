"""The paper's figures and tables for docs/paper.md, which scripts/render_docs.py puts there.

`python scripts/paper/NAME.py --soc SOC -o docs/results/paper-NAME-SOC.json` writes a result file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "paper"))
from figure import PaperFigure, frame_of, read
from markdown_tables import markdown
from pictures import FIGURES as DRAWN
from pictures import SUMMARIES

NAMES = ("fig05", "fig06", "speedups", "predictors", "fig17", "fig20", "costs")
FIGURES: Mapping[str, PaperFigure] = {name: import_module(name).FIGURE for name in NAMES}


def paper_content(name: str) -> str:
    """A figure's picture and table, and the commands behind them."""
    figure, contents = FIGURES[name], read(name)
    if not contents:
        return f"Not measured yet: `python scripts/paper/{name}.py --help` says how."
    lines = []
    if name in SUMMARIES:
        lines += [f"![{figure.title}](paper/{name}.svg)", ""]
    elif name in DRAWN:
        of = contents[0]["soc"]["name"]
        lines += [f"![{figure.title}, of {of}](paper/{name}.svg)", "", f"The picture is of `{of}`."]
        lines.append("")
    return "\n".join(
        [*lines, markdown(figure.table(frame_of(contents)), by="SoC"), "", *_made(contents)]
    )


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


def paper_picture(name: str) -> str:
    """A figure's picture; empty where a table says it all, or nothing was measured."""
    contents = read(name)
    return FIGURES[name].svg(contents) if contents else ""
