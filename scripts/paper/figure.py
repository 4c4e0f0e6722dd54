"""What the scripts of the paper's figures share: options, result files, tables, pictures.

A script makes rows for one SoC and writes them with `-o`; scripts/render_docs.py draws all files of
a figure, `docs/results/paper-NAME-SOC.json`, and puts picture and tables into docs/paper.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pandas as pd
import pictures  # which finds the modules of scripts/
from markdown_tables import markdown
from standalone import stand_alone

from codl.errors import CodlError
from codl.files import ROOT, now, provenance
from codl.ir import Op, to_text
from codl.ir.records import soc as socs
from codl.report.text_table import Column, TextRow, TextSection, TextTable, digits

Row: TypeAlias = Mapping[str, Any]
RESULTS = ROOT / "docs" / "results"
#: The paper's models.
MODELS = ("retinaface", "yolov2", "vgg16", "posenet", "fast_style_transfer")


@dataclass(frozen=True)
class PaperFigure:
    """One figure or table of the paper.

    `rows` makes what a result file holds of a SoC. `table` takes the rows of all files in one
    frame, in which `soc` and `source` say what each is from.
    """

    name: str
    title: str
    rows: Callable[[argparse.Namespace], Iterable[Row]]
    table: Callable[[pd.DataFrame], TextTable]
    options: Callable[[argparse.ArgumentParser], object]

    def svg(self, contents: Sequence[Mapping[str, Any]]) -> str:
        """The picture as a file of its own; empty where a table says it all."""
        picture = pictures.of_all(contents, self.title)
        return stand_alone(picture) if picture else ""

    def main(self, documented: str | None) -> None:
        """The script: rows of a SoC to a file, a picture, or a table on stdout."""
        parser = argparse.ArgumentParser(
            description=documented, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--soc", default="host", help="a name of `codl soc list`")
        self.options(parser)
        parser.add_argument("--json", action="store_true", help="the rows to stdout")
        parser.add_argument("-o", "--output", type=Path, help="a result file, for render_docs.py")
        parser.add_argument("--svg", type=Path, help="a picture of this SoC alone")
        try:
            self._run(parser.parse_args())
        except CodlError as error:
            sys.exit(f"Error: {error}")

    def _run(self, options: argparse.Namespace) -> None:
        rows = list(self.rows(options))
        content = {
            "command": "paper",
            "figure": self.name,
            **provenance(),
            "created": now(),
            "made_by": made_by(self.name, sys.argv[1:]),
            "soc": {"name": options.soc, "description": described(options)},
            "rows": rows,
        }
        if options.output:
            write(options.output, json.dumps(content, separators=(",", ":")) + "\n")
        if options.svg:
            write(options.svg, self.svg([content]))
        frame = frame_of([content])
        print(json.dumps(content) if options.json else markdown(self.table(frame), by="SoC"))


def made_by(name: str, arguments: Sequence[str]) -> str:
    """The command line without folders of this machine and what only says where things go."""
    shown = [re.sub(r"^/.*/", "", argument) for argument in arguments if argument != "--json"]
    for option in ("-o", "--output", "--svg"):
        while option in shown:
            del shown[shown.index(option) : shown.index(option) + 2]
    return shlex.join(["python", f"scripts/paper/{name}.py", *shown])


def described(options: argparse.Namespace) -> str:
    """What was measured, in a few words: as its file of results says, or the SoC's own."""
    soc = getattr(options, "described", None) or socs.load(options.soc)
    about = soc.description.partition(":")[0] or soc.name
    return f"{about} ({soc.cpu.name})" if soc.cpu and soc.cpu.name not in about else about


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def read(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The result files of a figure, in the order of their names."""
    return [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob(f"paper-{name}-*.json"))
    ]


def frame_of(contents: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of all files, each with the SoC's name."""
    frames = [pd.DataFrame(each["rows"]).assign(soc=each["soc"]["name"]) for each in contents]
    return pd.concat(frames, ignore_index=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> TextTable:
    """Numbers to three digits; the first column is a SoC, and begins a section where it changes."""
    sections: dict[str, list[TextRow]] = {}
    for soc, *cells in rows:
        shown = tuple(_text(cell) for cell in cells)
        sections.setdefault(str(soc), []).append(TextRow(shown))
    heads = tuple(Column(name, numeric=at > 0) for at, name in enumerate(columns))
    parts = tuple(TextSection(name, tuple(of_soc)) for name, of_soc in sections.items())
    return TextTable(title, heads, parts)


def shows_models(every: pd.DataFrame, of_model: pd.DataFrame) -> bool:
    """Not of replayed phones in a table of several SoCs: there their means say it."""
    return every.soc.nunique() == 1 or not of_model.source.str.contains("replayed").any()


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return "" if isnan(cell) else digits(cell)
    return str(cell)


def plain(value: Any) -> Any:
    """A Python number of one of NumPy's."""
    return value.item() if isinstance(value, np.generic) else value


def write_ops(path: Path, ops: Iterable[Op], soc: str, options: str) -> NoReturn:
    """Ops for a collection; the command that measures them to stdout, and the script is done."""
    write(path, "op\n" + "".join(f'"{to_text(op)}"\n' for op in ops))
    print(f"codl collect --soc {soc} --resume --ops {path} {options}")
    sys.exit()


def mean(values: Iterable[float]) -> float:
    """Geometric; of ratios."""
    return geometric_mean(list(values))
