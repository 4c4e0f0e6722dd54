"""`codl run`: a model, or a bundle, by one plan."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Group

from codl import bundle, files
from codl.api.job import Job, RunOptions, digests_of, read_inputs, recorded
from codl.bundle.archive import Archive
from codl.cli import options as opt
from codl.cli.output import TERMINAL, emit, note, stage, told_of, warn
from codl.cli.plan_tables import op_placement_table
from codl.cli.trace import RUNS, power_w, trace_file, write_trace
from codl.engine.engine import MOST_MEMORY, Engine
from codl.errors import CodlError, UnsupportedError
from codl.evaluation.run_report import RunReport, measure
from codl.evaluation.tracing import record
from codl.frontend.models import BUNDLE
from codl.measure import dataset as datasets
from codl.measure.inputs import random_inputs
from codl.plan.cost_model import CostModel
from codl.predict import FOLDER
from codl.runtime.loaded import sharing_ms
from codl.strategies import Context
from codl.strategies.rehearsal import keep_run
from codl.targets.base import Target
from codl.targets.connect import connect
from codl.targets.detect import load_local

NPZ = ".npz"
#: A run that takes twice its prediction is worth a word.
FAR_OFF = 2.0
ModelOrBundle = Annotated[str, typer.Argument(help=f"{opt.MODELS}, or a bundle (.codl).")]
InputsOption = Annotated[
    Path | None, typer.Option("--inputs", help="Inputs by name; seeded random ones by default.")
]


def _arrays_file(path: Path | None) -> Path | None:
    if path is not None and path.suffix != NPZ:
        raise typer.BadParameter(f"outputs go to an {NPZ} file, got {path}", param_hint="--outputs")
    return opt.writable(path)


OutputsOption = Annotated[
    Path | None,
    typer.Option("--outputs", help="Where outputs go, an .npz file.", callback=_arrays_file),
]
AdaptOption = Annotated[
    bool,
    typer.Option(
        "--adapt/--no-adapt",
        help="Move shares to whichever processor becomes the faster one, between ratios that are "
        f"ready in {MOST_MEMORY} times the plan's memory. Takes seconds more to begin; on this "
        "machine only.",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Take the kernels that a bundle brings as they are, though it was not written by this "
        "user on this machine: they may do anything.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fall back on nothing: a kernel or a GPU that fails is an error.",
    ),
]
RoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, max=opt.MOST_ROUNDS, help="Timed runs, in a row.")
]


TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Profile it some times more, and write a trace for Perfetto, as `codl trace` does.",
        callback=trace_file,
    ),
]


def run_model(
    model: ModelOrBundle,
    soc: opt.SocOption = "",
    serial: opt.SerialOption = "local",
    precision: opt.PrecisionOption = None,
    plan: opt.PlanOption = None,
    strategy: opt.StrategyOption = None,
    search_budget: opt.SearchBudgetOption = opt.SEARCH_BUDGET,
    profile: opt.ProfileOption = None,
    no_profile: opt.NoProfileOption = False,
    inputs: InputsOption = None,
    outputs: OutputsOption = None,
    rounds: RoundsOption = 20,
    batch: opt.BatchOption = None,
    dataset: opt.DatasetsOption = datasets.FOLDER,
    predictors: opt.PredictorsOption = FOLDER,
    predictor: opt.PredictorOption = None,
    shape: opt.ShapeOption = None,
    adapt: AdaptOption = False,
    every: opt.PlacementOption = False,
    threads: opt.ThreadsOption = None,
    cpu_affinity: opt.AffinityOption = None,
    gpu_performance: opt.PerformanceOption = None,
    gpu_priority: opt.PriorityOption = None,
    max_kernel_ms: opt.LongestOption = None,
    gpu_duty: opt.DutyOption = None,
    trust: TrustOption = False,
    check: opt.CheckOption = True,
    strict: StrictOption = False,
    trace: TraceOption = None,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Run a model by a plan or a strategy, or a bundle, and print its latency.

    Latency is over back-to-back runs after two warm-ups.

    --plan and --strategy override what a deployment file says. --threads, --cpu-affinity,
    --gpu-performance and --gpu-priority hold for this run alone; write them to the SoC file to
    measure and plan with them too. --max-kernel-ms and --gpu-duty leave the GPU to the interface in
    between, and hold for the plan that is made here too.

    First, its outputs are compared with ONNX Runtime's, once for each model, plan and driver. Where
    they are wrong, the op at fault runs in another kernel; where nothing helps, it is an error.
    `codl validate` tells more; --no-check leaves it out.

    Where a kernel does not build or run, another one stands in. Where the GPU fails later, the CPU
    does the inference again, and the rest. Both are told; --strict makes them errors. With --serial
    process that holds of drivers that crash or hang, too.

    [dim]Examples:[/dim]
    codl run yolov2 --soc host --inputs in.npz --outputs out.npz
    codl run yolov2.codl --inputs in.npz --outputs out.npz
    codl run yolov2 --soc host --adapt --rounds 500 --json
    codl run yolov2 --soc host --serial process --strict
    codl run deploy.yaml#detector --soc host --threads 2 --cpu-affinity big --gpu-priority low
    codl run yolov2 --soc host --max-kernel-ms 1 --gpu-duty 0.7
    codl run yolov2 --soc host --trace yolov2.pftrace
    """
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
        batch=batch,
        shapes=opt.read_shapes(shape),
        dataset=dataset,
        predictors=predictors,
        options=RunOptions(
            threads, cpu_affinity, gpu_performance, gpu_priority, max_kernel_ms, gpu_duty
        ),
        reporter=TERMINAL,
    )
    with ExitStack() as stack:
        if Path(model).suffix == BUNDLE:
            fixed = {"plan": plan, "strategy": strategy, "batch": batch, "shape": shape}
            fixed |= {"predictor": predictor, "adapt": adapt, "precision": precision}
            opened = _open_bundle(job, fixed, stack, inputs, trusted=trust, check=check)
        else:
            opened = _open_model(job, stack, inputs, check=check, adapts=adapt, strict=strict)
        with (engine := opened.engine):
            done = _measured(opened, rounds=rounds, strict=strict)
            if trace is not None:
                power = power_w(done)
                recording = record(engine, opened.target, opened.cost, runs=RUNS, power_w=power)
                write_trace(recording, trace, engine.network, engine.soc)
        of = digests_of(opened.context, engine.network, plans={engine.network.name: engine.plan})
        origin = recorded(opened.target, of, rounds=rounds)
    if outputs is not None:
        with files.writing(outputs) as partial, partial.open("wb") as file:
            np.savez(file, **done.outputs)  # type: ignore[arg-type]
        note(f"Wrote {outputs}")
    result = {"serial": serial, **_result(engine, done, batch, job.wanted), **origin}

    def render() -> Group:
        return Group(op_placement_table(done.placed, "measured", every=every), _summary(result))

    emit("run", result, render, as_json=json, output=output)
    _warn_of_prediction(result)
    _warn_of_no_numbers(done.outputs)


@dataclass(frozen=True)
class _Opened:
    """An engine, its target and its inputs, and of a model what it was planned with."""

    engine: Engine
    target: Target
    inputs: Mapping[str, NDArray[Any]]
    context: Context | None = None
    cost: CostModel | None = None


def _open_model(
    job: Job, stack: ExitStack, inputs: Path | None, *, check: bool, adapts: bool, strict: bool
) -> _Opened:
    """Read, plan and load a model."""
    from codl.validate.first_check import checked_engine  # a bundle needs no ONNX
    from codl.validate.references import read_network

    job.check()
    stage(f"Reading {job.model}")
    network, source = read_network(job.model, job.batch, job.shapes, check=check)
    arrays = read_inputs(network, inputs, job.deployment, random_inputs)
    context = stack.enter_context(job.connected())
    chosen = job.plan_of(network, context)
    stage(f"Loading {network.name}: building its kernels and packing its weights")
    engine = checked_engine(
        network,
        chosen,
        context.device,
        context.tuning,
        source=source,
        adaptive=adapts,
        recovers=not strict,
        strict=strict,
    )
    return _Opened(engine, context.device, arrays, context, context.default_cost(network))


def _measured(opened: _Opened, *, rounds: int, strict: bool) -> RunReport:
    """Run it; shares that moved to other ratios are kept for the next time."""
    engine, context = opened.engine, opened.context
    if strict and engine.fallbacks:
        raise CodlError(f"--strict: {'; '.join(map(str, engine.fallbacks))}")
    stage(f"Running {engine.network.name}, {rounds} times")
    done = measure(engine, opened.target, opened.inputs, opened.cost, rounds=rounds)
    if context is not None and engine.adaptation is not None and engine.adaptation.moves:
        keep_run(engine, context, done.latency_ms.level)
    return done


def _result(
    engine: Engine, done: RunReport, batch: int | None, wanted: RunOptions
) -> dict[str, Any]:
    return {
        "model": engine.network.name,
        "soc": engine.soc.name,
        "batch": batch,
        "strategy": engine.plan.strategy,
        "latency_ms": asdict(done.latency_ms),
        "predicted_ms": engine.plan.predicted_ms,
        "data_sharing_ms": sharing_ms(done.spans),
        "energy_mj": done.energy_mj,
        "energy_sensors": list(done.energy_sensors),
        "source": "measured",
        "fallbacks": [asdict(fallback) for fallback in engine.fallbacks],
        "gpu_failure": engine.gpu_failure,
        **told_of(engine.checked),
        "planned_fallbacks": [asdict(fallback) for fallback in engine.plan.fallbacks],
        "gpu_storage": list(map(str, engine.storages)),
        "precision": engine.precision,
        "options": {**asdict(wanted), "threads": engine.soc.placement.threads},
        "limited": None if engine.limited is None else asdict(engine.limited),
        "memory_bytes": asdict(engine.memory),
        "adaptation": None if engine.adaptation is None else asdict(engine.adaptation),
        "placement": [asdict(placement) for placement in done.placed],
        "spans": [asdict(span) for span in done.spans],
    }


def _summary(result: Mapping[str, Any]) -> str:
    latency_ms = "{p20:.2f} ms (20th percentile; median {median:.2f}, p80 {p80:.2f}, {runs} runs)"
    predicted_ms = result["predicted_ms"]
    predicted = "nothing" if predicted_ms is None else f"{predicted_ms:.2f} ms"
    return (
        f"{result['model']} by {result['strategy']} on {result['soc']}: "
        f"{latency_ms.format(**result['latency_ms'])}, {predicted} predicted, "
        f"data sharing {result['data_sharing_ms']:.2f} ms, measured{_moved(result['adaptation'])}"
        f"{_limited(result['limited'])}"
    )


def _warn_of_prediction(result: Mapping[str, Any]) -> None:
    """Where predictions are far off, so may the plan be."""
    predicted_ms, found_ms = result["predicted_ms"], result["latency_ms"]["p20"]
    if predicted_ms and found_ms > FAR_OFF * predicted_ms:
        warn(
            f"It takes {found_ms / predicted_ms:.1f} times what was predicted, so another plan may "
            "be faster: `codl explain` says where the time goes."
        )


def _warn_of_no_numbers(outputs: Mapping[str, Any]) -> None:
    """Where a weight or an input is NaN or too large, so may everything behind it be."""
    for name, values in outputs.items():
        if values.size and not np.isfinite(values).any():
            warn(
                f"The output {name!r} has no number: all {values.size:,} values are NaN or "
                "infinite. Look at the weights and the inputs of the model."
            )


def _limited(limited: Mapping[str, Any] | None) -> str:
    """How the GPU's limits were kept, for people."""
    if limited is None:
        return ""
    text = (
        f"; {limited['launches']} kernels in {limited['enqueued']} launches, the longest "
        f"{limited['longest_ms']:.2f} ms ({limited['longest_kernel']})"
    )
    if too_long := limited["too_long"]:
        text += f", {len(too_long)} above the limit: {too_long[0]['reason']}"
    return text


def _moved(adaptation: Mapping[str, Any] | None) -> str:
    """How shares moved, for people."""
    if adaptation is None:
        return ""
    if len(adaptation["gpu_ratios"]) == 1:
        return "; nothing adapts: the plan shares no stage, or its memory leaves no room"
    return (
        f"; shares moved {len(adaptation['moves'])} times in {adaptation['runs']} runs and are "
        f"those for a GPU of {adaptation['scale']:.2f} times the planned speed"
    )


def _open_bundle(
    job: Job,
    fixed: Mapping[str, Any],
    stack: ExitStack,
    inputs: Path | None,
    *,
    trusted: bool,
    check: bool,
) -> _Opened:
    """Load a bundle.

    Raises `UnsupportedError` for an option that is given though the bundle has it `fixed`.
    """
    options = [f"--{key}" for key, value in fixed.items() if value]
    if options:
        raise UnsupportedError(
            f"{', '.join(options)} cannot change {job.model}: a bundle's plan and shapes are "
            "fixed. `codl package` with these options makes another."
        )
    archive = Archive(Path(job.model))
    described = load_local(job.soc, job.serial) if job.soc else bundle.soc_of(archive)
    placed = job.wanted.applied(described, TERMINAL)
    target = stack.enter_context(closing(connect(job.serial, placed)))
    engine = bundle.load(
        job.model, soc=placed, connected=lambda soc: target, trusted=trusted, check=check
    )
    arrays = read_inputs(engine.network, inputs, job.deployment, random_inputs)
    return _Opened(engine, target, arrays)
