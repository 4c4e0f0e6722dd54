"""`codl kernels`: figures of every kernel by the compilers of phones' GPUs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from codl.cli.output import TERMINAL, Output
from codl.errors import CodlError
from codl.frontend.convert import load_structure
from codl.frontend.models import BUILT_IN
from codl.ir import parse
from codl.report.results import parse_result
from codl.report.text_table import TextTable
from codl_phone_compilers import compiler, gpus
from codl_phone_compilers.programs import NeededOp, exported, needs, programs_of
from codl_phone_compilers.report import figures, kernels_content, summary, worst

#: Together these have every variant for GPUs.
USUAL = ("float32", "half")

ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="A GPU ({codl_phone_compilers.gpus:GPUS}), or a SoC of `codl soc list` or a .yaml "
        "file.",
    ),
]
ModelsOption = Annotated[
    str | None,
    typer.Option(
        "--models",
        help="Built-in models or .onnx files, by commas; by default all that are built in, and "
        "some that were exported.",
    ),
]
OpsOption = Annotated[
    list[str] | None,
    typer.Option("--ops", help="An op as text in the place of models; may be repeated."),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help=f"Only at one of {{codl.ir.types:PRECISIONS}}; else {' and '.join(USUAL)}.",
    ),
]
AllOption = Annotated[
    bool, typer.Option("--all-choices", help="Every tuning choice, not only the defaults.")
]
BriefOption = Annotated[
    bool, typer.Option("--brief", help="Only the worst program of each variant and kernel.")
]
SetupOption = Annotated[
    bool, typer.Option("--setup", help="Install the compilers of Adrenos from Debian's packages.")
]
MaliOption = Annotated[
    bool, typer.Option("--mali", help="With --setup: Malis too; builds Mesa, in minutes.")
]


def compile_kernels(
    out: Output,
    gpu: ForOption = None,
    models: ModelsOption = None,
    ops: OpsOption = None,
    precision: PrecisionOption = None,
    all_choices: AllOption = False,
    brief: BriefOption = False,
    setup: SetupOption = False,
    mali: MaliOption = False,
) -> None:
    """Compile the kernels of models for a phone's GPU on a PC, with Mesa's compilers.

    The table shows for every kernel whether it compiles, its instructions, registers, private
    memory and spills, waves in flight, and busy lanes. Results are cached.

    [dim]Examples:[/dim]
    codl kernels --setup
    codl kernels --for adreno630
    codl kernels --for sdm865 --models mobilenet_v2 --all-choices
    codl kernels --for malig76 --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3 pad=1"
    """
    if setup:
        for family in gpus.FAMILIES[: 1 + mali]:
            TERMINAL.stage(
                f"Setting up the compilers of {family.capitalize()} GPUs in {compiler.folder()}"
            )
            compiler.set_up(family)
        TERMINAL.note(f"The compilers are in {compiler.folder()}")
    if gpu is None:
        if setup:
            return
        raise CodlError("Name a GPU or a SoC by --for, such as adreno630 or sdm865.")
    key, played = gpus.find(gpu)
    compiler.check_installed(played.family)
    socs = [gpus.soc_of(gpu, each) for each in ([precision] if precision else USUAL)]
    listed = programs_of(_networks(models, ops), socs, all_choices=all_choices)
    with TERMINAL.progress(f"Compiling for {played.label}") as update:
        done = compiler.compile_all(played, listed.programs.values(), progress=update)
    rows = figures(listed, done, played)
    result = {
        "gpu": key,
        "label": played.label,
        "compiler": done.version,
        "packages": compiler.packages(played.family),
        "summary": asdict(summary(rows)),
        "kernels": [asdict(row) for row in (worst(rows) if brief else rows)],
    }

    def render() -> TextTable:
        read: Any = parse_result({"command": "kernels", **result})
        return kernels_content(read)

    out.emit("kernels", result, render)


def _networks(models: str | None, ops: list[str] | None) -> dict[str, list[NeededOp]]:
    if ops:
        return {"ops": [NeededOp(parse(text)) for text in ops]}
    if models:
        return {name: needs(load_structure(name)) for name in models.split(",")}
    return {name: needs(load_structure(name)) for name in BUILT_IN} | exported()
