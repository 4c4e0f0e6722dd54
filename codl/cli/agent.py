"""`codl agent`: the side of a target that measures and runs, and how it gets on a device."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from codl.cli.adapter import with_options
from codl.cli.commands import LazyCommand
from codl.cli.output import JsonOption, OutputOption, emit
from codl.errors import CodlError
from codl.report.text_table import Table
from codl.targets.connect import machine_of
from codl.targets.install import PURPOSES, Installed, install
from codl.targets.python_build import BRING, is_file_of_build

agent_app = typer.Typer(rich_markup_mode="rich")
PythonOption = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="[COMMAND|FILE]",
        help="How Python 3.10 or later is started there; looked for by default. A file of "
        "python.org's builds for Android is put there; without a value, the one that fits is "
        "fetched.",
    ),
]
PackagesOption = Annotated[
    bool,
    typer.Option(
        "--packages/--no-packages", help="Bring packages that are missing, in the agent's folder."
    ),
]
WheelsOption = Annotated[
    Path | None,
    typer.Option(
        "--wheels",
        exists=True,
        file_okay=False,
        help="A folder with the wheels of those packages; by default pip finds them.",
    ),
]


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


class InstallCommand(LazyCommand):
    """`--python` may stand without a value, which is the word for a build that fits."""

    def make_parser(self, ctx: Any) -> Any:
        parser = super().make_parser(ctx)
        parse = parser.parse_args
        parser.parse_args = lambda args: parse(_with_value(args))  # type: ignore[method-assign]
        return parser


def _with_value(arguments: list[str]) -> list[str]:
    """The same words, with a value behind each `--python` that has none."""
    values = [*arguments[1:], "-"]
    return [
        word
        for argument, value in zip(arguments, values, strict=True)
        for word in (
            argument,
            *([BRING] if argument == "--python" and value.startswith("-") else []),
        )
    ]


@agent_app.command("install", cls=InstallCommand)
@with_options
def install_agent(
    serial: Annotated[str, typer.Option("--serial", help="A device over adb or ssh.")],
    python: PythonOption = None,
    packages: PackagesOption = True,
    wheels: WheelsOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Put the agent of this codl on a device, as one file, with the packages that are missing.

    The device needs Python 3.10 or later with NumPy, and ncnn for its CPU; msgspec and pyopencl
    make it faster. Those that it lacks are put in the agent's own folder where there are wheels for
    it, and with --python so is Python; nothing is installed there. What is there already is not
    sent again.

    [dim]Examples:[/dim]
    codl agent install --serial ssh://pi@board.local
    codl agent install --serial R58M123ABC
    codl agent install --serial R58M123ABC --python "run-as com.termux files/usr/bin/python3"
    codl agent install --serial R58M123ABC --python
    codl agent install --serial R58M123ABC --python python-3.14.7-aarch64-linux-android.tar.gz
    codl agent install --serial ssh://pi@board.local --wheels wheels
    """
    shell = machine_of(serial, "take an agent").shell
    if shell is None:
        raise CodlError(f"{serial!r} is this machine, which needs no agent installed.")
    done = install(
        shell(serial),
        _python(python),
        packages=packages,
        wheel_folder=wheels,
    )
    emit("agent install", _content(done), lambda: _table(serial, done), as_json=json, output=output)


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


def _table(serial: str, done: Installed) -> Table:
    columns = ("package", "version", "needed for", "")
    table = Table(*columns, title="Packages there", title_justify="left")
    for name, version in done.checked.packages.items():
        place = "in the agent's folder" if name in done.checked.brought else ""
        note = place if version else done.fixes.get(name, "")
        table.add_row(name, version or "missing", PURPOSES.get(name, ""), note)
    state = "put there now" if done.is_new else "there before"
    python = f"Python {done.checked.python}, {done.checked.machine}"
    table.caption = f"{serial}: {done.path}, {done.bytes} bytes, {state}; {python}"
    return table
