"""`codl search`: the plan of a model."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table

from codl.cli.deployed import adapted, deployment_of, strategy_of
from codl.cli.op_placement import op_placement_table
from codl.cli.options import (
    BatchOption,
    DatasetsOption,
    JsonOption,
    ModelArgument,
    PlacementOption,
    PredictorOption,
    PredictorsOption,
    SerialOption,
    ShapeOption,
    SocOption,
    StrategyOption,
    read_shapes,
)
from codl.cli.output import emit, note
from codl.errors import InvalidFileError
from codl.frontend.convert import load_network
from codl.ir import Network
from codl.ir import soc as socs
from codl.ir.plan import Plan
from codl.measure import dataset as datasets
from codl.plan import op_placement
from codl.plan.objective import GOALS, Objective
from codl.plan.search import METHODS
from codl.predict.names import FOLDER
from codl.strategies import Context, Strategy, find, ideal
from codl.targets.connect import connect
from codl.targets.detect import load_local

MethodOption = Annotated[
    str, typer.Option("--search", help=f"How `codl` searches: {', '.join(METHODS)}.")
]
ObjectiveOption = Annotated[
    str, typer.Option("--objective", help=f"What `codl` searches for: {', '.join(GOALS)}.")
]
MemoryOption = Annotated[
    int | None,
    typer.Option(
        "--memory-limit", min=1, help="MiB of weights that both processors may hold together."
    ),
]
PlanFileOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the plan to this file.")
]


def search_plan(
    model: ModelArgument,
    soc: SocOption,
    serial: SerialOption = "local",
    strategy: StrategyOption = None,
    predictor: PredictorOption = None,
    method: MethodOption = "dp",
    objective: ObjectiveOption = "latency",
    memory_limit: MemoryOption = None,
    batch: BatchOption = None,
    dataset: DatasetsOption = datasets.FOLDER,
    predictors: PredictorsOption = FOLDER,
    output: PlanFileOption = None,
    shape: ShapeOption = None,
    every: PlacementOption = False,
    json: JsonOption = False,
) -> None:
    """Find a plan of a model: its chains, their dimensions and ratios.

    Strategies that run plans to find the best run them on --serial. The strategy `ideal` prints the
    paper's bound, computed from measured ops; it gives no plan.

    [dim]Example:[/dim] codl search yolov2 --soc host -o plan.json
    """
    deployed = deployment_of(model)
    strategy = strategy_of(strategy, deployed)
    runs = strategy != ideal.NAME and find(strategy).runs_plans
    described = load_local(soc, serial) if runs else socs.load(soc)
    asked = Context.of(
        described,
        dataset,
        predictors_folder=predictors,
        predictor=predictor,
        method=method,
        objective=Objective.of(objective, described, _bytes(memory_limit)),
        note=note,
    )
    context = adapted(asked, deployed)
    network = load_network(model, batch, read_shapes(shape))
    if strategy == ideal.NAME:
        _show_bound(network, context, as_json=json)
        return
    with closing(connect(serial, described if runs else None)) as target:
        on_target = replace(context, target=target)
        plan, search_ms = _timed_plan(find(strategy), network, on_target)
    if output is not None:
        note(f"Wrote {plan.save(output)}")
    placed = op_placement.predicted(network, plan, context.soc, context.default_cost(network))
    result = {**plan.to_json(), "search_ms": search_ms}
    result["placement"] = [asdict(one) for one in placed]
    result.pop("version")

    def render() -> Group:
        where = op_placement_table(placed, "predicted", every=every)
        return Group(plan_table(plan, search_ms), where)

    emit("search", result, render, as_json=json)


def _bytes(mebibytes: int | None) -> int | None:
    return None if mebibytes is None else mebibytes << 20


def _timed_plan(strategy: Strategy, network: Network, context: Context) -> tuple[Plan, float]:
    """A plan, and the milliseconds that it took to find, without those of loading predictors."""
    with suppress(InvalidFileError):  # a strategy that needs predictors says which are missing
        context.cost(strategy.default_predictor)
    start = perf_counter()
    plan = strategy.plan(network, context)
    return plan, 1e3 * (perf_counter() - start)


def _show_bound(network: Network, context: Context, *, as_json: bool) -> None:
    limit = ideal.bound(network, context.soc, context.dataset)
    keys = ("op", "dim", "gpu_ratio", "latency_ms")
    layers = [dict(zip(keys, layer, strict=True)) for layer in limit.layers]
    result = {"model": network.name, "latency_ms": limit.latency_ms, "layers": layers}
    result |= {"strategy": ideal.NAME, "source": "computed"}

    def render() -> Table:
        table = Table("op", "dim", "GPU ratio", "ms", title=f"Ideal {network.name}")
        for name, dim, ratio, ms in limit.layers:
            table.add_row(name, dim, f"{ratio:.1f}", f"{ms:.3g}")
        table.caption = f"{limit.latency_ms:.1f} ms, computed from measured ops, nothing shared"
        return table

    emit("search", result, render, as_json=as_json)


def plan_table(plan: Plan, search_ms: float | None = None) -> Table:
    """Every chain of a plan, and what is predicted of the whole."""
    title = f"{plan.strategy} plan of {plan.model} on {plan.soc}"
    table = Table("ops", "dim", "GPU ratio", "CPU variants", "GPU variants", title=title)
    for chain in plan.chains:
        used = [
            ", ".join(dict.fromkeys(v[p] for v in chain.variants.values() if p in v))
            for p in ("cpu", "gpu")
        ]
        table.add_row(
            f"{chain.label} ({len(chain.ops)})", chain.dim, f"{chain.gpu_ratio:.2f}", *used
        )
    table.caption = _prediction(plan)
    if search_ms is not None:
        table.caption += f", found in {search_ms:.0f} ms"
    if plan.method:
        table.caption += f" by {plan.method}"
    if plan.predicted_mj is not None:
        table.caption += f", {plan.predicted_mj:.1f} mJ"
    if plan.not_counted:
        table.caption += f"\nnot counted, for want of latencies: {', '.join(plan.not_counted)}"
    if plan.estimated:
        table.caption += f"\nestimated, for want of predictors: {', '.join(plan.estimated)}"
    return table


def _prediction(plan: Plan) -> str:
    if plan.predicted_ms is None:
        return "in default variants, of which nothing is predicted"
    return f"predicted {plan.predicted_ms:.1f} ms by {plan.predictor} from {plan.source} latencies"
