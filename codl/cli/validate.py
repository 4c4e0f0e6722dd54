"""`codl validate`: whether every op of a plan, and the whole of it, computes what it should."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from codl.cli.deployed import adapted, deployment_of, plan_of, read_inputs
from codl.cli.options import (
    BatchOption,
    DatasetsOption,
    JsonOption,
    ModelArgument,
    PlanOption,
    PredictorOption,
    PredictorsOption,
    SerialOption,
    ShapeOption,
    SocOption,
    StrategyOption,
    read_shapes,
)
from codl.cli.output import emit, note, progress
from codl.frontend.models.deployment import Deployment
from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure import dataset as datasets
from codl.measure.inputs import SEED, random_inputs
from codl.plan.single_processor import preferring
from codl.predict.names import FOLDER
from codl.strategies import Context
from codl.targets.connect import connect
from codl.targets.detect import load_local
from codl.validate.plan_check import Bench
from codl.validate.references import Model
from codl.validate.validation import COSINE, Validation, validate

InputOption = Annotated[
    Path | None,
    typer.Option("--input", help="Inputs by name in an .npz file; random ones by default."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of random inputs.")]
CosineOption = Annotated[
    float,
    typer.Option("--cosine", min=-1.0, max=1.0, help="Outputs are right from this cosine on."),
]
ResultOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the result to this file as JSON.")
]


def validate_plan(
    model: ModelArgument,
    soc: SocOption,
    serial: SerialOption = "local",
    plan: PlanOption = None,
    strategy: StrategyOption = None,
    inputs: InputOption = None,
    seed: SeedOption = SEED,
    cosine: CosineOption = COSINE,
    batch: BatchOption = None,
    shape: ShapeOption = None,
    dataset: DatasetsOption = datasets.FOLDER,
    predictors: PredictorsOption = FOLDER,
    predictor: PredictorOption = None,
    json: JsonOption = False,
    output: ResultOption = None,
) -> None:
    """Check that every op of a plan, and the whole of it, computes what it should.

    Each part of an op runs alone in the kernel variant that the plan has for it, on the inputs that
    the reference has there, so that errors do not add up. Then the plan runs as it is, and the
    error that has added up is told layer by layer. So an op that is wrong and a model that drifts
    look different. Where no predictors are trained and neither --plan nor --strategy is given, all
    ops are checked on the GPU that it has kernels for.

    The exit code is 1 where anything is wrong.

    [dim]Examples:[/dim]
    codl validate yolov2 --soc host
    codl validate model.onnx --soc host --plan plan.json --input in.npz --json
    codl validate mobilenet_v2 --soc host --strategy gpu --serial process --seed 3
    """
    deployed = deployment_of(model)
    described = load_local(soc, serial)
    asked = Context.of(
        described,
        dataset,
        predictors_folder=predictors,
        predictor=predictor,
        note=note,
    )
    context = adapted(asked, deployed)
    loaded = Model.load(model, batch, read_shapes(shape))
    given = read_inputs(loaded.network, inputs, deployed, lambda own: random_inputs(own, seed))
    with closing(connect(serial, described)) as target:
        context = replace(context, target=target)
        chosen = _plan(plan, strategy, deployed, loaded.network, context)
        bench = Bench(loaded, target, context.tuning, [loaded.shaped(given)])
        with progress(f"Ops of {loaded.network.name}") as update:
            found = validate(bench, chosen, cosine=cosine, progress=update)
    result = {
        "serial": serial,
        "soc": described.name,
        "batch": batch,
        "input": None if inputs is None else str(inputs),
        "seed": None if inputs is not None else seed,
        **_result(found),
    }
    emit("validate", result, lambda: _tables(found), as_json=json, output=output)
    if not found.ok:
        raise typer.Exit(1)


def _plan(
    file: Path | None,
    strategy: str | None,
    deployed: Deployment | None,
    network: Network,
    context: Context,
) -> Plan:
    """The plan that is asked for; where nothing is, and nothing was trained, a default one."""
    is_asked = file is not None or strategy is not None or (deployed and deployed.strategy)
    if is_asked or context.default_cost(network) is not None:
        return plan_of(file, strategy, deployed, network=network, context=context)
    note(
        f"No predictors are trained for {context.soc.name!r}: all ops are checked on the GPU that "
        "it has kernels for, in their default variants."
    )
    return preferring(network, context.soc, "gpu")


def _result(found: Validation) -> dict[str, Any]:
    bad = found.first_bad
    return {
        "model": found.plan.model,
        "strategy": found.plan.strategy,
        "ok": found.ok,
        "diagnosis": found.diagnosis,
        "first_bad": None if bad is None else bad.use.layer.name,
        "fallback": [],
        "reference": found.reference,
        "references": asdict(found.references),
        "outputs": asdict(found.whole.worst),
        "cosine": found.whole.worst.cosine,
        "max_rel_err": found.whole.worst.max_rel_err,
        "accumulated_lost": found.ops.lost,
        "fallbacks": [asdict(one) for one in found.whole.refused],
        "placement": [asdict(one) for one in found.placed],
        "ops": found.rows(),
    }


def _tables(found: Validation) -> Group:
    columns = ("", "op", "processor", "variant", "stored", "cosine", "error", "largest", "so far")
    table = Table(*columns, "why there", title=f"Ops of {found.plan.model}", title_justify="left")
    for row in found.rows():
        label = row["op"] if row["with"] is None else f"{row['op']} + {row['with']}"
        so_far = row["accumulated_max_rel_err"]
        table.add_row(
            "[green]ok[/green]" if row["ok"] else f"[bold red]{row['verdict']}[/bold red]",
            escape(label),
            row["processor"],
            row["variant"],
            f"{row['layout']} {row['precision']['stored']}",
            f"{row['cosine']:.7f}",
            f"{row['max_rel_err']:.1e}",
            f"{row['largest_expected']:.3g}",
            "" if so_far is None else f"{so_far:.1e}",
            escape(row["placed"] or ""),
        )
    table.caption = (
        "error: the largest difference over the largest value, of the op alone; so far: the same "
        "in the whole plan up to here. Everything is computed and accumulated in float32."
    )
    return Group(table, *map(escape, _lines(found)))


def _lines(found: Validation) -> list[str]:
    outputs = found.whole.worst
    lines = [
        f"{one.use.label} on the {one.use.processor} in {one.use.variant}: {one.verdict}"
        + (f", {one.reason}" if one.reason else "")
        + (f", {one.closeness.nan} NaN" if one.closeness.nan else "")
        + (f", {one.closeness.inf} infinite" if one.closeness.inf else "")
        + (f", {one.closeness.overflow} too large to store" if one.closeness.overflow else "")
        for one in found.bad
    ]
    lines.append(
        f"Outputs beside those of {found.reference}: cosine {outputs.cosine:.7f}, max_rel_err "
        f"{outputs.max_rel_err:.2e}. {found.diagnosis}"
    )
    return lines
