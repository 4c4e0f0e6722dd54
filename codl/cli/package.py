"""`codl package`: a model, planned and compiled, as one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from codl.cli import options as opt
from codl.cli.job_options import JobOptions, with_options
from codl.cli.output import emit
from codl.files import BUNDLE
from codl.report.text_table import Table

BundleOption = Annotated[
    Path,
    typer.Option("-o", "--output", help="The bundle, such as m.codl.", callback=opt.writable),
]


@with_options
def package_model(
    asked: JobOptions,
    output: BundleOption,
    check: opt.CheckOption = True,
    json: opt.JsonOption = False,
) -> None:
    """Write a model as one file that starts at once, without import, search or compilation.

    The file holds the plan, the executable, its weights as each processor takes them, and the
    compiled kernels, with checksums. It is for one SoC; with another driver its kernels are
    compiled from source. The file is only kept after another process has loaded it and computed
    the same outputs. Those are compared with ONNX Runtime's before, as `codl run` does, and lie in
    the file: where it runs on another device or driver, it is compared with them.

    [dim]Examples:[/dim]
    codl package yolov2 --soc host -o yolov2.codl
    codl package model.onnx --soc host --plan plan.json -o model.codl
    codl run yolov2.codl
    """
    from codl.api.package import package

    if output.suffix != BUNDLE:
        raise typer.BadParameter(f"must end in {BUNDLE}, got {output}", param_hint="--output")
    result = package(asked.job(), output, check=check)
    emit("package", result, lambda: _table(result), as_json=json)


def _table(result: Mapping[str, Any]) -> Table:
    table = Table("", "ms", title=f"{result['file']}, {result['bytes'] / 1e6:.1f} MB")
    table.add_row("a new process to its first output", f"{result['cold_start_ms']:.0f}")
    table.add_row("  Python's modules", f"{result['import_ms']:.0f}")
    table.add_row("  the bundle", f"{result['load_ms']:.0f}")
    table.add_row("  the first inference", f"{result['first_run_ms']:.0f}")
    table.caption = (
        f"{result['model']} by {result['strategy']} on {result['soc']}, measured; outputs are "
        f"those of the engine that made it (max_rel_err {result['max_rel_err']:.1g})"
    )
    return table
