"""`codl explain`: where the time goes between the lossless bound of a model and its run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group

from codl.api.job import Job, digests_of, recorded
from codl.cli import options as opt
from codl.cli.output import TERMINAL, emit, stage
from codl.engine.engine import Engine
from codl.evaluation.explain import Explanation, explain_measured, explain_predicted
from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure import dataset as datasets
from codl.predict import FOLDER
from codl.records.soc import Soc
from codl.runtime.placement import LocalSoc

#: More columns do not fit into a terminal; --json and a report have them all.
MOST_TERMS = 7
PredictedOption = Annotated[
    bool, typer.Option("--predicted", help="Run nothing: end at the predicted latency.")
]
RoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, max=opt.MOST_ROUNDS, help="Timed runs.")
]


def explain_model(
    model: opt.ModelArgument,
    soc: opt.SocOption = "",
    serial: opt.SerialOption = "local",
    precision: opt.PrecisionOption = None,
    predicted: PredictedOption = False,
    plan: opt.PlanOption = None,
    strategy: opt.StrategyOption = None,
    search_budget: opt.SearchBudgetOption = opt.SEARCH_BUDGET,
    profile: opt.ProfileOption = None,
    no_profile: opt.NoProfileOption = False,
    rounds: RoundsOption = 20,
    batch: opt.BatchOption = None,
    shape: opt.ShapeOption = None,
    dataset: opt.DatasetsOption = datasets.FOLDER,
    predictors: opt.PredictorsOption = FOLDER,
    predictor: opt.PredictorOption = None,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Say where the time of a plan goes, from the lossless bound of the model to its run.

    Terms add up: each is the difference of two totals, for the model and for every chain, and is
    negative where something is gained. docs/concepts/explain.md defines them. With --predicted no
    device is needed; without, the plan runs on --serial, and what predictions missed follows.

    [dim]Examples:[/dim]
    codl explain yolov2 --soc epyc2 --predicted
    codl explain yolov2 --soc host --plan plan.json -o explain.json
    codl explain vgg16 --soc host --strategy codl-paper --json
    """
    job = Job(
        model=model,
        soc=soc,
        serial=serial,
        device=not predicted,
        precision=precision,
        plan=plan,
        strategy=strategy,
        predictor=predictor,
        budget_s=opt.read_budget(search_budget, "--search-budget"),
        profile=opt.read_profile(profile, no_profile),
        batch=batch,
        shapes=opt.read_shapes(shape),
        dataset=dataset,
        predictors=predictors,
        reporter=TERMINAL,
    )
    if predicted:
        job.check_plans_alone()
    network = job.read_network()
    origin: dict[str, Any] = {}
    if predicted:
        chosen = job.plan_of(network, job.context)
        explained = explain_predicted(network, chosen, job.context)
    else:
        with job.connected() as context:
            chosen = job.plan_of(network, context)
            stage(f"Loading {network.name}, and measuring it {rounds} times")
            with Engine(network, chosen, context.device, context.tuning) as engine:
                explained = explain_measured(engine, context, rounds=rounds)
            of = digests_of(context, network, plans={network.name: chosen})
            origin = recorded(context.device, of, rounds=rounds)
    result = {**explained_result(network, chosen, job.described, explained, batch), **origin}

    def render() -> Group:
        from codl.report.load import explain_result
        from codl.report.waterfalls import chains_content, waterfall_content

        checked = explain_result(result)
        tables = waterfall_content(checked), chains_content(checked, most=MOST_TERMS)
        return Group(*(table.to_rich() for table in tables))

    emit("explain", result, render, as_json=json, output=output)


def explained_result(
    network: Network, plan: Plan, soc: Soc, explained: Explanation, batch: int | None
) -> dict[str, Any]:
    source = "computed" if soc.source == "measured" else soc.source
    return {
        "model": network.name,
        "soc": soc.to_json() if isinstance(soc, LocalSoc) else soc.to_dict(),
        "batch": batch,
        "strategy": plan.strategy,
        **asdict(explained),
        "measured_ms": explained.measured_ms,
        "source": source if explained.measured_ms is None else "measured",
        "not_counted": plan.not_counted,
        "estimated": plan.estimated,
    }
