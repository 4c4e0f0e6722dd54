"""`codl agent`: the side of a target that measures and runs, and how it gets on a device."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from time import perf_counter
from typing import Annotated, Any

import typer

from codl.cli.commands import LazyCommand, with_options
from codl.cli.output import Output
from codl.errors import CodlError
from codl.report.text_table import TextTable
from codl.targets.connect import machine_of
from codl.targets.install import PURPOSES, Installed, install
from codl.targets.python_build import BRING, is_file_of_build

agent_app = typer.Typer(rich_markup_mode="rich")


@agent_app.callback(invoke_without_command=True)
def serve(context: typer.Context) -> None:
    """Measure and run for another codl, which speaks frames over standard input and output.

    Targets start it: `--serial process` on this machine, other serials on a device. It executes
    nothing that it is sent but kernels and nets. `python -m codl.targets.agent` is the same without
    this command line, and needs no extra.
    """
    from codl.targets.agent import main

    if context.invoked_subcommand is None:
        raise typer.Exit(main(perf_counter()))


@agent_app.command("install", cls=LazyCommand)
@with_options
def install_agent(
    out: Output,
    serial: Annotated[str, typer.Option("--serial", help="A device over adb or ssh.")],
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="[COMMAND|FILE]",
            help="The command of Python 3.10 or later there; searched by default. A file of "
            f"python.org's builds for Android is sent there; {BRING!r} downloads the matching one.",
        ),
    ] = None,
    packages: Annotated[
        bool,
        typer.Option(
            "--packages/--no-packages",
            help="Send missing packages to the agent's folder; pip finds their wheels.",
        ),
    ] = True,
) -> None:
    """The device needs Python 3.10 or later with NumPy, and ncnn for its CPU; msgspec and pyopencl
    make it faster. Missing packages with wheels for the device go to the agent's folder, with
    --python Python too; nothing is installed system-wide. Files that are there already are not sent
    again.

    [dim]Examples:[/dim]
    codl agent install --serial ssh://pi@board.local
    codl agent install --serial R58M123ABC --python "run-as com.termux files/usr/bin/python3"
    codl agent install --serial R58M123ABC --python python-3.14.7-aarch64-linux-android.tar.gz
    """
    shell = machine_of(serial, "take an agent").shell
    if shell is None:
        raise CodlError(f"{serial!r} is this machine, which needs no agent installed.")
    done = install(shell(serial), _python(python), packages=packages)
    out.emit("agent install", _content(done), lambda: _table(serial, done))


def _python(text: str | None) -> list[str] | None:
    """A command by its words; a file may have blanks in its name."""
    if text is None or is_file_of_build(text):
        return [text] if text else None
    return shlex.split(text)


def _content(done: Installed) -> dict[str, Any]:
    checked = done.checked
    values = {f: getattr(checked, f) for f in checked.__struct_fields__}
    missing = [
        {"package": p, "needed_for": why, "fix": done.fixes.get(p, "")}
        for p, why in checked.missing.items()
    ]
    return {**asdict(done), "checked": values, "missing": missing}


def _table(serial: str, done: Installed) -> TextTable:
    checked, rows = done.checked, []
    for name, version in checked.packages.items():
        place = "in the agent's folder" if name in checked.brought else ""
        note = place if version else done.fixes.get(name, "")
        rows.append((name, version or "missing", PURPOSES.get(name, ""), note))
    state = "put there now" if done.is_new else "there before"
    caption = (
        f"{serial}: {done.path}, {done.bytes} bytes, {state}; Python {checked.python}, "
        f"{checked.machine}"
    )
    heads = ("package", "version", "needed for", "")
    return TextTable.plain("Packages there", heads, rows, [caption])
