"""`codl search`, `codl run`, `codl eval` and `codl report`: from a model to a table."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Group, RenderableType
from rich.table import Table

from codl import dataset as datasets
from codl import soc as socs
from codl.cli.data import DatasetOption
from codl.cli.deployed import (
    AffinityOption,
    PerformanceOption,
    PriorityOption,
    RunOptions,
    ThreadsOption,
    adapted,
    deployment_of,
    plan_of,
    read_inputs,
    strategy_of,
)
from codl.cli.devices import SerialOption, check_serial
from codl.cli.opened import is_bundle, load_soc, open_bundle
from codl.cli.output import JsonOption, OutputOption, SocOption, emit, note
from codl.cli.placement import placement_table
from codl.cli.shapes import ShapeOption, read_shapes
from codl.collect.tasks import load_network
from codl.device.energy import energy_mj, find_sensors
from codl.errors import CodlError, InvalidFileError
from codl.execute.engine import Engine
from codl.execute.timeline import sharing_ms
from codl.models import BUILT_IN, choices
from codl.ops import Network
from codl.ops.plan import Plan
from codl.plan import placement, unmeasured
from codl.plan.cost import CostModel
from codl.plan.objective import GOALS, Objective
from codl.plan.optimal import METHODS
from codl.predict.names import FOLDER, NAMES
from codl.strategies import DEFAULT, STRATEGIES, Context, find, ideal
from codl.strategies.evaluation import evaluate, to_json
from codl.strategies.inputs import random_inputs
from codl.strategies.peers import PEERS
from codl.strategies.peers.process import check as check_peers
from codl.strategies.peers.process import with_opencl_all
from codl.strategies.turns import Effort, interleave, timed, with_peers

MODELS = (
    f"A built-in model ({', '.join(sorted(BUILT_IN))}), an .onnx file, a model in .yaml, "
    "or a deployment .yaml (with #NAME where it has several models)"
)
ModelArgument = Annotated[str, typer.Argument(help=f"{MODELS}.")]
PredictorOption = Annotated[
    str | None,
    typer.Option("--predictor", help=f"Plan with one of {', '.join(NAMES)}."),
]
PredictorsOption = Annotated[
    Path, typer.Option("--predictors", help="Where predictors lie, a folder for each SoC.")
]
PlacementOption = Annotated[
    bool, typer.Option("--placement", help="Show where every op runs, not only a summary.")
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Images at a time; those of the model's own inputs unless it is given."
    ),
]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        help=f"A way to plan: one of {', '.join(STRATEGIES)}. By default what a deployment's "
        f"runtime means, or {DEFAULT}.",
        show_default=False,
    ),
]


def search_plan(
    model: ModelArgument,
    soc: SocOption,
    strategy: StrategyOption = None,
    predictor: PredictorOption = None,
    method: Annotated[
        str, typer.Option("--search", help=f"How `codl` searches: {', '.join(METHODS)}.")
    ] = "dp",
    objective: Annotated[
        str, typer.Option(help=f"What `codl` searches for: {', '.join(GOALS)}.")
    ] = "latency",
    memory_limit: Annotated[
        int | None,
        typer.Option(min=1, help="MiB of weights that both processors may hold together."),
    ] = None,
    batch: BatchOption = None,
    dataset: DatasetOption = datasets.FOLDER,
    predictors: PredictorsOption = FOLDER,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the plan to this file.")
    ] = None,
    shape: ShapeOption = None,
    every: PlacementOption = False,
    json: JsonOption = False,
) -> None:
    """Find the chains, dimensions and ratios of a model: its plan.

    The strategy `ideal` is the paper's bound, from measured ops; it gives no plan.

    [dim]Example:[/dim] codl search yolov2 --soc host -o plan.json
    """
    deployed = deployment_of(model)
    described = socs.load(soc)
    limit = None if memory_limit is None else memory_limit << 20
    goal = Objective.of(objective, described, limit)
    asked = Context(described, predictors, dataset, predictor, method, goal, note=note)
    context, strategy = adapted(asked, deployed), strategy_of(strategy, deployed)
    network = load_network(model, batch, read_shapes(shape))
    if strategy == ideal.NAME:
        _show_bound(network, context, json)
        return
    way = find(strategy)
    with suppress(InvalidFileError):  # a strategy that needs predictors says which are missing
        context.cost(way.default_predictor)
    start = perf_counter()
    plan = way.plan(network, context)
    search_ms = 1e3 * (perf_counter() - start)
    if output is not None:
        note(f"Wrote {plan.save(output)}")
    placed = placement.predicted(network, plan, context.soc, _cost(network, context))
    result = {**plan.to_json(), "search_ms": search_ms}
    result["placement"] = [asdict(one) for one in placed]
    result.pop("version")

    def render() -> Group:
        where = placement_table(placed, "predicted", every=every)
        return Group(_plan_table(plan, search_ms), where)

    emit("search", result, render, as_json=json)


def _cost(network: Network, context: Context) -> CostModel | None:
    """By what single ops are predicted; None where no predictors are trained."""
    cost = context.default_cost()
    return unmeasured.filled(cost, network) if cost else None


def _show_bound(network: Network, context: Context, json: bool) -> None:
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

    emit("search", result, render, as_json=json)


def _plan_table(plan: Plan, search_ms: float) -> Table:
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
    table.caption = (
        f"predicted {plan.predicted_ms:.1f} ms by {plan.predictor} from {plan.source} latencies, "
        f"found in {search_ms:.0f} ms"
    )
    if plan.method:
        table.caption += f" by {plan.method}"
    if plan.predicted_mj is not None:
        table.caption += f", {plan.predicted_mj:.1f} mJ"
    if plan.not_counted:
        table.caption += f"\nnot counted, for want of latencies: {', '.join(plan.not_counted)}"
    if plan.estimated:
        table.caption += f"\nestimated, for want of predictors: {', '.join(plan.estimated)}"
    return table


def run_model(
    model: Annotated[str, typer.Argument(help=f"{MODELS}, or a bundle (.codl).")],
    soc: Annotated[
        str | None,
        typer.Option(
            "--soc",
            help="A SoC: a name in ./socs, or a .yaml file; a bundle has its own.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan of `codl search`.")] = None,
    strategy: StrategyOption = None,
    inputs: Annotated[
        Path | None, typer.Option("--input", help="Inputs by name; seeded random ones by default.")
    ] = None,
    outputs: Annotated[Path | None, typer.Option("--output", help="Where outputs go.")] = None,
    result_file: Annotated[
        Path | None, typer.Option("-o", help="Write the result, the input of `codl report`.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed runs.")] = 20,
    batch: BatchOption = None,
    dataset: DatasetOption = datasets.FOLDER,
    predictors: PredictorsOption = FOLDER,
    predictor: PredictorOption = None,
    shape: ShapeOption = None,
    every: PlacementOption = False,
    threads: ThreadsOption = None,
    cpu_affinity: AffinityOption = None,
    gpu_performance: PerformanceOption = None,
    gpu_priority: PriorityOption = None,
    json: JsonOption = False,
) -> None:
    """Run a model by a plan or a strategy, or a bundle, and say how long it takes.

    A deployment file says what its model runs on; --plan and --strategy are stronger. The last four
    options are for this run alone: keep them in the SoC file to measure and plan with them too.

    [dim]Examples:[/dim]
    codl run yolov2 --soc host --input in.npz --output out.npz
    codl run yolov2.codl --input in.npz --output out.npz
    codl run deploy.yaml#detector --soc host --threads 2 --cpu-affinity big --gpu-priority low
    """
    deployed = deployment_of(model)
    wanted = RunOptions(threads, cpu_affinity, gpu_performance, gpu_priority)
    cost: CostModel | None = None
    if is_bundle(model):
        fixed = {"plan": plan, "strategy": strategy, "batch": batch, "shape": shape}
        engine = open_bundle(model, soc, wanted, fixed | {"predictor": predictor})
    else:
        context = adapted(
            Context(wanted.applied(load_soc(soc)), predictors, dataset, predictor, note=note),
            deployed,
        )
        network = load_network(model, batch, read_shapes(shape))
        chosen = plan_of(plan, strategy, deployed, network=network, context=context)
        engine, cost = Engine(network, chosen, context.soc), _cost(network, context)
    network, chosen, described = engine.network, engine.plan, engine.soc
    with engine:
        arrays = read_inputs(network, inputs, deployed, random_inputs)
        results = engine(arrays)
        effort = Effort(warm_up=2, min_rounds=rounds, min_seconds=0)
        latency = interleave({"run": timed(engine.run)}, effort)["run"]
        sensors = find_sensors().sensors
        energy = energy_mj(engine.run, sensors)
        spans = engine.profile()
        fallbacks = [asdict(fallback) for fallback in engine.fallbacks]
        gpu_storage, precision = list(map(str, engine.storages)), engine.precision
        nets, fused, memory = engine.nets, engine.fused, asdict(engine.memory)
    placed = placement.predicted(network, chosen, described, cost)
    placed = placement.measured(placed, spans, nets, fused)
    if outputs is not None:
        np.savez(outputs, **results)  # type: ignore[arg-type]
        note(f"Wrote {outputs}")
    result: dict[str, Any] = {
        "model": network.name,
        "soc": described.name,
        "batch": batch,
        "strategy": chosen.strategy,
        "latency_ms": asdict(latency),
        "predicted_ms": chosen.predicted_ms,
        "data_sharing_ms": sharing_ms(spans),
        "energy_mj": energy,
        "energy_sensors": [sensor.name for sensor in sensors],
        "source": "measured",
        "fallbacks": fallbacks,
        "gpu_storage": gpu_storage,
        "precision": precision,
        "options": {**asdict(wanted), "threads": described.cpu.threads},
        "memory_bytes": memory,
        "placement": [asdict(one) for one in placed],
        "spans": [asdict(span) for span in spans],
    }

    def render() -> Group:
        return Group(placement_table(placed, "measured", every=every), summary())

    def summary() -> str:
        return (
            f"{network.name} by {chosen.strategy} on {described.name}: median "
            f"{latency.median:.2f} ms (p20 {latency.p20:.2f}, p80 {latency.p80:.2f}, "
            f"{latency.runs} runs), data sharing {result['data_sharing_ms']:.2f} ms, measured"
        )

    emit("run", result, render, as_json=json, output=result_file)


def evaluate_strategies(
    soc: SocOption,
    serial: SerialOption = "local",
    models: Annotated[
        str, typer.Option(help="Built-in models or .onnx files, separated by commas.")
    ] = "yolov2",
    strategies: Annotated[
        str, typer.Option(help=f"Of {', '.join([*STRATEGIES, ideal.NAME])}, by commas.")
    ] = "cpu,gpu,mulayer,codl-paper,codl,ideal",
    peers: Annotated[
        str,
        typer.Option(
            help=f"Other libraries on all cores, of {', '.join(PEERS)}, by commas. With any, every "
            "timed run comes after one that is not timed, for strategies too."
        ),
    ] = "",
    seconds: Annotated[float, typer.Option(help="Measure each model at least this long.")] = 20,
    predictor: PredictorOption = None,
    batch: BatchOption = None,
    dataset: DatasetOption = datasets.FOLDER,
    predictors: PredictorsOption = FOLDER,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Measure strategies against each other, interleaved in one run, outputs checked.

    Peers are other libraries (`pip install codl[peers]`), each in a process of its own with all the
    cores that both processors have together. Where the OpenCL device is a CPU, `opencl-all`, our
    own kernels on every core, comes with them.

    [dim]Examples:[/dim]
    codl eval --soc host --serial local --models yolov2,vgg16
    codl eval --soc host --models yolov2 --strategies cpu,gpu --peers ort,ncnn,openvino,mnn
    """
    check_serial(serial)
    context = Context(socs.load(soc), predictors, dataset, predictor, note=note)
    names = [name for name in strategies.split(",") if name]
    known = [find(name) for name in names if name != ideal.NAME]
    if not known:
        raise CodlError(f"Name at least one of {', '.join(STRATEGIES)}; got {strategies!r}.")
    others = with_opencl_all([name for name in peers.split(",") if name], context.soc)
    check_peers(others, context.soc)
    rows, timelines = [], []
    for model in [name for text in models.split(",") for name in choices(text)]:
        results, spans = evaluate(
            model,
            known,
            context,
            with_ideal=ideal.NAME in names,
            peers=others,
            effort=with_peers(seconds) if others else Effort(min_seconds=seconds),
            batch=batch,
            note=note,
        )
        rows += to_json(results)
        timelines += [
            {"model": model, "strategy": name, "spans": [asdict(span) for span in found]}
            for name, found in spans.items()
        ]
    sensors = [sensor.name for sensor in find_sensors().sensors]
    result: dict[str, Any] = {
        "soc": asdict(context.soc),
        "batch": batch,
        "energy_sensors": sensors,
        "rows": rows,
        "timelines": timelines,
    }

    def render() -> RenderableType:
        from codl.report.load import eval_result
        from codl.report.tables import eval_table

        return eval_table(eval_result(result))

    emit("eval", result, render, as_json=json, output=output)


def write_report(
    results: Annotated[list[Path], typer.Argument(help="Result files written with -o.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("report.html"),
) -> None:
    """Make one HTML page of result files.

    [dim]Example:[/dim] codl report eval.json train.json -o report.html
    """
    from codl.report.html import write_report as write

    note(f"Wrote {write(results, output)}")
