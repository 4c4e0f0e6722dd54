"""`codl package`: a model, planned and compiled, as one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from codl.api.job import Job
from codl.bundle.packaging import Packaged, package
from codl.cli import options as opt
from codl.cli.output import TERMINAL, emit, note, stage, told_of
from codl.frontend.models import BUNDLE
from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure import dataset as datasets
from codl.predict import FOLDER
from codl.report.text_table import Table
from codl.validate.references import read_network

BundleOption = Annotated[
    Path,
    typer.Option("-o", "--output", help="The bundle, such as m.codl.", callback=opt.writable),
]


def package_model(
    model: opt.ModelArgument,
    output: BundleOption,
    soc: opt.SocOption = "",
    serial: opt.SerialOption = "local",
    precision: opt.PrecisionOption = None,
    plan: opt.PlanOption = None,
    strategy: opt.StrategyOption = None,
    search_budget: opt.SearchBudgetOption = opt.SEARCH_BUDGET,
    profile: opt.ProfileOption = None,
    no_profile: opt.NoProfileOption = False,
    batch: opt.BatchOption = None,
    dataset: opt.DatasetsOption = datasets.FOLDER,
    predictors: opt.PredictorsOption = FOLDER,
    predictor: opt.PredictorOption = None,
    shape: opt.ShapeOption = None,
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
    if output.suffix != BUNDLE:
        raise typer.BadParameter(f"must end in {BUNDLE}, got {output}", param_hint="--output")
    job = Job(
        model=model,
        soc=soc,
        serial=serial,
        precision=precision,
        plan=plan,
        strategy=strategy,
        predictor=predictor,
        budget_s=opt.read_budget(search_budget, "--search-budget"),
        profile=opt.read_profile(profile, no_profile),
        dataset=dataset,
        predictors=predictors,
        reporter=TERMINAL,
    )
    job.check()
    stage(f"Reading {model}")
    network, source = read_network(model, batch, opt.read_shapes(shape), check=check)
    with job.connected() as context:
        chosen = job.plan_of(network, context)
        stage(f"Compiling {network.name}, and trying it in a process of its own")
        made = package(network, chosen, context.device, output, context.tuning, source=source)
    note(f"Wrote {output}")
    result = _result(network, chosen, made, serial)
    emit("package", result, lambda: _table(result), as_json=json)


def _result(network: Network, plan: Plan, made: Packaged, serial: str) -> dict[str, Any]:
    times = made.cold_start
    return {
        "model": network.name,
        "soc": plan.soc,
        "serial": serial,
        "strategy": plan.strategy,
        "file": str(made.path),
        "bytes": made.bytes,
        "cold_start_ms": times.process_ms,
        "without_interpreter_ms": times.without_interpreter_ms,
        "import_ms": times.import_ms,
        "load_ms": times.load_ms,
        "first_run_ms": times.first_run_ms,
        "max_rel_err": made.max_rel_err,
        **told_of(made.checked),
        "source": "measured",
    }


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
