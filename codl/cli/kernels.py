"""`codl kernels`: what the compilers of phones' GPUs make of every kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from codl.cli.base_options import JsonOption, OutputOption
from codl.cli.output import emit, note, progress, stage
from codl.errors import CodlError
from codl.frontend.convert import load_structure
from codl.frontend.models import BUILT_IN
from codl.ir import parse
from codl.phone_compilers import compiler, gpus
from codl.phone_compilers.figures import figures, summary
from codl.phone_compilers.programs import NeededOp, exported, needs, programs_of
from codl.report.text_table import Table

COLUMNS = (
    "variant", "kernel", "op", "ops", "instructions", "registers", "private B", "spills",
    "in loop", "waves", "barriers", "loops", "per 100 macs", "lanes",
)  # fmt: skip

ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        help=f"A GPU ({', '.join(gpus.GPUS)}), or a SoC of `codl soc list` or a .yaml file.",
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
ElementOption = Annotated[
    str | None,
    typer.Option("--element", help="Only tensors of these elements: float32 or float16."),
]
AllOption = Annotated[
    bool, typer.Option("--all-choices", help="Every tuning choice, not the default ones alone.")
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
    element: ElementOption = None,
    all_choices: AllOption = False,
    jobs: JobsOption = None,
    setup: SetupOption = False,
    mali: MaliOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Compile every kernel that models need on a phone's GPU, by that GPU's compiler, on a PC.

    No such GPU is needed: Mesa's compilers, which drive real Adrenos and Malis, run over a kernel
    driver that runs nothing. The table says of every kernel whether it compiles, instructions,
    registers, private memory and spills, waves in flight, and lanes with work at the op's size.
    What was compiled before is not compiled again.

    [dim]Examples:[/dim]
    codl kernels --setup
    codl kernels --for adreno630
    codl kernels --for sdm865 --models mobilenet_v2 --all-choices
    codl kernels --for malig76 --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3 pad=1"
    """
    if setup:
        families: tuple[gpus.Family, ...] = ("adreno", "mali") if mali else ("adreno",)
        for family in families:
            stage(f"Setting up the compilers of {family.capitalize()} GPUs in {compiler.folder()}")
            compiler.set_up(family)
        note(f"The compilers are in {compiler.folder()}")
    if gpu is None:
        if setup:
            return
        raise CodlError("Name a GPU or a SoC by --for, such as adreno630 or sdm865.")
    key, played = gpus.find(gpu)
    compiler.check_installed(played.family)
    elements = [element] if element else ["float32", "float16"]
    listed = programs_of(_networks(models, ops), [gpus.soc_of(gpu, each) for each in elements])
    listed = listed.only(variants.split(",") if variants else None, all_choices=all_choices)
    if not listed.programs:
        raise CodlError(f"No kernel variant of {variants} is needed there.")
    with progress(f"Compiling for {played.label}") as update:
        done = compiler.compile_all(played, listed.programs.values(), jobs=jobs, progress=update)
    rows = figures(listed, done, played)
    result = {
        "gpu": key,
        "label": played.label,
        "compiler": done.version,
        "summary": summary(rows),
        "kernels": [asdict(row) for row in rows],
    }
    emit("kernels", result, lambda: _table(result), as_json=json, output=output)


def _networks(models: str | None, ops: Sequence[str] | None) -> dict[str, list[NeededOp]]:
    if ops:
        return {"ops": [NeededOp(parse(text)) for text in ops]}
    if models:
        return {name: needs(load_structure(name)) for name in models.split(",")}
    return {name: needs(load_structure(name)) for name in BUILT_IN} | exported()


def _table(result: Mapping[str, Any]) -> Table:
    """What `codl kernels --json` holds, a row for a kernel of a program."""
    title = f"{result['label']}, {result['compiler']}"
    table = Table(*COLUMNS, spare=("ops", "barriers", "loops", "kernel"), title=title,
                  title_justify="left")  # fmt: skip
    for row in result["kernels"]:
        choice = (
            "" if row["is_default"] else ", ".join(f"{k}={v}" for k, v in row["choice"].items())
        )
        op = f"{row['op']} [{choice}]" if choice else row["op"]
        if row["error"]:
            table.add_row(row["variant"], row["kernel"], op, str(row["ops"]), row["error"])
            continue
        registers = f"{row['registers']} + {row['half_registers']} half"
        table.add_row(
            row["variant"],
            row["kernel"],
            op,
            str(row["ops"]),
            str(row["instructions"]),
            registers if row["half_registers"] else str(row["registers"]),
            *(str(row[key] or "-") for key in ("private_bytes", "spills", "hot_spills")),
            f"{row['waves']} x {row['wave_items']}",
            *(str(row[key] or "-") for key in ("barriers", "loops")),
            f"{row['slots_per_100_macs']:.0f}" if row["slots_per_100_macs"] else "-",
            f"{100 * row['lanes']:.0f} %" if row["lanes"] is not None else "-",
        )
    table.caption = _summary_line(result["summary"])
    return table


def _summary_line(summary: Mapping[str, Any]) -> str:
    """The summary in words."""
    means = ", ".join(
        f"{mean:.0f} of {element}"
        for element, mean in summary["slots_per_100_macs"].items()
        if mean
    )
    return (
        f"Default choices: {summary['programs']} programs, {summary['failed']} do not build; of "
        f"{summary['pairs']} pairs of variant and kernel {len(summary['pairs_in_memory'])} keep "
        f"registers in memory, {len(summary['pairs_hot'])} in their hot loop. Slots for 100 "
        f"multiply-adds in geometric mean: {means}."
    )
