"""`codl trace`: what both processors do when, as a file for Perfetto."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from codl.api.job import Job, digests_of, recorded
from codl.cli import options as opt
from codl.cli.output import TERMINAL, emit, note, stage
from codl.engine.engine import Engine
from codl.errors import UnsupportedError
from codl.evaluation.explain import cost_of
from codl.evaluation.run_report import RunReport, measure
from codl.evaluation.tracing import Recording, predict, record
from codl.files import check_writable
from codl.ir import Network
from codl.lower import lower
from codl.measure import dataset as datasets
from codl.measure.inputs import random_inputs
from codl.predict import FOLDER
from codl.records.results import Latency
from codl.records.soc import Soc
from codl.report.text_table import Table

#: What traces are called: a file of another name that is there is not replaced.
SUFFIX = ".pftrace"
#: Where to look at one.
VIEWER = "https://ui.perfetto.dev"


def trace_file(path: Path | None) -> Path | None:
    """Refuses a file that cannot be written before it is worked for, and to replace another's."""
    if path is None:
        return None
    if path.suffix != SUFFIX and path.exists():
        raise UnsupportedError(f"{path} is there, and no {SUFFIX} file: name another one.")
    check_writable(path)
    return path


TraceFileOption = Annotated[
    Path, typer.Option("-o", "--output", help="The trace.", callback=trace_file)
]
PredictedOption = Annotated[
    bool, typer.Option("--predicted", help="Run nothing: the predicted timeline alone.")
]
RunsOption = Annotated[
    int, typer.Option("--runs", min=1, max=opt.MOST_ROUNDS, help="Profiled inferences.")
]
LayersOption = Annotated[
    bool,
    typer.Option("--layers", help="Show the layers in nets of the CPU, which then run one by one."),
]
#: Profiled inferences, and plain runs for the latency and the power beside them.
RUNS, ROUNDS = 5, 20


def trace_model(
    model: opt.ModelArgument,
    soc: opt.SocOption = "",
    output: TraceFileOption = Path(f"trace{SUFFIX}"),
    serial: opt.SerialOption = "local",
    precision: opt.PrecisionOption = None,
    predicted: PredictedOption = False,
    plan: opt.PlanOption = None,
    strategy: opt.StrategyOption = None,
    search_budget: opt.SearchBudgetOption = opt.SEARCH_BUDGET,
    profile: opt.ProfileOption = None,
    no_profile: opt.NoProfileOption = False,
    runs: RunsOption = RUNS,
    layers: LayersOption = False,
    batch: opt.BatchOption = None,
    shape: opt.ShapeOption = None,
    dataset: opt.DatasetsOption = datasets.FOLDER,
    predictors: opt.PredictorsOption = FOLDER,
    predictor: opt.PredictorOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Write what both processors do when, as a trace for Perfetto: open it in ui.perfetto.dev.

    The plan runs on --serial. Tracks are the CPU, the GPU's queue, transfers, and waits; chains are
    around what they are made of, flows go where data is shared, and counters show temperature,
    clocks and power where the device has sensors. The predicted timeline is a second process, below
    each inference. With --predicted no device is needed.

    [dim]Examples:[/dim]
    codl trace yolov2 --soc epyc2 --predicted -o yolov2.pftrace
    codl trace yolov2 --soc host -o yolov2.pftrace
    codl trace model.onnx --soc host --plan plan.json --runs 20 --json
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
    latency: Latency | None = None
    if predicted:
        chosen = job.plan_of(network, job.context)
        executable = lower(network, chosen, job.context.soc, job.context.tuning)
        recording = predict(executable, chosen, cost_of(network, chosen, job.context))
    else:
        with job.connected() as context:
            chosen = job.plan_of(network, context)
            cost = context.default_cost(network)
            stage(f"Loading {network.name}, and profiling it {runs} times")
            with Engine(network, chosen, context.device, context.tuning) as engine:
                inputs = random_inputs(network)
                done = measure(engine, context.device, inputs, cost, rounds=ROUNDS)
                latency = done.latency_ms
                recording = record(
                    engine, context.device, cost, runs=runs, layers=layers, power_w=power_w(done)
                )
            of = digests_of(context, network, plans={network.name: chosen})
            origin = recorded(context.device, of, runs=runs, rounds=ROUNDS)
    result = {
        "latency_ms": None if latency is None else asdict(latency),
        **write_trace(recording, output, network, job.described),
        **origin,
    }
    emit("trace", result, lambda: _table(result), as_json=json)


def power_w(done: RunReport) -> float | None:
    """The mean of plain runs; None where no sensor tells."""
    return None if done.energy_mj is None else done.energy_mj / done.latency_ms.median


def write_trace(recording: Recording, output: Path, network: Network, soc: Soc) -> dict[str, Any]:
    """Write a trace, and return what `codl trace --json` holds of it."""
    from codl.report.trace import write_trace as write

    strategy = recording.plan.strategy
    title = f"{network.name} by {strategy} on {soc.name}"
    written = write(recording, output, title=title, source=_source(soc))
    note(f"Wrote {written.path}; open it in {VIEWER}")
    return {
        "model": network.name,
        "soc": soc.name,
        "strategy": strategy,
        "file": str(written.path),
        "bytes": written.bytes,
        "runs": len(recording.inferences),
        "predicted_ms": max((x.span.end_ms for x in recording.predicted), default=None),
        "source": "measured" if recording.inferences else _source(soc),
        "tracks": [track._asdict() for track in written.tracks],
        "flows": written.flows,
        "counters": list(written.counters),
    }


def _source(soc: Soc) -> str:
    """What predictions rest on: computed from measured latencies, replayed or simulated ones."""
    return "computed" if soc.source == "measured" else soc.source


def _table(result: dict[str, Any]) -> RenderableType:
    """The tracks, by process."""
    table = Table("process", "track", "slices", "ms", title="Trace", title_justify="left")
    for track in result["tracks"]:
        count, ms = str(track["slices"]), f"{track['ms']:.2f}"
        table.add_row(track["process"].partition(":")[0], track["track"], count, ms)
    counters = ", ".join(result["counters"]) or "none"
    table.caption = (
        f"{result['model']} by {result['strategy']} on {result['soc']}, {result['runs']} "
        f"inferences, {result['flows']} flows; counters: {counters}. {result['bytes'] / 1e3:.0f} "
        f"kB in {result['file']}, for {VIEWER}"
    )
    return table
