"""`codl package`, and what `codl run` makes of a bundle."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from codl import soc as socs
from codl.bundle.packaging import package
from codl.cli.deployed import adapted, deployment_of, plan_of
from codl.cli.models import (
    BatchOption,
    ModelArgument,
    PredictorOption,
    PredictorsOption,
    StrategyOption,
)
from codl.cli.output import JsonOption, SocOption, emit, note
from codl.cli.shapes import ShapeOption, read_shapes
from codl.collect.tasks import load_network
from codl.models import BUNDLE
from codl.predict.names import FOLDER
from codl.strategies import Context


def package_model(
    model: ModelArgument,
    soc: SocOption,
    output: Annotated[Path, typer.Option("-o", "--output", help="The bundle, such as m.codl.")],
    plan: Annotated[Path | None, typer.Option(help="A plan of `codl search`.")] = None,
    strategy: StrategyOption = None,
    batch: BatchOption = None,
    predictors: PredictorsOption = FOLDER,
    predictor: PredictorOption = None,
    shape: ShapeOption = None,
    json: JsonOption = False,
) -> None:
    """Write a model as one file that runs at once: nothing is imported, planned or compiled again.

    The file holds the plan, the weights as each processor takes them, the tuned choices and the
    compiled kernels, each with a checksum. It is for one SoC; with another driver its kernels are
    compiled anew. What was written is loaded and run in a process of its own, and its outputs
    compared, before the file is kept.

    [dim]Examples:[/dim]
    codl package yolov2 --soc host -o yolov2.codl
    codl package model.onnx --soc host --plan plan.json -o model.codl
    codl run yolov2.codl
    """
    if output.suffix != BUNDLE:
        raise typer.BadParameter(f"must end in {BUNDLE}, got {output}", param_hint="--output")
    deployed = deployment_of(model)
    context = adapted(Context(socs.load(soc), predictors, predictor=predictor, note=note), deployed)
    network = load_network(model, batch, read_shapes(shape))
    chosen = plan_of(plan, strategy, deployed, network=network, context=context)
    made = package(network, chosen, context.soc, output)
    times = made.cold_start
    note(f"Wrote {output}")
    result: dict[str, Any] = {
        "model": network.name,
        "soc": context.soc.name,
        "strategy": chosen.strategy,
        "file": str(output),
        "bytes": made.bytes,
        "cold_start_ms": times.process_ms,
        "without_interpreter_ms": times.without_interpreter_ms,
        **{key: value for key, value in asdict(times).items() if key != "process_ms"},
        "max_rel_err": made.max_rel_err,
        "source": "measured",
    }

    def render() -> Table:
        table = Table("", "ms", title=f"{output}, {made.bytes / 1e6:.1f} MB")
        table.add_row("a new process to its first output", f"{times.process_ms:.0f}")
        table.add_row("  Python's modules", f"{times.import_ms:.0f}")
        table.add_row("  the bundle", f"{times.load_ms:.0f}")
        table.add_row("  the first inference", f"{times.first_run_ms:.0f}")
        table.caption = (
            f"{network.name} by {chosen.strategy} on {context.soc.name}, measured; outputs are "
            f"those of the engine that made it (max_rel_err {made.max_rel_err:.1g})"
        )
        return table

    emit("package", result, render, as_json=json)
