"""`codl validate`: whether every op of a plan, and the whole of it, computes what it should."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from codl.cli.deployed import adapted, context_of, deployment_of, plan_of
from codl.cli.options import (
    BatchOption,
    BudgetOption,
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
from codl.cli.output import emit, note, progress, stage
from codl.cli.recorded import digests_of, recorded
from codl.cli.validate_inputs import files_of, samples_of
from codl.cli.validate_result import result_of, tables_of
from codl.errors import CodlError
from codl.frontend.models.deployment import Deployment
from codl.ir import Network
from codl.ir import soc as socs
from codl.ir.fallbacks import OpFallback
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS, Processor
from codl.lower import lower
from codl.measure import dataset as datasets
from codl.measure.budget import Budget
from codl.measure.inputs import SEED
from codl.plan.build_plan import preferring
from codl.plan.fallbacks import for_soc
from codl.plan.price import price
from codl.predict.names import FOLDER
from codl.strategies import Context
from codl.targets.connect import connect
from codl.targets.detect import load_local
from codl.validate.agreement import Agreement, agreement, read_labels
from codl.validate.halves import halved
from codl.validate.plan_check import Bench
from codl.validate.references import Model
from codl.validate.remedy import find_remedy
from codl.validate.validation import COSINE, COSINE_OF_ROUNDED, Validation, validate

InputOption = Annotated[
    Path | None,
    typer.Option(
        "--input",
        help="Inputs by name in an .npz file, an image, or a folder of files of either; random "
        "ones by default. A deployment file says how images are preprocessed.",
    ),
]
LabelsOption = Annotated[
    Path | None,
    typer.Option("--labels", help="Classes of the files of --input: lines of a name and a number."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of random inputs.")]
CosineOption = Annotated[
    float | None,
    typer.Option(
        "--cosine",
        min=-1.0,
        max=1.0,
        help=f"Outputs are right from this cosine on: {COSINE}, or {COSINE_OF_ROUNDED} of a model "
        "that rounds what it multiplies to 8 bits, if not given.",
    ),
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
    cosine: CosineOption = None,
    half: HalfOption = False,
    strict: StrictOption = False,
    budget: BudgetOption = None,
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
    look different. Where no predictors are trained and --plan is not given, all ops are checked on
    the GPU that it has kernels for; with --strategy cpu on the CPU.

    Where something is wrong, the smallest change is looked for with which it is right: ops run in
    another variant, in one that stores float32, or on the other processor. That is the `fallback`;
    --write-plan and --write-soc keep it for the next run. The exit code is 1 where there is none,
    or --strict forbids it.

    --budget is the time of all of that. What it did not reach is told, and the exit code is 1 then.
    Without it everything is checked, and a fallback is looked for for two minutes.

    [dim]Examples:[/dim]
    codl validate yolov2 --soc host
    codl validate deploy.yaml --soc host --input images --labels labels.txt --budget 10m
    codl validate yolov2 --soc host --half --write-plan half.json
    codl validate model.onnx --soc host --plan plan.json --input in.npz --json
    codl validate mobilenet_v2 --soc host --strategy gpu --serial process --seed 3
    """
    time = Budget(None if budget is None else read_budget(budget))
    deployed = deployment_of(model)
    described = load_local(soc, serial)
    asked = context_of(described, dataset, predictors, predictor)
    context = adapted(asked, deployed)
    loaded = Model.load(model, batch, read_shapes(shape))
    files = files_of(inputs)
    classes = None if labels is None else read_labels(labels, [file.name for file in files])
    samples = samples_of(loaded, files, deployed, seed)
    with closing(connect(serial, described)) as target:
        # A strategy that runs plans has no more time than the command.
        context = replace(context, target=target, budget_s=min(context.budget_s, time.left_s))
        chosen = _plan(plan, strategy, deployed, loaded.network, context)
        if half:
            chosen = halved(loaded.network, chosen, described)
        written, applied = chosen.applied(loaded.network)
        bench = Bench(replace(loaded, network=written), target, context.tuning, samples)
        with progress(f"Ops of {loaded.network.name}") as update:
            found = validate(bench, applied, cosine=cosine, progress=update, budget=time)
        remedy = None
        if found.is_wrong and not strict:
            note(found.diagnosis)
            stage("Looking for the smallest change with which it is right")
            remedy = find_remedy(bench, found, budget=None if budget is None else time)
            changed = remedy.plan.restored(loaded.network, chosen.sums)
            remedy = replace(remedy, plan=_priced(changed, chosen, loaded.network, context))
        of = digests_of(context, loaded.network, plans={loaded.network.name: chosen})
        origin = recorded(target, of, cosine=found.cosine, half=half, seed=seed)
    if write_plan is not None:
        kept = replace(remedy.plan if remedy else chosen, origin=context.origin())
        note(f"Wrote {kept.save(write_plan)}")
    if write_soc and remedy is not None and remedy.fallbacks:
        note(f"Wrote {_add_to_soc(soc, for_soc(written, remedy.fallbacks))}")
    result = {
        "serial": serial,
        "soc": described.name,
        "batch": batch,
        "input": None if inputs is None else str(inputs),
        "seed": None if inputs is not None else seed,
        **result_of(found, remedy),
        "lowest": _lowest(found, files),
        "agreement": None if len(files) < 2 else asdict(_agreement(bench, found, classes)),
        **origin,
    }
    emit("validate", result, lambda: tables_of(result, found, remedy), as_json=json, output=output)
    if strict and found.whole.refused:
        raise CodlError(f"--strict: {'; '.join(map(str, found.whole.refused))}")
    if found.left or (found.is_wrong and not (remedy and remedy.ok)):
        raise typer.Exit(1)


def _lowest(found: Validation, files: Sequence[Path]) -> dict[str, Any]:
    """The sample whose outputs are farthest from right; its file, where it is of one."""
    cosines = [one.cosine for one in found.whole.samples]
    place = cosines.index(min(cosines))
    return {"file": files[place].name if files else None, "cosine": cosines[place]}


def _agreement(bench: Bench, found: Validation, labels: Sequence[int] | None) -> Agreement:
    """Of the model's first output."""
    name = next(iter(bench.network.outputs))
    got = [own[name] for own in found.whole.outputs]
    right = [bench.expected(number)[name] for number in range(len(got))]
    return agreement(got, right, None if labels is None else labels[: len(got)])


def _plan(
    file: Path | None,
    strategy: str | None,
    deployed: Deployment | None,
    network: Network,
    context: Context,
) -> Plan:
    """The plan that is asked for.

    Where nothing was trained one processor is preferred, in default variants: that of the strategy
    `cpu` or `gpu`, and the GPU where nothing is asked for.
    """
    wanted = "" if file is not None else strategy or (deployed.strategy if deployed else "")
    is_asked = file is not None or wanted not in ("", *PROCESSORS)
    if is_asked or context.default_cost(network) is not None:
        return plan_of(file, strategy, deployed, network=network, context=context)
    processor: Processor = "cpu" if wanted == "cpu" else "gpu"
    note(
        f"No predictors are trained for {context.soc.name!r}: all ops are checked on the "
        f"{processor.upper()} that it has kernels for, in their default variants."
    )
    return preferring(network, context.soc, processor)


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
