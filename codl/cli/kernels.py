"""`codl kernels`: what the compilers of phones' GPUs make of every kernel."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from codl.cli.output import TERMINAL, JsonOption, OutputOption, emit
from codl.errors import CodlError
from codl.report.text_table import Table

#: Together these have every variant for GPUs.
USUAL = ("float32", "half")

ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="A GPU ({codl.phone_compilers.gpus:GPUS}), or a SoC of `codl soc list` or a .yaml "
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
VariantsOption = Annotated[
    str | None,
    typer.Option("--variants", help="Only these kernel variants, by commas, or of these ops."),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help=f"Only at one of {{codl.ir.types:PRECISIONS}}; else {' and '.join(USUAL)}.",
    ),
]
AllOption = Annotated[
    bool, typer.Option("--all-choices", help="Every tuning choice, not the default ones alone.")
]
BriefOption = Annotated[
    bool, typer.Option("--brief", help="Of each variant and kernel the worst program alone.")
]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Programs compiled at once; a core each.")
]
SetupOption = Annotated[
    bool,
    typer.Option("--setup", help="Set the compilers of Adrenos up, from Debian's packages."),
]
MaliOption = Annotated[
    bool, typer.Option("--mali", help="With --setup: those of Malis too; builds Mesa, in minutes.")
]


def compile_kernels(
    gpu: ForOption = None,
    models: ModelsOption = None,
    ops: OpsOption = None,
    variants: VariantsOption = None,
    precision: PrecisionOption = None,
    all_choices: AllOption = False,
    brief: BriefOption = False,
    jobs: JobsOption = None,
    setup: SetupOption = False,
    mali: MaliOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """No such GPU is needed: Mesa's compilers, which drive real Adrenos and Malis, run over a
    kernel driver that runs nothing. The table says of every kernel whether it compiles,
    instructions, registers, private memory and spills, waves in flight, and lanes with work at the
    op's size. What was compiled before is not compiled again.

    [dim]Examples:[/dim]
    codl kernels --setup
    codl kernels --for adreno630
    codl kernels --for sdm865 --models mobilenet_v2 --all-choices
    codl kernels --for malig76 --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3 pad=1"
    """
    from codl.api import kernels

    if setup:
        kernels.set_up_compilers(mali=mali, reporter=TERMINAL)
    if gpu is None:
        if setup:
            return
        raise CodlError("Name a GPU or a SoC by --for, such as adreno630 or sdm865.")
    result = kernels.compile_kernels(
        gpu,
        models=models.split(",") if models else (),
        ops=ops or (),
        variants=variants.split(",") if variants else (),
        precisions=[precision] if precision else USUAL,
        all_choices=all_choices,
        brief=brief,
        jobs=jobs,
        reporter=TERMINAL,
    )

    def render() -> Table:
        from codl.report.kernels import kernels_content
        from codl.report.load import parse_result

        read: Any = parse_result({"command": "kernels", **result})
        return kernels_content(read).to_rich()

    emit("kernels", result, render, as_json=json, output=output)
