"""`codl validate`: whether every op of a plan, and the whole of it, computes what it should."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from codl.cli.deployed import adapted, context_of, deployment_of, plan_of, read_inputs
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
    read_budget,
    read_shapes,
    writable,
)
from codl.cli.output import emit, note, progress
from codl.errors import CodlError
from codl.frontend.models.deployment import Deployment
from codl.ir import Network
from codl.ir import soc as socs
from codl.ir.fallbacks import OpFallback
from codl.ir.plan import Plan
from codl.lower import lower
from codl.measure import dataset as datasets
from codl.measure.inputs import SEED, random_inputs
from codl.plan.fallbacks import for_soc
from codl.plan.price import price
from codl.plan.single_processor import preferring
from codl.predict.names import FOLDER
from codl.strategies import Context
from codl.targets.connect import connect
from codl.targets.detect import load_local
from codl.validate.agreement import Agreement, agreement, read_labels
from codl.validate.halves import halved
from codl.validate.plan_check import Bench
from codl.validate.references import Model, Values
from codl.validate.remedy import BUDGET_S, Remedy, find_remedy, reason_of
from codl.validate.validation import COSINE, Validation, validate

InputOption = Annotated[
    Path | None,
    typer.Option(
        "--input",
        help="Inputs by name in an .npz file, or a folder of such files; random ones by default.",
    ),
]
LabelsOption = Annotated[
    Path | None,
    typer.Option("--labels", help="Classes of the files of --input: lines of a name and a number."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of random inputs.")]
CosineOption = Annotated[
    float,
    typer.Option("--cosine", min=-1.0, max=1.0, help="Outputs are right from this cosine on."),
]
HalfOption = Annotated[
    bool,
    typer.Option(
        "--half",
        help="Store the GPU's tensors as halves, and find the ops that must stay in float32.",
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Look for no fallback: what is wrong is an error.")
]
BudgetOption = Annotated[
    str, typer.Option("--budget", help="Time to look for a fallback, such as 90s or 10m.")
]
WritePlanOption = Annotated[
    Path | None,
    typer.Option(
        "--write-plan",
        help="Write the plan, with its fallbacks, to a file.",
        callback=writable,
    ),
]
WriteSocOption = Annotated[
    bool, typer.Option("--write-soc", help="Add the fallbacks to the SoC file.")
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
    labels: LabelsOption = None,
    seed: SeedOption = SEED,
    cosine: CosineOption = COSINE,
    half: HalfOption = False,
    strict: StrictOption = False,
    budget: BudgetOption = f"{BUDGET_S:g}s",
    write_plan: WritePlanOption = None,
    write_soc: WriteSocOption = False,
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

    Where something is wrong, the smallest change is looked for with which it is right: ops run in
    another variant, in one that stores float32, or on the other processor. That is the `fallback`;
    --write-plan and --write-soc keep it for the next run. The exit code is 1 where there is none,
    or --strict forbids it.

    [dim]Examples:[/dim]
    codl validate yolov2 --soc host
    codl validate resnet50 --soc host --input samples --labels labels.txt
    codl validate yolov2 --soc host --half --write-plan half.json
    codl validate model.onnx --soc host --plan plan.json --input in.npz --json
    codl validate mobilenet_v2 --soc host --strategy gpu --serial process --seed 3
    """
    deployed = deployment_of(model)
    described = load_local(soc, serial)
    asked = context_of(described, dataset, predictors, predictor)
    context = adapted(asked, deployed)
    loaded = Model.load(model, batch, read_shapes(shape))
    files = _files(inputs)
    classes = None if labels is None else read_labels(labels, [file.name for file in files])
    samples = _samples(loaded, files, deployed, seed)
    with closing(connect(serial, described)) as target:
        context = replace(context, target=target)
        chosen = _plan(plan, strategy, deployed, loaded.network, context)
        if half:
            chosen = halved(loaded.network, chosen, described)
        bench = Bench(loaded, target, context.tuning, samples)
        with progress(f"Ops of {loaded.network.name}") as update:
            found = validate(bench, chosen, cosine=cosine, progress=update)
        remedy = None
        if not (found.ok or strict):
            note(found.diagnosis)
            note("Looking for the smallest change with which it is right")
            remedy = find_remedy(bench, found, budget_s=read_budget(budget))
            remedy = replace(remedy, plan=_priced(remedy.plan, chosen, loaded.network, context))
    if write_plan is not None:
        kept = replace(remedy.plan if remedy else chosen, origin=context.origin())
        note(f"Wrote {kept.save(write_plan)}")
    if write_soc and remedy is not None and remedy.fallbacks:
        note(f"Wrote {_add_to_soc(soc, for_soc(loaded.network, remedy.fallbacks))}")
    result = {
        "serial": serial,
        "soc": described.name,
        "batch": batch,
        "input": None if inputs is None else str(inputs),
        "seed": None if inputs is not None else seed,
        **_result(found, remedy),
        "lowest": _lowest(found, files),
        "agreement": None if len(files) < 2 else asdict(_agreement(bench, found, classes)),
    }
    emit("validate", result, lambda: _tables(found, remedy), as_json=json, output=output)
    if strict and found.whole.refused:
        raise CodlError(f"--strict: {'; '.join(map(str, found.whole.refused))}")
    if not found.ok and not (remedy and remedy.ok):
        raise typer.Exit(1)


def _files(given: Path | None) -> list[Path]:
    """The files of inputs: those of a folder by name, the one that is given, or none."""
    if given is None or not given.is_dir():
        return [] if given is None else [given]
    files = sorted(given.glob("*.npz"))
    if not files:
        raise CodlError(f"--input names the folder {given}, in which there is no .npz file.")
    return files


def _samples(
    model: Model, files: Sequence[Path], deployed: Deployment | None, seed: int
) -> list[Values]:
    """Inputs from files; without any those that a deployment names, or random ones."""
    wanted: list[Path | None] = [*files] or [None]
    network = model.network

    def usual(own: Network) -> Values:
        return random_inputs(own, seed)

    return [model.shaped(read_inputs(network, file, deployed, usual)) for file in wanted]


def _lowest(found: Validation, files: Sequence[Path]) -> dict[str, Any]:
    """The sample whose outputs are farthest from right; its file, where it is of one."""
    cosines = [one.cosine for one in found.whole.samples]
    place = cosines.index(min(cosines))
    return {"file": files[place].name if files else None, "cosine": cosines[place]}


def _agreement(bench: Bench, found: Validation, labels: Sequence[int] | None) -> Agreement:
    """Of the model's first output."""
    name = next(iter(bench.network.outputs))
    got, right = ([own[name] for own in all_of] for all_of in (found.whole.outputs, bench.expected))
    return agreement(got, right, labels)


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


def _priced(plan: Plan, before: Plan, network: Network, context: Context) -> Plan:
    """The plan with what is predicted of it, where that was predicted of the one before."""
    cost = context.default_cost(network)
    if cost is None or before.predicted_ms is None:
        return plan
    executable = lower(network, plan, context.soc, context.tuning)
    return replace(plan, predicted_ms=price(executable, cost).latency_ms)


def _add_to_soc(name: str, fallbacks: Sequence[OpFallback]) -> Path:
    """Write a SoC file with more fallbacks, those of before included."""
    facts = socs.load(name)
    known = {(one.op, one.processor, one.variant): one for one in (*facts.fallbacks, *fallbacks)}
    return replace(facts, fallbacks=tuple(known.values())).save(socs.own_path_of(name))


def _result(found: Validation, remedy: Remedy | None) -> dict[str, Any]:
    bad = found.first_bad
    return {
        "model": found.plan.model,
        "strategy": found.plan.strategy,
        "ok": found.ok,
        "diagnosis": found.diagnosis,
        "first_bad": None if bad is None else bad.use.layer.name,
        "fallback": [] if remedy is None else [asdict(one) for one in remedy.fallbacks],
        "remedy": None if remedy is None else _remedy(remedy),
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


def _remedy(remedy: Remedy) -> dict[str, Any]:
    """How right the plan is with its fallbacks."""
    return {
        "ok": remedy.ok,
        "outputs": None if remedy.whole is None else asdict(remedy.whole),
        "unmet": [one.use.layer.name for one in remedy.unmet],
        "plans_tried": remedy.tried,
        "predicted_ms": remedy.plan.predicted_ms,
    }


def _tables(found: Validation, remedy: Remedy | None) -> Group:
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
    return Group(table, *map(escape, _lines(found)), *map(escape, _fallback_lines(remedy)))


def _lines(found: Validation) -> list[str]:
    outputs = found.whole.worst
    lines = [
        f"{one.use.label} on the {one.use.processor} in {one.use.variant} is {reason_of(one)}"
        for one in found.bad
    ]
    lines += map(str, found.whole.refused)
    lines.append(
        f"Outputs beside those of {found.reference}: cosine {outputs.cosine:.7f}, max_rel_err "
        f"{outputs.max_rel_err:.2e}. {found.diagnosis}"
    )
    return lines


def _fallback_lines(remedy: Remedy | None) -> list[str]:
    """What is changed, and what that leads to."""
    if remedy is None:
        return []
    lines = [f"Fallback: {one}" for one in remedy.fallbacks]
    lines += [f"Nothing stands in for {one.use.label}." for one in remedy.unmet]
    if remedy.whole is None:
        return [*lines, "The plan does not run with it."]
    right = "right" if remedy.is_right else "still wrong"
    return [
        *lines,
        f"With that the outputs are {right}: cosine {remedy.whole.cosine:.7f}, max_rel_err "
        f"{remedy.whole.max_rel_err:.2e}, the best of {remedy.tried} plans that ran.",
    ]
