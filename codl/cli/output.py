"""Output of every command: results to stdout, progress to stderr, errors as one message."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console, RenderableType
from rich.text import Text

from codl import files
from codl.cli.progress import ended, is_quiet, say
from codl.cli.progress import note as note
from codl.cli.progress import progress as progress
from codl.cli.progress import stage as stage
from codl.files import printable
from codl.jobs.job import Reporter
from codl.jobs.options import option, result_file
from codl.provenance import provenance

JsonOption = Annotated[bool, option("--json", help="Print the result as JSON.")]
OutputOption = Annotated[
    Path | None,
    option(
        "-o",
        "--output",
        help="Write the result to this file as JSON, for `codl report`.",
        read=lambda text: result_file(Path(text)),
    ),
]
PlacementOption = Annotated[
    bool, option("--placement", help="Show where every op runs, not only a summary.")
]

#: Tables are as wide as the terminal, as COLUMNS says, or as this.
WIDTH = 160
_width = None if Console().is_terminal or "COLUMNS" in os.environ else WIDTH
#: Brackets and colons of a name or a value are none of rich's: what has a style is a `Text`.
STDOUT = Console(width=_width, markup=False, emoji=False)


def emit(
    command: str,
    result: dict[str, Any],
    render: Callable[[], RenderableType],
    *,
    as_json: bool,
    output: Path | None = None,
) -> None:
    """Print a result, as a table or as JSON, and write it to a file where one is given."""
    ended()
    text = document(command, result)
    if output is not None:
        files.write(output, text + "\n")
    if as_json:
        print(text)
    else:
        STDOUT.print(render())


def document(command: str, result: dict[str, Any]) -> str:
    """A result of a command as JSON, with where it comes from."""
    content = {"command": command, "version": 1, **provenance(), **result}
    return json.dumps(_finite(content), indent=1)


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON has not, such as the error of a NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def tell(text: str) -> None:
    """What must be known about the command or its result, such as what was taken or left out."""
    if not is_quiet():
        say(Text(printable(text), style="dim"))


def warn(text: str) -> None:
    """Something that went wrong and did not stop the command."""
    say(Text.assemble(("Warning:", "bold yellow"), " ", printable(text)))


def fail(text: str) -> None:
    """Why a command ends."""
    say(Text.assemble(("Error:", "bold red"), " ", printable(text)))


class Terminal(Reporter):
    """Shows the progress of jobs on stderr."""

    note = staticmethod(note)
    stage = staticmethod(stage)
    warn = staticmethod(warn)
    progress = staticmethod(progress)


TERMINAL = Terminal()
